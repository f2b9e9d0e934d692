// Weight tables: one constexpr row per tensor of a component drives loading, shape errors, `info` and memory planning.
// The tables live in model/*/weights.h; this is the machinery. One error lists every missing, unexpected and mis-shaped
// tensor by name.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "store/model_files.h"

namespace h3 {

// Collects what a component asked of its source, then reports everything that is wrong at once.
class WeightBinder {
 public:
  // `aliases` maps canonical names to the spelling in the file; see model/*/weights.h.
  explicit WeightBinder(const Component& component);

  // The tensor under this file name; nullptr and a recorded problem when missing or when dims differ (-1 = any).
  const TensorInfo* require(const std::string& file_name, const std::vector<int64_t>& dims);
  const TensorInfo* optional(const std::string& file_name, const std::vector<int64_t>& dims);
  void ignore(const std::string& file_name);            // known and unused
  void problem(const std::string& text);

  // The value as f32 on the host (norms, biases, tables, convolutions).
  std::vector<float> values(const TensorInfo* info) const;
  // The whole tensor as a 2-D matrix [dims[0], rest].
  StoredMatrix matrix(const TensorInfo* info) const;

  // Throws Error(data) listing all problems and every tensor of the source nobody asked for.
  void finish();

 private:
  const Component& component_;
  std::map<std::string, bool> used_;
  std::vector<std::string> problems_;
};

}  // namespace h3
