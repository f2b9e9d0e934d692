#include "quant/cmf_dot.h"

#include <cmath>

#include "base/error.h"
#include "codec/q2tp.h"
#include "codec/q4tp.h"

namespace h3 {
namespace {

// One row of levels with the scales of its groups: q4tp levels -8 .. 7, q2tp fields 0 .. 3 (level + 1.5).
struct PackedRow {
  std::vector<int> levels;
  std::vector<float> scales;
};

PackedRow unpack(const StoredMatrix& matrix, int64_t row) {
  const PackedRows m = packed_rows(matrix);
  const bool four = matrix.format == Format::q4tp;
  H3_ASSERT(four || matrix.format == Format::q2tp);
  const int64_t groups = m.cols / 32, level_bytes = four ? 16 : 8;
  float table[32];
  if (four) {
    q4tp_begin(m, row, table);
  } else {
    q2tp_begin(m, row, table);
  }
  PackedRow out;
  for (int64_t g = 0; g < groups; ++g) out.scales.push_back(table[rung_of(m, row, g, level_bytes)]);
  const uint8_t* p = m.data + row * groups * level_bytes;
  for (int64_t c = 0; c < m.cols; ++c) {
    out.levels.push_back(four ? (p[c / 2] >> (4 * (c % 2)) & 15) - 8 : p[c / 4] >> (2 * (c % 4)) & 3);
  }
  return out;
}

float dot_f32(const PackedRow& row, bool four, const std::vector<float>& x) {
  float acc = 0;
  for (size_t g = 0; g < row.scales.size(); ++g) {
    float sum = 0;
    const int* level = &row.levels[32 * g];
    const float* v = &x[32 * g];
    for (int k = 0; four && k < 32; k += 2) {
      sum += static_cast<float>(level[k]) * v[k] + static_cast<float>(level[k + 1]) * v[k + 1];
    }
    for (int k = 0; !four && k < 32; k += 4) {
      float product[4];
      for (int j = 0; j < 4; ++j) product[j] = (static_cast<float>(level[k + j]) - 1.5f) * v[k + j];
      sum += product[0] + product[1] + product[2] + product[3];
    }
    acc += sum * row.scales[g];
  }
  return acc;
}

float dot_int8(const PackedRow& row, bool four, const CmfActivation& a, const std::vector<float>& x) {
  float acc = 0;
  for (size_t g = 0; g < row.scales.size(); ++g) {
    int32_t dot = 0, sum = 0;
    for (size_t k = 32 * g; k < 32 * (g + 1); ++k) {
      dot += row.levels[k] * a.q[k];
      sum += a.q[k];
    }
    if (four) {
      acc += static_cast<float>(dot) * row.scales[g];
    } else {
      acc += row.scales[g] * (static_cast<float>(dot) - 1.5f * static_cast<float>(sum));
    }
  }
  float y = acc * a.scale;
  for (const int64_t j : a.outliers) {
    const float level = four ? static_cast<float>(row.levels[j]) : static_cast<float>(row.levels[j]) - 1.5f;
    y += level * row.scales[j / 32] * x[j];
  }
  return y;
}

}  // namespace

CmfActivation cmf_quantise(const std::vector<float>& x) {
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v * v);
  const float limit = 8 * static_cast<float>(std::sqrt(squares / static_cast<double>(x.size())));
  CmfActivation out;
  float top = 0;
  for (size_t j = 0; j < x.size(); ++j) {
    if (std::fabs(x[j]) > limit) {
      out.outliers.push_back(static_cast<int64_t>(j));
    } else {
      top = std::max(top, std::fabs(x[j]));
    }
  }
  out.scale = top > 0 ? top / 127 : 1.0f;
  const float inverse = 1 / out.scale;
  for (const float v : x) {
    const float q = std::fabs(v) > limit ? 0.0f : clamp_to(std::round(v * inverse), -127, 127);  // ties away from zero
    out.q.push_back(static_cast<int8_t>(q));
  }
  return out;
}

std::vector<float> cmf_dot_f32(const StoredMatrix& matrix, const std::vector<float>& x) {
  std::vector<float> y;
  for (int64_t r = 0; r < matrix.rows; ++r) y.push_back(dot_f32(unpack(matrix, r), matrix.format == Format::q4tp, x));
  return y;
}

std::vector<float> cmf_dot_int8(const StoredMatrix& matrix, const std::vector<float>& x) {
  const CmfActivation a = cmf_quantise(x);
  std::vector<float> y;
  for (int64_t r = 0; r < matrix.rows; ++r) {
    y.push_back(dot_int8(unpack(matrix, r), matrix.format == Format::q4tp, a, x));
  }
  return y;
}

}  // namespace h3
