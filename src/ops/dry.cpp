#include "ops/dry.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "codec/int8_row.h"
#include "ops/values.h"

namespace h3 {
namespace {

// Addresses that may be read and written, so that model code cannot tell, without memory behind them until it does.
class DryDevice final : public Device, public HoldsNoValues {
 public:
  // What is taken here is part of `whole` too.
  explicit DryDevice(bool host, DryDevice* whole = nullptr) : host_(host), whole_(whole) {}
  const char* name() const override { return host_ ? "host" : "accelerator"; }
  bool is_host() const override { return host_; }
  Buffer allocate(int64_t bytes, const char* what) override {
    H3_ASSERT(bytes >= 0);
    void* const data =
        ::mmap(nullptr, mapped(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      fail(Code::memory, "cannot plan: the system reserves no address space of %.1f MiB for %s", bytes / 1048576.0,
           what);
    }
    count_taken(bytes);
    charge(bytes);
    return Buffer(this, data, bytes);
  }
  void release(void* data, int64_t bytes) noexcept override {
    ::munmap(data, mapped(bytes));
    count_given(bytes);
    charge(-bytes);
  }
  void upload(const void*, View) override {}
  // Nothing was computed: zeros, which every check of values lets pass.
  void download(View from, void* to) override {
    if (from.elements() > 0) std::memset(to, 0, static_cast<size_t>(from.bytes()));
  }

  // Memory of a stage: also scratch that the back end makes without an allocation of its caller's.
  void charge(int64_t bytes) {
    held_ += bytes;
    if (bytes > 0) taken_ += bytes;
    if (whole_ != nullptr) {
      whole_->part_ = held_;
      whole_->charge(bytes);
    }
    if (held_ <= most_) return;
    most_ = held_;
    part_of_most_ = part_;
  }
  void begin_stage() {
    most_ = held_;
    part_of_most_ = part_;
    taken_ = 0;
  }
  int64_t held() const { return held_; }
  int64_t most() const { return most_; }
  int64_t taken() const { return taken_; }                // since the stage began, given back or not
  int64_t part_of_most() const { return part_of_most_; }  // of a device that is part of this one

 private:
  static size_t mapped(int64_t bytes) { return static_cast<size_t>(std::max<int64_t>(bytes, 1)); }

  bool host_;
  DryDevice* whole_;
  int64_t held_ = 0, most_ = 0, taken_ = 0, part_ = 0, part_of_most_ = 0;
};

struct DryLinear final : Linear {
  Buffer held;
  LinearPlan plan;
  std::string kind;  // of its calls
  double units = 1;  // its weight, in those that the rate is measured with
  mutable std::map<int64_t, size_t> uses;  // by rows: its place in Booking::shapes
};

struct DryConv final : Conv {
  Buffer held;
  std::string kind;
  double units = 1;
};

// Longer edges than these change no rate, only the time that measuring takes.
constexpr int64_t kLinearEdge = 1024, kConvEdge = 256;

MatrixSource first_rows(const MatrixSource& source, int64_t count) {
  MatrixSource out;
  for (const MatrixSource::Part& part : source.parts) {
    if (out.rows == count) break;
    out.append(part.matrix, part.first, std::min(part.rows, count - out.rows));
  }
  return out;
}

double values_of(const MatrixSource& source) { return static_cast<double>(source.rows * source.cols); }

class Dry final : public DryOps {
 public:
  Dry(Context& context, DryRules rules)
      : context_(context), rules_(std::move(rules)), device_(rules_.host), weights_(rules_.host, &device_) {
    begin_stage("start");
    need(rules_.scratch);
  }

  void begin_stage(const std::string& name) override {
    close_stage();
    booking_.stages.push_back({name, {}, 0, 0, 0});
    device_.begin_stage();
  }
  const Booking& booking() const override {
    const_cast<Dry*>(this)->close_stage();
    return booking_;
  }

  const char* name() const override { return rules_.name.c_str(); }
  Device& device() override { return device_; }
  Context& context() override { return context_; }
  void sync() override {}

