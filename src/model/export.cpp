#include "model/export.h"

#include <charconv>
#include <cstdlib>
#include <memory>

namespace h3 {

double decimal_of(float value) {
  char text[64] = {};
  std::to_chars(text, text + sizeof text - 1, value);
  return std::strtod(text, nullptr);
}

MatrixSource owned_rows(const std::string& name, std::vector<float> values, int64_t rows) {
  auto owned = std::make_shared<const std::vector<float>>(std::move(values));
  StoredMatrix matrix;
  matrix.format = Format::f32;
  matrix.rows = rows;
  matrix.cols = static_cast<int64_t>(owned->size()) / rows;
  matrix.data = std::as_bytes(std::span(*owned));
  matrix.keep_alive = owned;
  MatrixSource source;
  source.name = name;
  source.append(matrix, 0, rows);
  return source;
}

ExportTensor export_values(const std::string& name, const std::string& family, Keep keep, std::vector<int64_t> dims,
                           std::vector<float> values) {
  const MatrixSource rows = owned_rows(name, std::move(values), dims.empty() ? 1 : dims[0]);
  return {name, std::move(dims), keep, family, [rows] { return rows; }};
}

}  // namespace h3
