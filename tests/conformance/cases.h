// The case table: every operation, over element types, shapes that fill no vector or tile, one row, strides and
// aliasing. A case makes its operands for any back end and returns the call.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace h3::conformance {

enum class Layout { packed, strided };  // strided: rows (the last axis) lie apart, with odd gaps

// Makes operands on the device of `ops`. Activations, parameters and outputs are told apart so that a NaN can be
// planted in the first activation.
class Env {
 public:
  Env(Ops& backend, uint64_t seed, bool plant_nan = false) : ops(backend), state_(seed), nan_(plant_nan) {}
  Ops& ops;
  std::vector<View> outputs;  // in the order of making
  View scratch;               // that may hold anything afterwards, but for the gaps between its rows

  View in(const std::vector<int64_t>& dims, DType type, Layout layout = Layout::packed, float scale = 2);
  View out(const std::vector<int64_t>& dims, DType type, Layout layout = Layout::packed);  // holds rubbish
  View inout(const std::vector<int64_t>& dims, DType type, Layout layout = Layout::packed, float scale = 2);
  View parameter(const std::vector<int64_t>& dims, float low, float high, DType type = DType::f32);
  View ids(int64_t count, int64_t below);           // repeats allowed
  View distinct_ids(int64_t count, int64_t below);  // none
  View integers(const std::vector<int32_t>& values);
  View bytes(const std::vector<int64_t>& dims, const std::vector<uint8_t>& values);
  View also_output(const View& view) { return outputs.push_back(view), view; }
  std::vector<float> values(int64_t n, float low, float high);
  double uniform();  // [0, 1)
  int64_t below(int64_t n);

  // A weight of random values as a checkpoint would hold it, rows taken out of order.
  MatrixSource weight(int64_t out, int64_t in, Format format = Format::f32);
  template <typename T>
  const T& keep(std::unique_ptr<T> object) {
    std::shared_ptr<T> shared = std::move(object);
    kept_.push_back(shared);
    return *shared;
  }

 private:
  View make(const std::vector<int64_t>& dims, DType type, Layout layout, float low, float high, bool activation);

  uint64_t state_;
  bool nan_;
  std::list<Tensor> tensors_;
  std::vector<std::shared_ptr<const void>> kept_;
};

struct Case {
  std::string op;    // as in ops.h
  std::string name;  // the rest: types, shape, layout
  std::function<std::function<void()>(Env&)> prepare;
};

const std::vector<Case>& all_cases();

// The parts of the table.
void add_move_cases(std::vector<Case>& cases);
void add_pointwise_cases(std::vector<Case>& cases);
void add_norm_cases(std::vector<Case>& cases);
void add_linear_cases(std::vector<Case>& cases);
void add_attention_cases(std::vector<Case>& cases);
void add_conv_cases(std::vector<Case>& cases);

std::string dims_text(const std::vector<int64_t>& dims);  // "7x33"
const char* layout_text(Layout layout);

inline constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
inline constexpr Layout kLayouts[] = {Layout::packed, Layout::strided};

}  // namespace h3::conformance
