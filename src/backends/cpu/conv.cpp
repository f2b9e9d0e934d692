// Convolutions as matrix products with implicit im2col: the weight is the packed left operand [O, K], a task gathers
// the columns of a block of output positions, a slice of K at a time, into its own scratch.
//
// K runs over (input channel, kt, kh, kw) in the order of torch's weights. A transposed convolution of stride u is u
// ordinary convolutions, one per output phase.
#include <algorithm>
#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/packed.h"
#include "codec/scalar.h"

namespace h3 {
namespace {

constexpr int64_t kBlockPositions = 256;  // output positions of a task
constexpr int64_t kResultBytes = int64_t{1} << 20;

// One ordinary convolution; a transposed one has as many as its stride.
struct Phase {
  Buffer packed;
  Packed layout;  // of the weight, as the left operand
  int64_t k = 0;  // I * taps
  int taps[3] = {1, 1, 1};
};

struct CpuConv final : Conv {
  const isa::Gemm* gemm = nullptr;
  std::vector<Phase> phases;
  std::vector<float> bias;
  int64_t out_rows = 0, block_positions = 0, block_out = 0;

  int64_t slice_k() const { return int64_t{1} * gemm->slice_steps * gemm->kr; }
};

struct Geometry {
  int64_t in_dim[3], out_dim[3];
  int64_t in_stride[4];  // elements: channel, t, h, w
  int64_t out_stride[4];
  int64_t before[3];     // position p of an axis reads input p * stride - before + tap * dilation
  int64_t positions;     // of this phase
  int64_t phase_dim[3];  // extents of the positions
  int64_t first, step;   // along w of the output: position p goes to first + p * step
};

struct TaskScratch {
  float* columns;  // [k of a slice][block positions]
  std::byte* b;
  float* c;     // [block_out][block positions]
  float* line;  // one row of results, for strided stores
  int64_t bytes;
  TaskScratch(std::byte* base, const CpuConv& conv) {
    Carver carver(base);
    columns = carver.take<float>(conv.slice_k() * conv.block_positions);
    b = carver.take<std::byte>(Packed(*conv.gemm, false, conv.block_positions, conv.slice_k()).bytes());
    c = carver.take<float>(conv.block_out * conv.block_positions);
    line = carver.take<float>(conv.block_positions);
    bytes = carver.used();
  }
};

float saturated_f16(float value) {
  const float limit = 65504.0f;
  return f16_to_f32(f32_to_f16(value > limit ? limit : value < -limit ? -limit : value));
}

int64_t reflected(int64_t i, int64_t n) {
  if (n == 1) return 0;
  while (i < 0 || i >= n) i = i < 0 ? -i : 2 * (n - 1) - i;
  return i;
}

// Index on an axis, or -1 for a zero.
int64_t source_index(int64_t i, int64_t n, bool reflect) {
  if (i >= 0 && i < n) return i;
  return reflect ? reflected(i, n) : -1;
}

float load_scalar(const std::byte* p, DType type, int64_t i) {
  if (type == DType::f32) return reinterpret_cast<const float*>(p)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(p)[i];
  return type == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// count positions along w from `w0` of one (channel, t, h) line, for one tap; line null = zeros.
void gather_line(const isa::Level& kernels, const CpuConv& conv, const Geometry& g, const std::byte* line, DType type,
                 int64_t start, int64_t stride, int64_t count, float* out) {
  if (line == nullptr) {
    std::fill_n(out, count, 0.0f);
    return;
  }
  const bool reflect = conv.spec.spatial_pad == Pad::reflect;
  const int64_t n = g.in_dim[2], step = g.in_stride[3];
  int64_t i = 0;
  for (; i < count && start + i * stride < 0; ++i) {
    const int64_t w = source_index(start + i * stride, n, reflect);
    out[i] = w < 0 ? 0.0f : load_scalar(line, type, w * step);
  }
  int64_t inside = start + i * stride >= n ? 0 : std::min(count - i, (n - 1 - start - i * stride) / stride + 1);
  if (stride == 1 && step == 1) {
    if (inside > 0) {
      kernels.pointwise->convert(elem_of(type), line + (start + i) * size_of(type), isa::Elem::f32, out + i, inside);
    }
    i += std::max<int64_t>(inside, 0);
  } else {
    for (; inside > 0; --inside, ++i) out[i] = load_scalar(line, type, (start + i * stride) * step);
  }
  for (; i < count; ++i) {
    const int64_t w = source_index(start + i * stride, n, reflect);
    out[i] = w < 0 ? 0.0f : load_scalar(line, type, w * step);
  }
}

// columns[k - k0][p] for k in [k0, k0 + count) and positions [p0, p0 + width).
void gather_columns(const isa::Level& kernels, const CpuConv& conv, const Phase& phase, const Geometry& g,
                    const View& x, int64_t k0, int64_t count, int64_t p0, int64_t width, float* columns) {
  const int* taps = phase.taps;
  const int* stride = conv.spec.stride;
  const int* dilation = conv.spec.dilation;
  const bool transposed = conv.spec.kind == ConvKind::transposed1d;
  const bool reflect = conv.spec.spatial_pad == Pad::reflect;
  for (int64_t k = k0; k < k0 + count; ++k) {
    const int64_t dw = k % taps[2], dh = k / taps[2] % taps[1], dt = k / taps[2] / taps[1] % taps[0];
    const std::byte* channel = x.data + k / taps[2] / taps[1] / taps[0] * g.in_stride[0] * size_of(x.type);
    float* out = columns + (k - k0) * conv.block_positions;
    for (int64_t done = 0; done < width;) {
      const int64_t p = p0 + done, w = p % g.phase_dim[2], h = p / g.phase_dim[2] % g.phase_dim[1];
      const int64_t t = p / g.phase_dim[2] / g.phase_dim[1], run = std::min(width - done, g.phase_dim[2] - w);
      const int64_t it = source_index(t * stride[0] - g.before[0] + dt * dilation[0], g.in_dim[0], false);
      const int64_t ih = source_index(h * stride[1] - g.before[1] + dh * dilation[1], g.in_dim[1], reflect);
      const std::byte* line =
          it < 0 || ih < 0 ? nullptr : channel + (it * g.in_stride[1] + ih * g.in_stride[2]) * size_of(x.type);
      // A phase of a transposed convolution reads backwards: tap q of position m meets input m - q.
      const int64_t start = transposed ? w - g.before[2] - dw : w * stride[2] - g.before[2] + dw * dilation[2];
      gather_line(kernels, conv, g, line, x.type, start, transposed ? 1 : stride[2], run, out + done);
      done += run;
    }
    if (conv.spec.compute == Compute::f16 && x.type != DType::f16) {
      for (int64_t i = 0; i < width; ++i) out[i] = saturated_f16(out[i]);
    }
  }
}

// n elements of `size` bytes to places `stride` elements apart.
void spread(const void* from, std::byte* to, int64_t size, int64_t n, int64_t stride) {
  if (size == 4) {
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<uint32_t*>(to)[i * stride] = static_cast<const uint32_t*>(from)[i];
  } else {
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<uint16_t*>(to)[i * stride] = static_cast<const uint16_t*>(from)[i];
  }
}

// Rows [first, first + rows) of the result block to y.
void store_block(const isa::Level& kernels, const CpuConv& conv, const Geometry& g, const TaskScratch& s, int64_t first,
                 int64_t rows, int64_t p0, int64_t width, const View& y) {
  isa::StoreArgs store;
  set_layout(store, *conv.gemm, row_major_result(*conv.gemm, conv.block_positions));
  for (int64_t done = 0; done < width;) {
    const int64_t p = p0 + done, w = p % g.phase_dim[2], line = p / g.phase_dim[2];
    const int64_t run = std::min(width - done, g.phase_dim[2] - w);
    const int64_t offset = line / g.phase_dim[1] * g.out_stride[1] + line % g.phase_dim[1] * g.out_stride[2] +
                           (g.first + w * g.step) * g.out_stride[3];
    store.c = s.c + done;
    store.cols = run;
    store.row_bias = conv.bias.empty() ? nullptr : conv.bias.data() + first;
    std::byte* out = y.data + (first * g.out_stride[0] + offset) * size_of(y.type);
    if (g.step == 1 && g.out_stride[3] == 1) {
      store.rows = rows;
      store.type = elem_of(y.type);
      store.y = {out, g.out_stride[0]};
      kernels.store(store);
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        store.c = s.c + r * conv.block_positions + done;
        store.rows = 1;
        store.row_bias = conv.bias.empty() ? nullptr : conv.bias.data() + first + r;
        store.type = elem_of(y.type);
        store.y = {s.line, 0};
        kernels.store(store);
        spread(s.line, out + r * g.out_stride[0] * size_of(y.type), size_of(y.type), run, g.step * g.out_stride[3]);
      }
    }
    done += run;
  }
}

void run_task(const isa::Level& kernels, const CpuConv& conv, const Phase& phase, const Geometry& g, const View& x,
              const View& y, int64_t first, int64_t p0, const TaskScratch& s) {
  const isa::Gemm& gemm = *conv.gemm;
  const int64_t width = std::min(conv.block_positions, g.positions - p0);
  const int64_t rows = std::min(conv.block_out, conv.out_rows - first);
  isa::GemmBlock block;
  block.m_panels = ceil_div(rows, gemm.mr);
  block.n_panels = ceil_div(width, gemm.nr);
  block.c = s.c;
  block.layout = row_major_result(gemm, conv.block_positions);
  block.b = s.b;
  if (phase.k == 0) std::fill_n(s.c, conv.block_out * conv.block_positions, 0.0f);  // a phase that no tap reaches
  for (int64_t slice = 0; slice < phase.layout.slices(); ++slice) {
    const int64_t k = slice * conv.slice_k(), count = std::min(conv.slice_k(), phase.k - k);
    gather_columns(kernels, conv, phase, g, x, k, count, p0, width, s.columns);
    block.k_steps = phase.layout.steps(slice);
    block.b_panel = block.k_steps * gemm.b_step;
    for (int64_t n = 0; n < block.n_panels; ++n) {
      const int64_t col = n * gemm.nr;
      gemm.pack_b_rows(
          {isa::Elem::f32, {s.columns + col, conv.block_positions}, std::min<int64_t>(gemm.nr, width - col), count},
          s.b + n * block.b_panel);
    }
    block.a = static_cast<const std::byte*>(phase.packed.data()) + phase.layout.offset(slice, first / gemm.mr);
    block.a_panel = phase.layout.panel_bytes(slice);
    block.accumulate = slice > 0;
    gemm.block(block);
  }
  store_block(kernels, conv, g, s, first, rows, p0, width, y);
}

// Weight rows [O][k] of one phase, in f32.
std::vector<float> phase_weight(const ConvSpec& spec, const Phase& phase, int residue) {
  const int64_t taps = phase.taps[0] * phase.taps[1] * phase.taps[2];
  if (spec.kind != ConvKind::transposed1d) return spec.weight;  // already [O, I * taps]
  std::vector<float> rows(static_cast<size_t>(spec.out * phase.k));
  for (int64_t o = 0; o < spec.out; ++o) {
    for (int64_t i = 0; i < spec.in; ++i) {
      for (int64_t q = 0; q < taps; ++q) {
        const int64_t j = residue + q * spec.stride[2];
        rows[o * phase.k + i * taps + q] = spec.weight[(i * spec.out + o) * spec.kernel[2] + j];
      }
    }
  }
  return rows;
}

}  // namespace

std::unique_ptr<Conv> CpuOps::make_conv(ConvSpec spec) {
  H3_ASSERT(spec.in > 0 && spec.out > 0 && (spec.bias.empty() || static_cast<int64_t>(spec.bias.size()) == spec.out));
  H3_ASSERT(static_cast<int64_t>(spec.weight.size()) ==
            spec.in * spec.out * spec.kernel[0] * spec.kernel[1] * spec.kernel[2]);
  const bool transposed = spec.kind == ConvKind::transposed1d;
  H3_ASSERT(!transposed || spec.dilation[2] == 1);
  auto conv = std::make_unique<CpuConv>();
  conv->label = spec.label;
  conv->gemm = spec.compute == Compute::bf16 ? kernels_.bf16 : kernels_.f32;
  conv->kernel = std::string("conv_") + conv->gemm->name;
  conv->bias = std::move(spec.bias);
  conv->out_rows = spec.out;
  const isa::Gemm& gemm = *conv->gemm;
  conv->block_out = std::min<int64_t>(round_up(spec.out, gemm.mr), round_up(1024, gemm.mr));
  const int64_t fitting = kResultBytes / 4 / conv->block_out / gemm.nr * gemm.nr;
  conv->block_positions = std::clamp<int64_t>(fitting, gemm.nr, kBlockPositions);
  if (spec.compute == Compute::f16) {
    for (float& v : spec.weight) v = saturated_f16(v);
  }
  const int count = transposed ? spec.stride[2] : 1;
  for (int residue = 0; residue < count; ++residue) {
    Phase phase;
    std::copy(spec.kernel, spec.kernel + 3, phase.taps);
    if (transposed) phase.taps[2] = static_cast<int>(std::max<int64_t>(0, ceil_div(spec.kernel[2] - residue, count)));
    phase.k = spec.in * phase.taps[0] * phase.taps[1] * phase.taps[2];
    phase.layout = Packed(gemm, true, spec.out, phase.k);
    phase.packed = device_.allocate(phase.layout.bytes(), conv->label.c_str());
    const std::vector<float> rows = phase_weight(spec, phase, residue);
    std::byte* packed = static_cast<std::byte*>(phase.packed.data());
    context_.pool.parallel(phase.layout.panels(), [&](int64_t p) {
      const int64_t first = p * gemm.mr;
      phase.layout.each_slice(
          {isa::Elem::f32,
           {rows.data() + first * phase.k, phase.k},
           std::min<int64_t>(gemm.mr, spec.out - first),
           phase.k},
          p, packed, [&](const isa::PackSource& source, std::byte* out) { gemm.pack_a(source, nullptr, out); });
    });
    conv->bytes += phase.packed.bytes();
    conv->phases.push_back(std::move(phase));
  }
  spec.weight.clear();
  spec.weight.shrink_to_fit();
  conv->spec = std::move(spec);
  need_local(TaskScratch(nullptr, *conv).bytes);
  return conv;
}

namespace {

void set_strides(const View& v, int64_t stride[4], int64_t dim[3]) {
  if (v.rank == 4) {
    for (int i = 0; i < 4; ++i) stride[i] = v.stride[i];
    for (int i = 0; i < 3; ++i) dim[i] = v.dim[i + 1];
    return;
  }
  H3_ASSERT(v.rank == 2);
  stride[0] = v.stride[0];
  stride[1] = stride[2] = 0;
  stride[3] = v.stride[1];
  dim[0] = dim[1] = 1;
  dim[2] = v.dim[1];
}

}  // namespace

void CpuOps::conv(const Conv& base, const View& x, const View& y) {
  const CpuConv& conv = static_cast<const CpuConv&>(base);
  H3_ASSERT(x.dim[0] == conv.spec.in && y.dim[0] == conv.spec.out);
  need_local(TaskScratch(nullptr, conv).bytes);
  Geometry g;
  set_strides(x, g.in_stride, g.in_dim);
  set_strides(y, g.out_stride, g.out_dim);
  int64_t expected[3];
  conv.output_extent(g.in_dim, expected);
  H3_ASSERT(std::equal(expected, expected + 3, g.out_dim));
  for (size_t i = 0; i < conv.phases.size(); ++i) {
    const Phase& phase = conv.phases[i];
    std::copy(g.out_dim, g.out_dim + 3, g.phase_dim);
    std::copy(conv.spec.pad_before, conv.spec.pad_before + 3, g.before);
    g.first = 0;
    g.step = 1;
    if (conv.spec.kind == ConvKind::transposed1d) {
      // Index m * u + i of the full output is index m * u + i - crop of y. The first m that is not cropped:
      const int64_t u = conv.spec.stride[2], crop = conv.spec.pad_before[2], residue = static_cast<int64_t>(i);
      const int64_t m0 = crop > residue ? ceil_div(crop - residue, u) : 0;
      g.first = m0 * u + residue - crop;
      g.step = u;
      g.phase_dim[2] = g.first >= g.out_dim[2] ? 0 : (g.out_dim[2] - 1 - g.first) / u + 1;
      g.before[2] = -m0;
    }
    g.positions = g.phase_dim[0] * g.phase_dim[1] * g.phase_dim[2];
    const int64_t blocks = ceil_div(g.positions, conv.block_positions), outs = ceil_div(conv.out_rows, conv.block_out);
    context_.pool.parallel_indexed(blocks * outs, [&](int64_t task, int worker) {
      run_task(kernels_, conv, phase, g, x, y, task % outs * conv.block_out, task / outs * conv.block_positions,
               TaskScratch(local(worker), conv));
    });
  }
}

}  // namespace h3
