#include "backends/cuda/packed_weights.h"

#include <algorithm>
#include <span>

namespace h3::cuda {
namespace {

constexpr int64_t kAlign = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

PackedSegment upload_segment(CudaDevice& device, const StoredMatrix& matrix, int64_t first, StreamGroup* group,
                             const char* label) {
  PackedSegment segment;
  segment.format = matrix.format;
  segment.first = first;
  segment.rows = packed_rows(matrix);
  const std::span<const std::byte> planes[] = {matrix.data, matrix.scale, matrix.scale2, matrix.codebook,
                                               matrix.pre_scale};
  int64_t total = 0;
  for (const auto& plane : planes) total += aligned(static_cast<int64_t>(plane.size()));
  int64_t offset = 0;
  if (group != nullptr) {
    offset = group->reserve(total);
  } else {
    segment.bytes = device.allocate(total, label);
  }
  for (size_t i = 0; i < std::size(planes); ++i) {
    const std::span<const std::byte> plane = planes[i];
    if (plane.empty()) continue;
    const int64_t count = static_cast<int64_t>(plane.size());
    segment.planes[i] = offset;
    if (group != nullptr) {
      group->put(offset, plane, matrix.keep_alive);
    } else {
      auto* target = static_cast<std::byte*>(segment.bytes.data()) + offset;
      device.upload(plane.data(), make_view(device, target, DType::u8, {count}));
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
  for (const StoredMatrix& matrix : source.segments()) {
    out.push_back(upload_segment(device, matrix, first, group, label));
    first += matrix.rows;
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