  std::unique_ptr<Linear> make_linear(LinearSpec spec) override {
    auto linear = std::make_unique<DryLinear>();
    linear->plan = rules_.linear(spec);
    linear->label = std::move(spec.label);
    linear->in = spec.weight.cols;
    linear->out = spec.weight.rows;
    linear->compute = spec.compute;
    linear->kernel = linear->plan.kernel;
    linear->refusals = linear->plan.refusals;
    linear->bytes = linear->plan.bytes;
    linear->held = weights_.allocate(linear->bytes, linear->label.c_str());
    const std::string kind = std::string(linear->plan.kept_codes ? kPackCodes : "pack ") +
                             row_of(spec.weight.format()).name + " " + name_of(spec.compute);
    book(kind, static_cast<double>(linear->in) * static_cast<double>(linear->out));
    keep_sample(kind, spec.weight);
    measure_with(*linear, spec.weight);
    need(linear->plan.scratch);
    return linear;
  }
  std::unique_ptr<Conv> make_conv(ConvSpec spec) override {
    auto conv = std::make_unique<DryConv>();
    conv->label = spec.label;
    conv->kernel = "conv";
    conv->bytes = rules_.conv_bytes(spec);
    conv->held = weights_.allocate(conv->bytes, conv->label.c_str());
    book("pack conv", static_cast<double>(spec.weight.size()));
    spec.weight = {};
    spec.bias = {};
    conv->spec = std::move(spec);
    measure_with(*conv);
    return conv;
  }

  void copy(const View& src, const View& dst) override { move(src, dst); }
  void fill(const View& dst, float) override { move(dst, dst); }
  void gather_rows(const View&, const View&, const View& dst) override { move(dst, dst); }
  void scatter_rows(const View& src, const View&, const View&) override { move(src, src); }
  void scatter_add_rows(const View& src, const View&, const View&) override { move(src, src); }
  void linear(const Linear& weight, const View& x, const View& y) override;
  void linear_add(const Linear& weight, float, const View& x, const View& y) override { linear(weight, x, y); }
  void linear_scaled(const Linear& weight, float, const View& x, const View& y) override { linear(weight, x, y); }
  void linear_onto(const Linear& weight, const View& x, const View& y) override { linear(weight, x, y); }
  void rms_norm(const View&, const View&, float, NormRounding, const View& y) override { rows(y, 1); }
  void layer_norm(const View&, const View&, const View&, float, const View& y) override { rows(y, 1); }
  void norm_modulate(const View&, const View&, float, const Modulation&, const View& h) override { rows(h, 1); }
  void gated_add(const View& x, const View&, const Gate&) override { rows(x, 0.5); }
  void gate_norm(const View& x, const View&, const Gate&, const View&, float, const Modulation&, const View&) override {
    rows(x, 1.5);
  }
  void head_norm_rope(const View& x, const HeadNorm&, const Rope&) override { rows(x, 1); }
  void swiglu(const View&, const View&, const View& out) override { exponential(out); }
  void silu(const View&, const View& y) override { exponential(y); }
  void gelu(const View&, Gelu, const View& y) override { exponential(y); }
  void add(const View&, const View&, const View& out) override { rows(out, 0.5); }
  void subtract(const View&, const View&, const View& out) override { rows(out, 0.5); }
  void multiply(const View&, const View&, const View& out) override { rows(out, 0.5); }
  void scaled_add(const View& x, const View&, const View&) override { rows(x, 0.5); }
  void lincomb(const View&, const View&, const View&, const View& out) override { rows(out, 0.5); }
  void channel_affine(const View&, const View&, const View&, const View& y) override { rows(y, 0.5); }
  void attention(const AttentionArgs& args) override;
  void sparse_attention(const SparseAttentionArgs& args) override {  // at most what the dense one takes
    attention({args.q, args.k, args.v, args.out, args.scale, false});
  }
  void conv(const Conv& conv, const View& x, const View& y) override;
  void group_norm_silu(const View&, int, const View&, const View&, float, const View& y) override { exponential(y); }
  void snake(const View&, const View&, const View&, const View& y) override { exponential(y); }
  void aa_snake(const View&, const View&, const View&, const View&, const View&, const View& y) override {
    book("snake", static_cast<double>(y.elements()));
  }
  void blend_tile(const TileBlend& args) override { move(args.out, args.out); }
  void to_unit_range(const View&, const View&, const View&, const View& y) override { move(y, y); }
  void quantise_nvfp4(const View& x, const View&, const View&, const View&) override { rows(x, 1); }
  void l1_pair(const View& a, const View&, const View&) override { rows(a, 0.5); }
  void check_finite(const View& x, const View&) override { move(x, x); }

