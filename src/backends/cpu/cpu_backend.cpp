#include "backends/cpu/cpu_backend.h"

#include <algorithm>

#include "backends/cpu/matmul.h"

namespace h3 {

isa::Elem elem_of(DType type) {
  H3_ASSERT(type == DType::f32 || type == DType::bf16 || type == DType::f16);
  return type == DType::f32 ? isa::Elem::f32 : (type == DType::bf16 ? isa::Elem::bf16 : isa::Elem::f16);
}

CpuOps::CpuOps(Context& context, IsaLevel level, const std::string& forced_linear)
    : context_(context),
      level_(level),
      kernels_(kernels_of(level)),
      name_(cpu_name(forced_linear)),
      forced_linear_(forced_linear) {
  if (!forced_linear_.empty()) check_forced_matmul(forced_linear_, level_);
}

void CpuOps::need_shared(int64_t bytes) {
  if (shared_.bytes() >= bytes) return;
  shared_ = Buffer();
  shared_ = device_.allocate(bytes, "scratch of the CPU back end");
}

void CpuOps::need_local(int64_t bytes_per_thread) {
  if (local_bytes_ >= bytes_per_thread) return;
  local_ = Buffer();
  local_bytes_ = round_up(bytes_per_thread, 2 << 20);
  local_ = device_.allocate(local_bytes_ * context_.pool.threads(), "per-thread scratch of the CPU back end");
}

void CpuOps::for_row_pieces(int64_t rows, int64_t length, const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kPiece = 32768;
  const int64_t step = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, length));
  context_.pool.parallel(ceil_div(rows, step), [&](int64_t i) { body(i * step, std::min(rows, (i + 1) * step)); });
}

std::unique_ptr<Ops> make_cpu_ops(Context& context, const std::string& forced_linear) {
  return make_cpu_ops(context, chosen_isa_level(), forced_linear);
}

std::unique_ptr<Ops> make_cpu_ops(Context& context, IsaLevel level, const std::string& forced_linear) {
  if (level > host_isa_level()) {
    fail(Code::device, "the processor has no %s; it has %s", name_of(level), name_of(host_isa_level()));
  }
  return std::make_unique<CpuOps>(context, level, forced_linear);
}

std::string cpu_isa_detail() {
  return std::string(name_of(chosen_isa_level())) + " (host: " + name_of(host_isa_level()) + ")";
}

}  // namespace h3
