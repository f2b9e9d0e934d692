#include "store/weights.h"

#include "base/error.h"
#include "store/values.h"

namespace h3 {
namespace {

void append_list(std::string& text, const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += strf("; %zu %s: ", names.size(), title);
  for (size_t i = 0; i < names.size(); ++i) text += (i > 0 ? ", " : "") + names[i];
}

bool dims_match(const std::vector<int64_t>& found, const std::vector<int64_t>& wanted) {
  if (found.size() != wanted.size()) return false;
  for (size_t i = 0; i < found.size(); ++i) {
    if (wanted[i] >= 0 && found[i] != wanted[i]) return false;
  }
  return true;
}

}  // namespace

WeightBinder::WeightBinder(const Component& component) : component_(component) {
  H3_ASSERT(component.source != nullptr);
}

const TensorInfo* WeightBinder::find(const std::string& name) const {
  return component_.source->find(component_.prefix + name);
}

const TensorInfo* WeightBinder::require(const std::string& name, const std::vector<int64_t>& dims) {
  const TensorInfo* info = find(name);
  if (info == nullptr) {
    missing_.push_back(name + " " + shape_text(dims));
    return nullptr;
  }
  return check(info, dims);
}

const TensorInfo* WeightBinder::optional(const std::string& name, const std::vector<int64_t>& dims) {
  const TensorInfo* info = find(name);
  return info == nullptr ? nullptr : check(info, dims);
}

const TensorInfo* WeightBinder::check(const TensorInfo* info, const std::vector<int64_t>& dims) {
  used_.insert(info->name);
  if (dims_match(info->dims, dims)) return info;
  problem(strf("%s is %s instead of %s", info->name.c_str(), shape_text(info->dims).c_str(), shape_text(dims).c_str()));
  return nullptr;
}

void WeightBinder::ignore(const std::string& name) { used_.insert(component_.prefix + name); }

void WeightBinder::ignore_prefix(const std::string& prefix) {
  for (const TensorInfo& info : component_.source->tensors()) {
    if (info.name.starts_with(component_.prefix + prefix)) used_.insert(info.name);
  }
}

void WeightBinder::problem(const std::string& text) { problems_.push_back(text); }

std::vector<float> WeightBinder::values(const TensorInfo* info) const {
  return info == nullptr ? std::vector<float>{} : values_of(*info);
}

StoredMatrix WeightBinder::matrix(const TensorInfo* info) const {
  if (info == nullptr) return {};
  StoredMatrix matrix = stored_matrix(*info);
  matrix.keep_alive = component_.source;
  return matrix;
}

void WeightBinder::finish() const {
  std::vector<std::string> unexpected;
  for (const TensorInfo& info : component_.source->tensors()) {
    if (info.name.starts_with(component_.prefix) && used_.count(info.name) == 0) unexpected.push_back(info.name);
  }
  if (missing_.empty() && problems_.empty() && unexpected.empty()) return;
  std::string text;
  append_list(text, "tensors missing", missing_);
  append_list(text, "with a wrong shape or value", problems_);
  append_list(text, "not known", unexpected);
  fail(Code::data, "%s: these are not the weights of a %s that this program knows%s", component_.origin.c_str(),
       name_of(component_.role), text.c_str());
}

}  // namespace h3