 private:
  void book(const std::string& kind, double amount, double calls = 1) {
    Work& work = booking_.stages.back().work[kind];
    work.calls += calls;
    work.amount += amount;
  }
  void measure_with(DryLinear& linear, const MatrixSource& weight);
  void measure_with(DryConv& conv);
  void move(const View& src, const View& dst) { book("move", static_cast<double>(src.bytes() + dst.bytes())); }
  void rows(const View& view, double passes) {
    book(std::string("rows ") + name_of(view.type), passes * static_cast<double>(view.elements()));
  }
  void exponential(const View& view) {
    book(std::string("exp ") + name_of(view.type), static_cast<double>(view.elements()));
  }
  void keep_sample(const std::string& kind, const MatrixSource& weight) {
    MatrixSource& sample = booking_.samples[kind];
    if (values_of(sample) >= kSampleValues || values_of(sample) >= values_of(weight)) return;
    sample = first_rows(weight, static_cast<int64_t>(kSampleValues) / weight.cols + 1);
  }
  void need(int64_t scratch) {
    if (scratch <= booking_.scratch) return;
    device_.charge(scratch - booking_.scratch);
    booking_.scratch = scratch;
  }
  // The place of a shape that may be there already; without calls when it is new.
  size_t place_of(ShapeUse shape) {
    std::vector<ShapeUse>& all = booking_.shapes;
    const auto found = std::find_if(all.begin(), all.end(), [&](const ShapeUse& known) {
      return known.op == shape.op && known.shape == shape.shape && known.kernel == shape.kernel;
    });
    if (found != all.end()) return static_cast<size_t>(found - all.begin());
    all.push_back(std::move(shape));
    return all.size() - 1;
  }
  void use(size_t place, double calls, double flop) {
    booking_.shapes[place].calls += calls;
    booking_.shapes[place].flop += flop;
  }
  void close_stage() {
    if (booking_.stages.empty()) return;
    StageBooking& stage = booking_.stages.back();
    stage.peak = device_.most();
    stage.weights = device_.part_of_most();
    stage.held = device_.held();
    if (rules_.host && device_.taken() > 0) stage.work["touch"] = {0, static_cast<double>(device_.taken())};
  }

