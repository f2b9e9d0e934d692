// Norms, gates and element-wise operations: shapes and strides here, arithmetic in isa/.
#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/runs.h"

namespace h3 {
namespace {

using isa::Binary;
using isa::Unary;

const float* vector_f32(const View& v, int64_t n) {
  if (v.empty()) return nullptr;
  H3_ASSERT(v.rank == 1 && v.dim[0] == n && (v.stride[0] == 1 || n == 1));
  return host<float>(v);
}

isa::ConstRows rows_of(const View& v) {
  H3_ASSERT(v.rank == 2 && (v.stride[1] == 1 || v.dim[1] == 1));
  return {v.data, v.stride[0]};
}

const int32_t* ids_of(const View& ids, int64_t rows, int64_t table) {
  H3_ASSERT(ids.rank == 1 && ids.dim[0] == rows && (ids.stride[0] == 1 || rows == 1));
  const int32_t* p = host<int32_t>(ids);
  for (int64_t i = 0; i < rows; ++i) H3_ASSERT(p[i] >= 0 && p[i] < table);
  return p;
}

}  // namespace

// Rows of any rank: the runs of x and y whose last axis is contiguous, one call per run when rows are not evenly
// spaced.
static isa::NormArgs norm_args(const View& x, const View& w, const View& b, float eps, const View& y) {
  isa::NormArgs args;
  args.x_type = elem_of(x.type);
  args.type = elem_of(y.type);
  args.cols = x.dim[x.rank - 1];
  args.w = vector_f32(w, args.cols);
  args.b = vector_f32(b, args.cols);
  args.eps = eps;
  return args;
}

using RowKernel = void (*)(const isa::NormArgs&, isa::Span);

static void run_norm(ThreadPool& pool, isa::NormArgs args, const View& x, const View& y, RowKernel kernel) {
  const int last = x.rank - 1;
  H3_ASSERT(x.rank >= 1 && (x.stride[last] == 1 || x.dim[last] == 1) && (y.stride[last] == 1 || y.dim[last] == 1));
  if (x.elements() == 0) return;
  const View x_rows = x.select(last, 0), y_rows = y.select(last, 0);
  const Runs<2> rows({&x_rows, &y_rows});
  const int64_t total = x_rows.elements(), step = std::max<int64_t>(1, 32768 / args.cols);
  pool.parallel(ceil_div(total, step), [&](int64_t task) {
    isa::NormArgs one = args;
    for (int64_t r = task * step; r < std::min(total, (task + 1) * step); ++r) {
      const auto p = rows.at(r / rows.length(), r % rows.length());
      one.x = {p[0], 0};
      one.y = {p[1], 0};
      kernel(one, {0, 1});
    }
  });
}

void CpuOps::rms_norm(const View& x, const View& w, float eps, NormRounding rounding, const View& y) {
  isa::NormArgs args = norm_args(x, w, View(), eps, y);
  args.twice = rounding == NormRounding::twice;
  run_norm(context_.pool, args, x, y, kernels_.pointwise->rms_norm);
}

void CpuOps::layer_norm(const View& x, const View& w, const View& b, float eps, const View& y) {
  run_norm(context_.pool, norm_args(x, w, b, eps, y), x, y, kernels_.pointwise->layer_norm);
}

void CpuOps::gated(const isa::GateNormArgs& args, int64_t rows) {
  for_row_pieces(rows, args.norm.cols, [&](int64_t begin, int64_t end) {
    kernels_.pointwise->gate_norm(args, {begin, end});
  });
}

static void set_modulation(isa::GateNormArgs& args, const View& x, const Modulation& mod, const View& h) {
  H3_ASSERT(h.dim[0] == x.dim[0] && h.dim[1] == x.dim[1] && mod.shift.dim[1] == x.dim[1] &&
            mod.scale.dim[1] == x.dim[1]);
  H3_ASSERT(mod.shift.type == h.type && mod.scale.type == h.type && (x.type == h.type || x.type == DType::f32));
  args.shift = rows_of(mod.shift);
  args.scale = rows_of(mod.scale);
  args.ids = ids_of(mod.ids, x.dim[0], std::min(mod.shift.dim[0], mod.scale.dim[0]));
  args.norm.y = {h.data, rows_of(h).stride};
}

static void set_gate(isa::GateNormArgs& args, const View& x, const View& y, const Gate& gate) {
  H3_ASSERT(y.dim[0] == x.dim[0] && y.dim[1] == x.dim[1] && gate.gate.dim[1] == x.dim[1]);
  H3_ASSERT(y.type == x.type && gate.gate.type == x.type);
  args.residual = {x.data, x.stride[0]};
  args.branch = rows_of(y);
  args.gate = rows_of(gate.gate);
  args.gate_ids = ids_of(gate.ids, x.dim[0], gate.gate.dim[0]);
}

void CpuOps::norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, const View& h) {
  isa::GateNormArgs args;
  args.norm = norm_args(x, w, View(), eps, h);
  args.norm.x = rows_of(x);
  set_modulation(args, x, mod, h);
  gated(args, x.dim[0]);
}

