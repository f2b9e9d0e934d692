#include "ops/counting.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ops/values.h"

namespace h3 {
namespace {

class CountingDevice final : public Device, public HoldsNoValues {
 public:
  const char* name() const override { return "counting"; }
  bool is_host() const override { return false; }
  Buffer allocate(int64_t bytes, const char*) override {
    const int64_t rounded = std::max<int64_t>((bytes + 255) / 256 * 256, 256);
    count_taken(rounded);
    return Buffer(this, reinterpret_cast<void*>(uintptr_t{256}), rounded);
  }
  void release(void*, int64_t bytes) noexcept override { count_given(bytes); }
  void upload(const void*, View) override {}
  void download(View source, void* host) override { std::memset(host, 0, static_cast<size_t>(source.bytes())); }
};

struct CountedLinear final : Linear {
  Buffer memory, bias;
};

struct CountedConv final : Conv {
  Buffer memory;
};

// Two slots of the largest group, from the first use on (ops.h).
struct CountedSlots {
  int64_t largest = 0;
  Buffer slots[2];
};

class CountedGroup final : public WeightGroup {
 public:
  CountedGroup(Device& device, std::shared_ptr<CountedSlots> slots) : device_(device), slots_(std::move(slots)) {}
  void prefetch() override { enter(); }
  void enter() override {
    slots_->largest = std::max(slots_->largest, bytes);
    for (Buffer& slot : slots_->slots) {
      if (slot.bytes() >= slots_->largest) continue;
      slot = Buffer();
      slot = device_.allocate(slots_->largest, "a layer of streamed weights");
    }
  }
  void leave() override {}
  void add(int64_t count) {
    bytes += (count + 255) / 256 * 256;
    slots_->largest = std::max(slots_->largest, bytes);
  }

 private:
  Device& device_;
  std::shared_ptr<CountedSlots> slots_;
};

class Counter final : public CountingOps {
 public:
  explicit Counter(Ops& real) : real_(real) {}
  int64_t host_bytes() const override { return host_bytes_; }
  const char* name() const override { return "counting"; }
  Device& device() override { return device_; }
  Context& context() override { return real_.context(); }
  void sync() override {}

  std::unique_ptr<Linear> make_linear(LinearSpec spec) override {
    auto linear = std::make_unique<CountedLinear>();
    linear->label = std::move(spec.label);
    linear->in = spec.weight.cols;
    linear->out = spec.weight.rows;
    linear->compute = spec.compute;
    const int64_t bytes = real_.linear_bytes(spec.weight, spec.compute);
    const int64_t expansion = real_.expansion_bytes(spec.weight, spec.compute);
    if (expansion > expansion_.bytes()) {
      expansion_ = Buffer();
      expansion_ = device_.allocate(expansion, "kernel scratch");
    }
    if (spec.group != nullptr) {
      const bool made = spec.weight.format() == Format::noise && spec.compute != Compute::int8;  // where it is used
      // Other bytes than the file's are multiplied (scales of the rows aside): a copy waits in memory of the host.
      if (!made && std::abs(bytes - spec.weight.stored_bytes()) > 8 * spec.weight.rows) host_bytes_ += bytes;
      static_cast<CountedGroup*>(spec.group)->add(bytes);
    } else {
      linear->memory = device_.allocate(bytes, "weights");
    }
    if (!spec.bias.empty()) linear->bias = device_.allocate(6 * linear->out, "weights");
    linear->bytes = linear->memory.bytes() + linear->bias.bytes();
    return linear;
  }
  std::unique_ptr<WeightGroup> make_group() override {
    std::shared_ptr<CountedSlots> slots = slots_.lock();
    if (slots == nullptr) {
      slots = std::make_shared<CountedSlots>();
      slots_ = slots;
    }
    return std::make_unique<CountedGroup>(device_, std::move(slots));
  }
  std::unique_ptr<Conv> make_conv(ConvSpec spec) override {
    auto conv = std::make_unique<CountedConv>();
    conv->label = spec.label;
    conv->memory = device_.allocate(4 * static_cast<int64_t>(spec.weight.size() + spec.bias.size()), "weights");
    conv->bytes = conv->memory.bytes();
    conv->spec = std::move(spec);
    conv->spec.weight = {};
    conv->spec.bias = {};
    return conv;
  }
  int64_t linear_bytes(const MatrixSource& weight, Compute compute) const override {
    return real_.linear_bytes(weight, compute);
  }
  int64_t scratch_bytes(Compute compute) const override { return real_.scratch_bytes(compute); }
  bool multiplies_float8() const override { return real_.multiplies_float8(); }
  std::string refuses_nvfp4() const override { return real_.refuses_nvfp4(); }
  bool reads_weights() const override { return false; }

  void copy(const View&, const View&) override {}
  void fill(const View&, float) override {}
  void gather_rows(const View&, const View&, const View&) override {}
  void scatter_rows(const View&, const View&, const View&) override {}
  void scatter_add_rows(const View&, const View&, const View&) override {}
  void linear(const Linear&, const View&, const View&) override {}
  void linear_add(const Linear&, float, const View&, const View&) override {}
  void linear_scaled(const Linear&, float, const View&, const View&) override {}
  void linear_onto(const Linear&, const View&, const View&) override {}
  void quantise_nvfp4(const View&, const View&, const View&, const View&) override {}
  void rms_norm(const View&, const View&, float, NormRounding, const View&) override {}
  void layer_norm(const View&, const View&, const View&, float, const View&) override {}
  void norm_modulate(const View&, const View&, float, const Modulation&, const View&) override {}
  void gated_add(const View&, const View&, const Gate&) override {}
  void gate_norm(const View&, const View&, const Gate&, const View&, float, const Modulation&, const View&) override {}
  void head_norm_rope(const View&, const HeadNorm&, const Rope&) override {}
  void swiglu(const View&, const View&, const View&) override {}
  void silu(const View&, const View&) override {}
  void gelu(const View&, Gelu, const View&) override {}
  void add(const View&, const View&, const View&) override {}
  void subtract(const View&, const View&, const View&) override {}
  void multiply(const View&, const View&, const View&) override {}
  void scaled_add(const View&, const View&, const View&) override {}
  void lincomb(const View&, const View&, const View&, const View&) override {}
  void channel_affine(const View&, const View&, const View&, const View&) override {}
  void attention(const AttentionArgs&) override {}
  void sparse_attention(const SparseAttentionArgs&) override {}
  void conv(const Conv&, const View&, const View&) override {}
  void group_norm_silu(const View&, int, const View&, const View&, float, const View&) override {}
  void snake(const View&, const View&, const View&, const View&) override {}
  void aa_snake(const View&, const View&, const View&, const View&, const View&, const View&) override {}
  void blend_tile(const TileBlend&) override {}
  void to_unit_range(const View&, const View&, const View&, const View&) override {}
  void l1_pair(const View&, const View&, const View&) override {}
  void check_finite(const View&, const View&) override {}

 private:
  Ops& real_;
  CountingDevice device_;
  std::weak_ptr<CountedSlots> slots_;
  Buffer expansion_;
  int64_t host_bytes_ = 0;
};

}  // namespace

std::unique_ptr<CountingOps> make_counting(Ops& real) { return std::make_unique<Counter>(real); }

}  // namespace h3