  Context& context_;
  DryRules rules_;
  DryDevice device_, weights_;
  Booking booking_;
  // Places in Booking::shapes by queries, keys, heads, width, causal and kernel.
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, bool, std::string>, size_t> attentions_;
};

// An accelerator is measured with one large weight per type: its libraries reach their rate on any shape.
void Dry::measure_with(DryLinear& linear, const MatrixSource& weight) {
  linear.kind = std::string("linear ") + name_of(linear.compute);
  if (!rules_.host) return;
  MeasuredWeight measured;
  measured.compute = linear.compute;
  if (linear.plan.stored) {
    const int64_t most = std::min(kLinearEdge, static_cast<int64_t>(kSampleValues) / weight.cols + 1);
    measured.stored = first_rows(weight, most);
    measured.in = linear.in;
    measured.out = measured.stored.rows;
    linear.kind += std::string(" ") + row_of(weight.format()).name;
  } else {
    measured.in = std::min(linear.in, kLinearEdge);
    measured.out = std::min(linear.out, kLinearEdge);
  }
  linear.kind += strf(" %lldx%lld", static_cast<long long>(measured.in), static_cast<long long>(measured.out));
  linear.units = values_of(weight) / static_cast<double>(measured.in * measured.out);
  booking_.weights[linear.kind] = std::move(measured);
}

void Dry::measure_with(DryConv& conv) {
  conv.kind = std::string("conv ") + name_of(conv.spec.compute);
  MeasuredWeight measured;
  measured.compute = conv.spec.compute;
  ConvSpec& spec = measured.conv = conv.spec;
  spec.in = measured.in = std::min(spec.in, kConvEdge);
  spec.out = measured.out = std::min(spec.out, kConvEdge);
  conv.kind += strf(" %lldx%lldx", static_cast<long long>(spec.in), static_cast<long long>(spec.out));
  const bool line = spec.kind != ConvKind::conv3d;
  conv.kind += line ? strf("%d", spec.kernel[2]) : strf("%d.%d.%d", spec.kernel[0], spec.kernel[1], spec.kernel[2]);
  const int* stride = spec.stride;
  if (stride[0] * stride[1] * stride[2] > 1) {
    conv.kind +=
        strf("%s%d.%d.%d", spec.kind == ConvKind::transposed1d ? " up " : " down ", stride[0], stride[1], stride[2]);
  }
  conv.units = static_cast<double>(conv.spec.in * conv.spec.out) / static_cast<double>(spec.in * spec.out);
  booking_.weights.emplace(conv.kind, std::move(measured));
}

void Dry::linear(const Linear& weight, const View& x, const View&) {
  const auto& linear = static_cast<const DryLinear&>(weight);
  const int64_t count = x.dim[0];
  const double flop =
      2.0 * static_cast<double>(count) * static_cast<double>(weight.in) * static_cast<double>(weight.out);
  book(linear.kind, flop, linear.units);
  const int64_t most = linear.plan.scratch_rows > 0 ? std::min(count, linear.plan.scratch_rows) : count;
  need(linear.plan.scratch + most * linear.plan.row_scratch);
  auto known = linear.uses.find(count);
  if (known == linear.uses.end()) {
    const std::string shape = strf("%lld x %lld -> %lld", static_cast<long long>(count),
                                   static_cast<long long>(weight.in), static_cast<long long>(weight.out));
    const size_t place = place_of({"linear", weight.label, shape, linear.plan.kernel, linear.plan.refusals, 0, 0});
    known = linear.uses.emplace(count, place).first;
  }
  use(known->second, 1, flop);
}

void Dry::attention(const AttentionArgs& args) {
  const int at = args.q.rank - 3;
  const double batch = at > 0 ? static_cast<double>(args.q.dim[0]) : 1;
  const int64_t queries = args.q.dim[at], heads = args.q.dim[at + 1], width = args.q.dim[at + 2];
  const int64_t keys = args.k.dim[at];
  const double flop = (args.causal ? 2.0 : 4.0) * batch * static_cast<double>(queries) * static_cast<double>(keys) *
                      static_cast<double>(heads * width);
  book(strf("attention %s %lld", name_of(args.q.type), static_cast<long long>(width)), flop, batch);
  need(rules_.scratch + rules_.attention_scratch(args));
  const std::string kernel = args.math == AttentionMath::eight_bit ? "int8, e4m3" : name_of(args.q.type);
  const auto key = std::make_tuple(queries, keys, heads, width, args.causal, kernel);
  auto known = attentions_.find(key);
  if (known == attentions_.end()) {
    const std::string shape =
        strf("%lld x %lld, %lld heads of %lld%s", static_cast<long long>(queries), static_cast<long long>(keys),
             static_cast<long long>(heads), static_cast<long long>(width), args.causal ? ", causal" : "");
    known = attentions_.emplace(key, place_of({"attention", "", shape, kernel, {}, 0, 0})).first;
  }
  use(known->second, batch, flop);
}

void Dry::conv(const Conv& conv, const View&, const View& y) {
  const ConvSpec& spec = conv.spec;
  double taps = static_cast<double>(spec.in) * spec.kernel[0] * spec.kernel[1] * spec.kernel[2];
  if (spec.kind == ConvKind::transposed1d) taps /= spec.stride[2];
  const auto& dry = static_cast<const DryConv&>(conv);
  book(dry.kind, 2 * taps * static_cast<double>(y.elements()), dry.units);
}

}  // namespace

double int8_weight_error(const MatrixSource& rows) {
  std::vector<float> row(static_cast<size_t>(rows.cols));
  double error = 0, norm = 0;
  for (int64_t r = 0; r < rows.rows; ++r) {
    rows.decode_rows(r, 1, row.data());
    const float absmax = absmax_of(row.data(), rows.cols);
    const float scale = int8_row_scale(absmax), inverse = int8_row_inverse(absmax);
    for (const float value : row) {
      const double d = static_cast<double>(value) - scale * static_cast<float>(int8_row_quantise(value, inverse));
      error += d * d;
      norm += static_cast<double>(value) * value;
    }
  }
  return norm > 0 ? std::sqrt(error / norm) : 0;
}

std::unique_ptr<DryOps> make_dry_ops(Context& context, DryRules rules) {
  return std::make_unique<Dry>(context, std::move(rules));
}

}  // namespace h3
