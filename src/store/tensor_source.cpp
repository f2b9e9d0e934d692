#include "store/tensor_source.h"

#include "base/error.h"

namespace h3 {

int64_t TensorInfo::bytes() const {
  return static_cast<int64_t>(data.size() + scale.size() + scale2.size() + codebook.size() + pre_scale.size());
}

const TensorInfo* TensorSource::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : found->second;
}

void TensorSource::index_tensors() {
  for (const TensorInfo& info : tensors()) index_.emplace(info.name, &info);
}

std::string shape_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ", ";
    text += dims[i] < 0 ? "any" : std::to_string(dims[i]);
  }
  return text + "]";
}

std::string describe(const TensorInfo& info) {
  return strf("tensor '%s' %s %s", info.name.c_str(), shape_text(info.dims).c_str(), row_of(info.format).name);
}

StoredMatrix stored_matrix(const TensorInfo& info) {
  StoredMatrix matrix;
  matrix.format = info.format;
  matrix.rows = info.dims.empty() ? 1 : info.dims[0];
  matrix.cols = 1;
  for (size_t i = 1; i < info.dims.size(); ++i) matrix.cols *= info.dims[i];
  matrix.data = info.data;
  matrix.scale = info.scale;
  matrix.scale2 = info.scale2;
  matrix.codebook = info.codebook;
  matrix.pre_scale = info.pre_scale;
  matrix.rotation = info.rotation;
  try {
    check_matrix(matrix, info.name);
  } catch (const Error& error) {
    throw error.with_context(strf("%s, offset %llu", info.file.c_str(), static_cast<unsigned long long>(info.offset)));
  }
  return matrix;
}

}  // namespace h3
