#include "backends/cuda/packed_weights.h"

#include <algorithm>
#include <utility>

namespace h3::cuda {
namespace {

constexpr int64_t kAlign = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

PackedSegment upload_segment(CudaDevice& device, GatheredMatrix matrix, int64_t first, StreamGroup* group,
                             const char* label) {
  PackedSegment segment;
  segment.format = matrix.format;
  segment.first = first;
  segment.rows = matrix.rows;
  int64_t total = 0;
  for (size_t i = 0; i < matrix.planes.size(); ++i) total += aligned(matrix.plane_bytes(i));
  int64_t offset = 0;
  if (group != nullptr) {
    offset = group->reserve(total);
  } else {
    segment.bytes = device.allocate(total, label);
  }
  for (size_t i = 0; i < matrix.planes.size(); ++i) {
    const int64_t count = matrix.plane_bytes(i);
    if (count == 0) continue;
    segment.planes[i] = offset;
    if (group != nullptr) {
      group->put(offset, std::move(matrix.planes[i]), matrix.keep_alive);
    } else {
      device.upload_pieces(static_cast<std::byte*>(segment.bytes.data()) + offset, matrix.planes[i]);
    }
    offset += aligned(count);
  }
  return segment;
}

}  // namespace

PackedRows PackedSegment::at(const std::byte* base) const {
  PackedRows out = rows;
  const uint8_t** const pointers[] = {&out.data, &out.scale, &out.scale2, &out.codebook, &out.pre_scale};
  for (size_t i = 0; i < std::size(pointers); ++i) {
    *pointers[i] = planes[i] < 0 ? nullptr : reinterpret_cast<const uint8_t*>(base + planes[i]);
  }
  return out;
}

std::vector<PackedSegment> upload_packed(CudaDevice& device, const MatrixSource& source, StreamGroup* group,
                                         const char* label) {
  std::vector<PackedSegment> out;
  int64_t first = 0;
  for (GatheredMatrix& matrix : source.segments()) {
    const int64_t rows = matrix.rows.rows;
    out.push_back(upload_segment(device, std::move(matrix), first, group, label));
    first += rows;
  }
  return out;
}

void expand_packed(cudaStream_t stream, const std::vector<PackedSegment>& segments, const StreamGroup* group,
                   int64_t first, int64_t count, void* dst, DType type) {
  auto* out = static_cast<std::byte*>(dst);
  for (const PackedSegment& segment : segments) {
    const int64_t begin = std::max(first, segment.first);
    const int64_t end = std::min(first + count, segment.first + segment.rows.rows);
    if (begin >= end) continue;
    std::byte* target = out + (begin - first) * segment.rows.cols * size_of(type);
    const auto* base = group != nullptr ? group->base() : static_cast<const std::byte*>(segment.bytes.data());
    dequantise_packed(stream, segment.format, segment.at(base), begin - segment.first, end - begin, target, type);
  }
}

}  // namespace h3::cuda