void CpuOps::gated_add(const View& x, const View& y, const Gate& gate) {
  isa::GateNormArgs args;
  args.norm = norm_args(x, View(), View(), 0, x);
  args.norm.x = rows_of(x);
  args.has_norm = false;
  set_gate(args, x, y, gate);
  gated(args, x.dim[0]);
}

void CpuOps::gate_norm(const View& x, const View& y, const Gate& gate, const View& w, float eps, const Modulation& mod,
                       const View& h) {
  isa::GateNormArgs args;
  args.norm = norm_args(x, w, View(), eps, h);
  args.norm.x = rows_of(x);
  set_modulation(args, x, mod, h);
  set_gate(args, x, y, gate);
  gated(args, x.dim[0]);
}

void CpuOps::head_norm_rope(const View& x, const HeadNorm& norm, const Rope& rope) {
  H3_ASSERT(x.rank == 3 && (x.stride[2] == 1 || x.dim[2] == 1));
  isa::HeadArgs args;
  args.type = elem_of(x.type);
  args.heads = x.dim[1];
  args.dim = x.dim[2];
  args.x = x.data;
  args.row_stride = x.stride[0];
  args.head_stride = x.stride[1];
  args.norm = norm.enabled;
  args.twice = norm.rounding == NormRounding::twice;
  args.w = vector_f32(norm.w, args.dim);
  args.eps = norm.eps;
  if (!rope.cos.empty()) {
    H3_ASSERT(rope.cos.dim[0] == x.dim[0] && rope.sin.dim[0] == x.dim[0] && rope.cos.dim[1] == rope.sin.dim[1]);
    args.pairs = rope.cos.dim[1];
    H3_ASSERT(2 * args.pairs <= args.dim);
    rows_of(rope.cos), rows_of(rope.sin);
    args.cos = host<float>(rope.cos);
    args.sin = host<float>(rope.sin);
    args.cos_stride = rope.cos.stride[0];
    args.sin_stride = rope.sin.stride[0];
    args.rope_once = rope.rounding == RopeRounding::once;
  }
  for_row_pieces(x.dim[0], args.heads * args.dim, [&](int64_t begin, int64_t end) {
    kernels_.pointwise->head_norm_rope(args, {begin, end});
  });
}

static void run_unary(ThreadPool& pool, const isa::Level& kernels, Unary op, const View& x, const View& y) {
  H3_ASSERT(x.type == y.type);
  Runs<2>({&x, &y}).parallel(pool, [&](const auto& p, int64_t n, int64_t, int64_t) {
    kernels.pointwise->unary(op, elem_of(x.type), p[0], p[1], n);
  });
}

static void run_binary(ThreadPool& pool, const isa::Level& kernels, Binary op, const View& a, const View& b,
                       const View& out) {
  H3_ASSERT(a.type == b.type && a.type == out.type);
  Runs<3>({&a, &b, &out}).parallel(pool, [&](const auto& p, int64_t n, int64_t, int64_t) {
    kernels.pointwise->binary(op, elem_of(a.type), p[0], p[1], p[2], n);
  });
}

void CpuOps::swiglu(const View& gate, const View& value, const View& out) {
  run_binary(context_.pool, kernels_, Binary::swiglu, gate, value, out);
}
void CpuOps::silu(const View& x, const View& y) { run_unary(context_.pool, kernels_, Unary::silu, x, y); }
void CpuOps::gelu(const View& x, Gelu kind, const View& y) {
  run_unary(context_.pool, kernels_, kind == Gelu::tanh ? Unary::gelu_tanh : Unary::gelu_erf, x, y);
}
void CpuOps::add(const View& x, const View& y, const View& out) {
  run_binary(context_.pool, kernels_, Binary::add, x, y, out);
}
void CpuOps::subtract(const View& x, const View& y, const View& out) {
  run_binary(context_.pool, kernels_, Binary::subtract, x, y, out);
}
void CpuOps::multiply(const View& x, const View& y, const View& out) {
  run_binary(context_.pool, kernels_, Binary::multiply, x, y, out);
}

void CpuOps::scaled_add(const View& x, const View& y, const View& scale) {
  H3_ASSERT(x.rank == 2 && y.rank == 2 && x.dim[0] == y.dim[0] && x.dim[1] == y.dim[1]);
  H3_ASSERT(x.type == y.type || x.type == DType::f32);
  const isa::ConstRows xs = rows_of(x), ys = rows_of(y);
  const int64_t n = x.dim[1];
  const float* s = vector_f32(scale, n);
  for_row_pieces(x.dim[0], n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      kernels_.pointwise->scaled_add(elem_of(x.type), x.data + r * xs.stride * size_of(x.type), elem_of(y.type),
                                     y.data + r * ys.stride * size_of(y.type), s, n);
    }
  });
}

void CpuOps::lincomb(const View& c, const View& a, const View& b, const View& out) {
  H3_ASSERT(a.type == DType::f32 && b.type == DType::f32 && out.type == DType::f32 && c.dim[0] == 2);
  const float c0 = host<float>(c)[0], c1 = host<float>(c)[c.stride[0]];
  Runs<3>({&a, &b, &out}).parallel(context_.pool, [&](const auto& p, int64_t n, int64_t, int64_t) {
    kernels_.pointwise->lincomb(c0, reinterpret_cast<const float*>(p[0]), c1, reinterpret_cast<const float*>(p[1]),
                                reinterpret_cast<float*>(p[2]), n);
  });
}

