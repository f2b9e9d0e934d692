#include "backends/cpu/plan.h"

#include <algorithm>

#include "backends/cpu/matmul.h"
#include "backends/cpu/packed.h"

namespace h3 {
namespace {

// As attention.cpp and linear.cpp size theirs; a thread's share is rounded up to a huge page.
constexpr int64_t kThreadScratch = int64_t{2} << 20;
constexpr int64_t kPackedRows = 2048;
constexpr int64_t kPackedKeys = int64_t{96} << 20;

LinearPlan plan_linear(const LinearSpec& spec, IsaLevel level, int64_t threads, const std::string& forced) {
  const int64_t in = spec.weight.cols, out = spec.weight.rows;
  const LinearChoice choice = choose_linear(spec, level, forced);
  const isa::Gemm& gemm = *choice.gemm;
  LinearPlan plan;
  plan.kernel = choice.kernel;
  plan.refusals = choice.refusals;
  const Packed layout(gemm, false, out, in);
  const int64_t scales = gemm.integer ? layout.panels() * gemm.nr * 8 : 0;
  // Weights that stay in their format stay in the mapped file.
  plan.stored = choice.expands;
  plan.bytes = (choice.expands ? 0 : layout.bytes()) + scales + static_cast<int64_t>(spec.bias.size()) * 4;
  plan.kept_codes = choice.rotation > 0;
  const int64_t staged = plan.kept_codes ? std::max(gemm.nr, gemm.mr) : gemm.nr;
  plan.scratch = threads * (kThreadScratch + staged * in * 4);
  if (choice.expands) {  // a block of its columns beside the block of the result
    const int64_t result = int64_t{4} * gemm.block_rows * gemm.block_cols;
    const int64_t block = Packed(gemm, false, gemm.block_cols, in).bytes() + result;
    plan.scratch = std::max(plan.scratch, threads * ((block + gemm.nr * in * 4) / kThreadScratch + 1) * kThreadScratch);
  }
  plan.row_scratch = Packed(gemm, true, gemm.mr, in).bytes() / gemm.mr + 8;
  plan.scratch_rows = kPackedRows;
  return plan;
}

int64_t conv_bytes(const ConvSpec& spec, IsaLevel level) {
  const isa::Level kernels = kernels_of(level);
  const isa::Gemm& gemm = spec.compute == Compute::bf16 ? *kernels.bf16 : *kernels.f32;
  const int64_t phases = spec.kind == ConvKind::transposed1d ? spec.stride[2] : 1;
  const int64_t taps = int64_t{1} * spec.kernel[0] * spec.kernel[1] * spec.kernel[2];
  return phases * Packed(gemm, true, spec.out, spec.in * ((taps + phases - 1) / phases)).bytes();
}

// Keys and values of as many heads as fit the budget.
int64_t attention_scratch(const AttentionArgs& args) {
  const int64_t bytes = (args.k.elements() + args.v.elements()) * size_of(args.k.type);
  return std::min(bytes, kPackedKeys);
}

}  // namespace

DryRules cpu_dry_rules(Context& context, const std::string& forced_linear) {
  const IsaLevel level = chosen_isa_level();
  const int64_t threads = context.pool.threads();
  DryRules rules;
  rules.name = cpu_name(forced_linear);
  rules.scratch = threads * kThreadScratch;
  rules.linear = [=](const LinearSpec& spec) { return plan_linear(spec, level, threads, forced_linear); };
  rules.conv_bytes = [level](const ConvSpec& spec) { return conv_bytes(spec, level); };
  rules.attention_scratch = attention_scratch;
  return rules;
}

}  // namespace h3
