#include "store/tensor_source.h"

#include "base/error.h"

namespace h3 {

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

}  // namespace h3