void CpuOps::channel_affine(const View& x, const View& std, const View& mean, const View& y) {
  H3_ASSERT(x.type == DType::f32 && y.type == DType::f32 && x.rank >= 1 && x.dim[0] == y.dim[0]);
  const float* s = vector_f32(std, x.dim[0]);
  const float* m = vector_f32(mean, x.dim[0]);
  for (int64_t c = 0; c < x.dim[0]; ++c) {
    const View from = x.select(0, c), to = y.select(0, c);
    Runs<2>({&from, &to}).parallel(context_.pool, [&](const auto& p, int64_t n, int64_t, int64_t) {
      kernels_.pointwise->affine(reinterpret_cast<const float*>(p[0]), s[c], m[c], reinterpret_cast<float*>(p[1]), n);
    });
  }
}

void CpuOps::snake(const View& x, const View& a, const View& inv, const View& y) {
  H3_ASSERT(x.rank == 2 && x.type == y.type && x.dim[0] == y.dim[0] && x.dim[1] == y.dim[1]);
  const isa::ConstRows xs = rows_of(x), ys = rows_of(y);
  const float* factor = vector_f32(a, x.dim[0]);
  const float* inverse = vector_f32(inv, x.dim[0]);
  const int64_t n = x.dim[1], pieces = ceil_div(n, Runs<2>::kPiece);
  context_.pool.parallel(x.dim[0] * pieces, [&](int64_t task) {
    const int64_t c = task / pieces, offset = task % pieces * Runs<2>::kPiece, size = size_of(x.type);
    kernels_.pointwise->snake(elem_of(x.type), x.data + (c * xs.stride + offset) * size, factor[c], inverse[c],
                              y.data + (c * ys.stride + offset) * size, std::min(Runs<2>::kPiece, n - offset));
  });
}

void CpuOps::aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down, const View& y) {
  H3_ASSERT(x.rank == 2 && x.type == y.type && x.dim[0] == y.dim[0] && x.dim[1] == y.dim[1]);
  const isa::ConstRows xs = rows_of(x), ys = rows_of(y);
  const float* factor = vector_f32(a, x.dim[0]);
  const float* inverse = vector_f32(inv, x.dim[0]);
  const float* up_taps = vector_f32(up, 12);
  const float* down_taps = vector_f32(down, 12);
  context_.pool.parallel(x.dim[0], [&](int64_t c) {
    const int64_t size = size_of(x.type);
    kernels_.pointwise->aa_snake(elem_of(x.type), x.data + c * xs.stride * size, factor[c], inverse[c], up_taps,
                                 down_taps, y.data + c * ys.stride * size, x.dim[1]);
  });
}

void CpuOps::group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps, const View& y) {
  H3_ASSERT(x.rank == 4 && x.type == y.type && groups > 0 && x.dim[0] % groups == 0);
  const int64_t channels = x.dim[0] / groups, frames = x.dim[1], area = x.dim[2] * x.dim[3];
  const float* weight = vector_f32(w, x.dim[0]);
  const float* bias = vector_f32(b, x.dim[0]);
  H3_ASSERT(weight != nullptr && bias != nullptr);
  if (x.elements() == 0) return;
  const isa::Elem type = elem_of(x.type);
  context_.pool.parallel(groups * frames, [&](int64_t task) {
    const int64_t first = task / frames * channels, frame = task % frames;
    const View from = x.slice(0, first, channels).select(1, frame), to = y.slice(0, first, channels).select(1, frame);
    const auto plane = [&](int64_t c, auto body) {  // contiguous pieces of channel c, at most 4096 elements
      const View in = from.select(0, c), out = to.select(0, c);
      const Runs<2> runs({&in, &out});
      for (int64_t run = 0; run < runs.count(); ++run) {
        for (int64_t o = 0; o < runs.length(); o += 4096)
          body(runs.at(run, o), std::min<int64_t>(4096, runs.length() - o));
      }
    };
    const auto total = [&](float around, bool squared) {
      double sum = 0;
      for (int64_t c = 0; c < channels; ++c) {
        plane(c, [&](const auto& p, int64_t n) {
          float s = 0, q = 0;
          kernels_.pointwise->moments(type, p[0], around, n, &s, &q);
          sum += static_cast<double>(squared ? q : s);
        });
      }
      return sum / static_cast<double>(channels * area);
    };
    const float mean = static_cast<float>(total(0, false));
    const double variance = total(mean, true);
    const float inv = static_cast<float>(1 / std::sqrt(variance + static_cast<double>(eps)));
    for (int64_t c = 0; c < channels; ++c) {
      plane(c, [&](const auto& p, int64_t n) {
        kernels_.pointwise->affine_silu(type, p[0], mean, inv * weight[first + c], bias[first + c], p[1], n);
      });
    }
  });
}

}  // namespace h3
