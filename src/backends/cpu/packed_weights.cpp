#include "backends/cpu/packed_weights.h"

#include <algorithm>

#include "base/error.h"
#include "codec/int8_row.h"
#include "codec/plain.h"

namespace h3 {

PackedWeights::PackedWeights(MatrixSource source, const isa::Level& kernels) : source_(std::move(source)) {
  int64_t start = 0;
  for (const MatrixSource::Part& part : source_.parts) {
    const isa::Expander* expander = kernels.expander(row_of(part.matrix.format).name);
    if (expander != nullptr && part.matrix.rotation > 0 && !expander->rotates) expander = nullptr;
    if (!part.matrix.pre_scale.empty()) expander = nullptr;
    parts_.push_back({start, part.first, packed_rows(part.matrix), expander});
    start += part.rows;
  }
}

const PackedWeights::Part& PackedWeights::part_of(int64_t row) const {
  H3_ASSERT(row >= 0 && row < source_.rows);
  const auto behind =
      std::upper_bound(parts_.begin(), parts_.end(), row, [](int64_t r, const Part& part) { return r < part.start; });
  return *(behind - 1);
}

void PackedWeights::one(int64_t row, float* out) const {
  const Part& part = part_of(row);
  const int64_t stored = part.first + row - part.start;
  if (part.expander != nullptr) return part.expander->floats(part.rows, stored, out);
  const StoredMatrix& matrix = source_.parts[static_cast<size_t>(&part - parts_.data())].matrix;
  row_of(matrix.format).decode_row(matrix, stored, out);
}

void PackedWeights::floats(int64_t first, int64_t count, float* out) const {
  for (int64_t r = 0; r < count; ++r) one(first + r, out + r * source_.cols);
}

void PackedWeights::codes(int64_t first, int64_t count, const float* inverse, int8_t* out, float* staging) const {
  for (int64_t r = 0; r < count; ++r, out += source_.cols) {
    const Part& part = part_of(first + r);
    if (part.expander != nullptr && part.expander->codes != nullptr) {
      part.expander->codes(part.rows, part.first + first + r - part.start, inverse[r], out);
      continue;
    }
    one(first + r, staging);
    for (int64_t k = 0; k < source_.cols; ++k) out[k] = int8_row_quantise(staging[k], inverse[r]);
  }
}

PackedWeights::Stored PackedWeights::stored(int64_t first, int64_t count) const {
  const Part& part = part_of(first);
  if (&part != &part_of(first + count - 1) || part.expander == nullptr) return {};
  return {part.expander->format, part.rows, part.first + first - part.start};
}

bool stays_packed(const MatrixSource& source, Compute compute) {
  return std::all_of(source.parts.begin(), source.parts.end(),
                     [compute](const MatrixSource::Part& part) { return stays_packed(part.matrix.format, compute); });
}

bool stays_packed(Format format, Compute compute) {
  return row_of(format).bits_per_weight < (compute == Compute::int8 ? 8 : 16) && format != Format::noise;
}

int64_t rotation_of_codes(const MatrixSource& source) {
  const int64_t rotation = source.parts.empty() ? 0 : source.parts.front().matrix.rotation;
  const bool same = std::all_of(source.parts.begin(), source.parts.end(), [&](const MatrixSource::Part& part) {
    const StoredMatrix& m = part.matrix;
    return m.format == Format::int8_convrot && m.rotation == rotation && m.pre_scale.empty();
  });
  return same ? rotation : 0;
}

MatrixSource codes_of(const MatrixSource& source) {
  MatrixSource codes = source;
  for (MatrixSource::Part& part : codes.parts) {  // without scale and rotation a code decodes to itself
    part.matrix.scale = {};
    part.matrix.rotation = 0;
  }
  return codes;
}

std::vector<float> scales_of(const MatrixSource& source) {
  std::vector<float> scales;
  for (const MatrixSource::Part& part : source.parts) {
    const PackedRows rows = packed_rows(part.matrix);
    for (int64_t r = 0; r < part.rows; ++r) scales.push_back(row_scale(rows, part.first + r));
  }
  return scales;
}

std::string requantised(const MatrixSource& source) {
  if (rotation_of_codes(source) > 0) return "";
  for (const MatrixSource::Part& part : source.parts) {
    const char* reason = nullptr;
    switch (part.matrix.format) {
      case Format::q8_0: reason = "there is a scale for every 32 columns"; break;
      case Format::q8_2f: reason = "there is a scale for every column"; break;
      case Format::int8_convrot:
        reason = part.matrix.rotation > 0 ? "their columns are rotated, others are not" : nullptr;
        break;
      case Format::q8_row: break;
      default: continue;  // no codes of eight bits for all columns
    }
    if (reason == nullptr && !part.matrix.pre_scale.empty()) reason = "there is a factor for every column";
    if (reason == nullptr) continue;
    return std::string("the codes of ") + row_of(part.matrix.format).name + " as they are: " + reason +
           ", a row of operands has one; quantised again at load";
  }
  return "";
}

}  // namespace h3
