#include "backends/cuda/packed_weights.h"

#include <algorithm>

namespace h3::cuda {
namespace {

constexpr int64_t kAlign = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

PackedSegment upload_segment(CudaDevice& device, const StoredMatrix& matrix, int64_t first, const char* label) {
  PackedSegment segment;
  segment.format = matrix.format;
  segment.first = first;
  segment.rows = packed_rows(matrix);
  const std::pair<std::span<const std::byte>, const uint8_t**> planes[] = {{matrix.data, &segment.rows.data},
                                                                           {matrix.scale, &segment.rows.scale},
                                                                           {matrix.scale2, &segment.rows.scale2},
                                                                           {matrix.codebook, &segment.rows.codebook},
                                                                           {matrix.pre_scale, &segment.rows.pre_scale}};
  int64_t total = 0;
  for (const auto& plane : planes) total += aligned(static_cast<int64_t>(plane.first.size()));
  segment.bytes = device.allocate(total, label);
  auto* target = static_cast<std::byte*>(segment.bytes.data());
  for (const auto& [bytes, pointer] : planes) {
    if (bytes.empty()) continue;
    device.upload(bytes.data(), make_view(device, target, DType::u8, {static_cast<int64_t>(bytes.size())}));
    *pointer = reinterpret_cast<const uint8_t*>(target);
    target += aligned(static_cast<int64_t>(bytes.size()));
  }
  return segment;
}

}  // namespace

std::vector<PackedSegment> upload_packed(CudaDevice& device, const MatrixSource& source, const char* label) {
  std::vector<PackedSegment> out;
  int64_t first = 0;
  for (const StoredMatrix& matrix : source.segments()) {
    out.push_back(upload_segment(device, matrix, first, label));
    first += matrix.rows;
  }
  return out;
}

void expand_packed(cudaStream_t stream, const std::vector<PackedSegment>& segments, int64_t first, int64_t count,
                   void* dst, DType type) {
  auto* out = static_cast<std::byte*>(dst);
  for (const PackedSegment& segment : segments) {
    const int64_t begin = std::max(first, segment.first);
    const int64_t end = std::min(first + count, segment.first + segment.rows.rows);
    if (begin >= end) continue;
    std::byte* target = out + (begin - first) * segment.rows.cols * size_of(type);
    dequantise_packed(stream, segment.format, segment.rows, begin - segment.first, end - begin, target, type);
  }
}

}  // namespace h3::cuda
