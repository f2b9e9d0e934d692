// Binding tensors of a component to what the model asks for, and one error that lists everything that is wrong.
// Tables of rows are in store/weight_table.h; the tables themselves live in model/*/weights.h.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "store/model_files.h"

namespace h3 {

// Collects what a component asked of its source, then reports everything that is wrong at once. Names are those of the
// file without the component's prefix. The component must outlive the binder.
class WeightBinder {
 public:
  explicit WeightBinder(const Component& component);

  // The tensor without recording anything: for reading dimensions and telling spellings apart.
  const TensorInfo* find(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }

  // The tensor, marked as used; nullptr and a recorded problem when it is missing or its dims differ (-1 = any size).
  const TensorInfo* require(const std::string& name, const std::vector<int64_t>& dims);
  // The same, but absence is not a problem.
  const TensorInfo* optional(const std::string& name, const std::vector<int64_t>& dims);
  void ignore(const std::string& name);           // known and unused
  void ignore_prefix(const std::string& prefix);  // known and unused: every name that starts so
  void problem(const std::string& text);

  // The value as f32 on the host (norms, biases, tables, convolutions), exact for formats up to f32. Empty for nullptr,
  // so that loading can go on until finish() reports what is missing.
  std::vector<float> values(const TensorInfo* info) const;
  // The whole tensor as a 2-D matrix [dims[0], rest]; keeps the source alive. All zero for nullptr.
  StoredMatrix matrix(const TensorInfo* info) const;

  // Throws Error(data) listing all problems and every tensor of the component that nobody asked for.
  void finish() const;

 private:
  const TensorInfo* check(const TensorInfo* info, const std::vector<int64_t>& dims);

  const Component& component_;
  std::set<std::string> used_;
  std::vector<std::string> missing_, problems_;
};

}  // namespace h3
