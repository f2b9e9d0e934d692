// An Ops that computes nothing and books everything: the pipeline runs on it to find out what a request will hold and
// do. Memory is reserved, never touched by an operation; matmuls and convolutions are kernels on paper (LinearPlan).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace h3 {

// What a back end would make of a matmul.
struct LinearPlan {
  std::string kernel;
  std::vector<std::string> refusals;
  int64_t bytes = 0;         // held on the device: packed weight, scales, bias
  int64_t scratch = 0;       // of any call
  int64_t row_scratch = 0;   // of a call, per row
  int64_t scratch_rows = 0;  // rows that scratch is made for at most; 0 = all
  bool stored = false;       // the weight stays in its format and is unpacked by every call
  bool kept_codes = false;   // int8: the codes of the file are multiplied, nothing is quantised anew
};

// What the dry run asks of the back end it stands for.
struct DryRules {
  std::string name;     // as Ops::name
  bool host = true;     // Device::is_host
  int64_t scratch = 0;  // of everything else
  std::function<LinearPlan(const LinearSpec&)> linear;
  std::function<int64_t(const ConvSpec&)> conv_bytes;
  std::function<int64_t(const AttentionArgs&)> attention_scratch;
};

// What the work of a call is counted in, and what its rate is measured on. A call costs by its amount, and by its
// weight however few rows it has: `calls` are in units of the weight that the rate is measured with.
struct Work {
  double calls = 0, amount = 0;
};
// "linear f32 256x1024", "conv f32 64x64x7": flop, of a weight of these edges (MeasuredWeight); "linear bf16 q4tp 8x8":
// of one that every call unpacks; "linear bf16": on an accelerator · "attention f32 128": flop, by the width of a
// head · "snake": elements · "rows f32", "rows bf16": elements of norms, rotations and gates · "exp f32": elements of
// activations · "move": bytes · "pack bf16 f32": weights unpacked from a format and packed for a compute type, at load;
// "pack codes of int8_convrot int8": as LinearPlan::kept_codes; "pack conv": weights of convolutions · "touch": bytes
// of the host taken from the system.
using WorkByKind = std::map<std::string, Work>;
inline constexpr const char* kPackCodes = "pack codes of ";

inline constexpr double kSampleValues = 1 << 20;  // of Booking::samples, about

// The weight to measure the rate of a kind with: that of the model, its long edges cut.
struct MeasuredWeight {
  Compute compute = Compute::f32;
  int64_t in = 0, out = 0;
  ConvSpec conv;        // of a convolution, without values
  MatrixSource stored;  // of a weight that stays in its format: rows of the model's own
};

struct StageBooking {
  std::string stage;
  WorkByKind work;
  int64_t peak = 0;     // most device bytes held during it, scratch included
  int64_t weights = 0;  // of linears and convolutions, part of `peak`
  int64_t held = 0;     // at its end
};

// One distinct matmul or attention shape.
struct ShapeUse {
  std::string op;     // "linear", "attention"
  std::string label;  // of its first use: "dit.blocks.0.attn.qkv_proj"
  std::string shape;  // "1874 x 5376 -> 21504"
  std::string kernel;
  std::vector<std::string> refusals;
  double calls = 0, flop = 0;
};

struct Booking {
  std::vector<StageBooking> stages;
  std::vector<ShapeUse> shapes;  // in order of first use
  int64_t scratch = 0;           // of the back end, at its largest
  // Rows of the model's own weights, to measure "pack ..." on. Valid while the model files are open.
  std::map<std::string, MatrixSource> samples;
  std::map<std::string, MeasuredWeight> weights;  // by kind of "linear ..." and "conv ...", valid as long
};

class DryOps : public Ops {
 public:
  virtual void begin_stage(const std::string& name) = 0;
  virtual const Booking& booking() const = 0;
};

// |W - int8(W)| / |W| of these rows, quantised as Compute::int8 does (codec/int8_row.h); 0 without rows.
double int8_weight_error(const MatrixSource& rows);

std::unique_ptr<DryOps> make_dry_ops(Context& context, DryRules rules);

}  // namespace h3
