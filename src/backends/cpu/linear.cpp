// y = x W^T + b. Weights are packed once, in the panel order of the chosen kernel, or stay in their stored format and
// are expanded by blocks of columns in every call; activations are packed per call, in chunks of rows; blocks of the
// result are shared out over the pool.
#include <algorithm>
#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/matmul.h"
#include "backends/cpu/packed.h"
#include "backends/cpu/packed_weights.h"
#include "codec/int8_convrot.h"
#include "codec/int8_row.h"

namespace h3 {
namespace {

constexpr int64_t kTableBytes = 8192;  // the most that a tile expander takes
// Results of at least this size are written past the caches.
constexpr int64_t kStreamBytes = int64_t{8} << 20;

struct CpuLinear final : Linear {
  const isa::Gemm* gemm = nullptr;
  Packed layout;                    // of the weight
  Buffer packed;                    // empty when weights stay in their stored format
  std::vector<float> bias;          // [out padded] or empty
  std::vector<float> col_scale;     // integer kernels: [out padded]
  std::vector<int32_t> col_offset;  // [out padded] when the kernel offsets its activations
  PackedWeights stored;             // weights that are expanded in every call
  std::vector<float> col_inverse;   // integer kernels on stored weights: [out]

  int64_t block_rows() const { return gemm->block_rows / gemm->mr * gemm->mr; }
  int64_t block_cols() const { return gemm->block_cols / gemm->nr * gemm->nr; }
};

float saturated_f16(float value) {
  const float limit = 65504.0f;
  return f16_to_f32(f32_to_f16(value > limit ? limit : value < -limit ? -limit : value));
}

// Scratch of one call over a chunk of rows.
struct ChunkScratch {
  Packed layout;
  std::byte* a;
  float* row_scale;
  float* row_inverse;
  int64_t bytes;
  ChunkScratch(std::byte* base, const CpuLinear& w, int64_t rows) : layout(*w.gemm, true, rows, w.in) {
    Carver carver(base);
    a = carver.take<std::byte>(layout.bytes());
    row_scale = carver.take<float>(layout.panels() * w.gemm->mr);
    row_inverse = carver.take<float>(layout.panels() * w.gemm->mr);
    bytes = carver.used();
  }
};

// The kernel that writes tiles of these weights; null: rows of codes or floats are made and packed.
const isa::TileExpander* tile_expander(const isa::Gemm& gemm, const char* format) {
  return gemm.tile_expander == nullptr || format == nullptr ? nullptr : gemm.tile_expander(format);
}

struct TaskScratch {
  float* c;           // [block rows][block cols]
  float* rows;        // weights to be packed: [nr][in], codes aside [in]; f16 and rotated operands: [mr][in]
  int8_t* codes;      // integer kernels on stored weights: [nr][in]
  std::byte* tables;  // of a tile expander
  std::byte* b;       // stored weights: one block of packed columns
  int64_t bytes;
  TaskScratch(std::byte* base, const CpuLinear& w, bool expands) {
    Carver carver(base);
    c = carver.take<float>(w.block_rows() * w.block_cols());
    const bool codes_only = expands && w.gemm->integer;
    const int64_t staged = codes_only ? 1 : expands ? w.gemm->nr : 0;
    const bool rewritten = w.compute == Compute::f16 || w.rotation > 0;
    rows = carver.take<float>(std::max<int64_t>(staged, rewritten ? w.gemm->mr : 0) * w.in);
    codes = carver.take<int8_t>(codes_only ? w.gemm->nr * w.in : 0);
    tables = carver.take<std::byte>(codes_only && w.gemm->tile_expander != nullptr ? kTableBytes : 0);
    b = carver.take<std::byte>(expands ? Packed(*w.gemm, false, w.block_cols(), w.in).bytes() : 0);
    bytes = carver.used();
  }
};

// Rows of a chunk: as even as the panel height allows, at most kMaxPackedRows.
int64_t chunk_rows(int64_t rows, int mr) {
  const int64_t chunks = std::max<int64_t>(1, ceil_div(rows, kMaxPackedRows));
  return round_up(ceil_div(rows, chunks), mr);
}

// Rows of a weight as int8 with their scale and what the kernel's offset of activations adds; codes stay what they are.
void quantise_rows(CpuLinear& w, int64_t first, int64_t count, float* rows) {
  for (int64_t r = 0; r < count; ++r) {
    float* row = rows + r * w.in;
    if (w.rotation == 0) {
      const float absmax = absmax_of(row, w.in), inverse = int8_row_inverse(absmax);
      for (int64_t k = 0; k < w.in; ++k) row[k] = int8_row_quantise(row[k], inverse);
      w.col_scale[first + r] = int8_row_scale(absmax);
    }
    if (w.col_offset.empty()) continue;
    int64_t sum = 0;
    for (int64_t k = 0; k < w.in; ++k) sum += static_cast<int64_t>(row[k]);
    w.col_offset[first + r] = static_cast<int32_t>(sum * w.gemm->a_offset);
  }
}

// One panel of nr weight rows, as floats in `rows`, into `packed`.
void pack_weight_panel(const MatrixSource& source, CpuLinear& w, int64_t panel, float* rows, std::byte* packed) {
  const int64_t first = panel * w.gemm->nr;
  const int64_t count = std::min<int64_t>(w.gemm->nr, w.out - first);
  source.decode_rows(first, count, rows);
  if (w.compute == Compute::f16) {
    for (int64_t i = 0; i < count * w.in; ++i) rows[i] = saturated_f16(rows[i]);
  }
  if (w.gemm->integer) quantise_rows(w, first, count, rows);
  w.layout.each_slice({isa::Elem::f32, {rows, w.in}, count, w.in}, panel, packed, w.gemm->pack_b);
}

// Scales of weights that stay packed, as pack_weight_panel would make them.
void scale_stored_row(const isa::Level& kernels, CpuLinear& w, int64_t row, const TaskScratch& scratch) {
  w.stored.floats(row, 1, scratch.rows);
  const float absmax = kernels.absmax(isa::Elem::f32, scratch.rows, w.in), inverse = int8_row_inverse(absmax);
  w.col_scale[row] = int8_row_scale(absmax);
  w.col_inverse[row] = inverse;
  if (w.col_offset.empty()) return;
  w.stored.codes(row, 1, &inverse, scratch.codes, scratch.rows);
  int64_t sum = 0;
  for (int64_t k = 0; k < w.in; ++k) sum += scratch.codes[k];
  w.col_offset[row] = static_cast<int32_t>(sum * w.gemm->a_offset);
}

// One panel of stored weights by a kernel that writes tiles; false when there is none for these rows.
bool expand_tiles(const CpuLinear& w, const Packed& layout, int64_t panel, int64_t first, int64_t count,
                  const TaskScratch& scratch) {
  const isa::Gemm& gemm = *w.gemm;
  const PackedWeights::Stored stored = w.stored.stored(first, count);
  const isa::TileExpander* expander = tile_expander(gemm, stored.format);
  if (expander == nullptr) return false;
  H3_ASSERT(expander->table_bytes <= kTableBytes);
  for (int64_t col = 0; col < gemm.nr; col += gemm.tile_cols) {
    const int64_t rows = std::clamp<int64_t>(count - col, 0, gemm.tile_cols), row = stored.first + col;
    expander->begin(stored.rows, row, rows, w.col_inverse.data() + first + col, scratch.tables);
    layout.each_range(panel, scratch.b, [&](int64_t k, int64_t length, std::byte* out) {
      expander->tiles(stored.rows, row, rows, scratch.tables, k, length, out + col * gemm.b_step / gemm.nr);
    });
  }
  return true;
}

// Columns [n, n + cols) of stored weights into scratch.b.
void expand_columns(const CpuLinear& w, const Packed& layout, int64_t n, int64_t cols, const TaskScratch& scratch) {
  const isa::Gemm& gemm = *w.gemm;
  for (int64_t panel = 0; panel < layout.panels(); ++panel) {
    const int64_t first = n + panel * gemm.nr, count = std::min<int64_t>(gemm.nr, n + cols - first);
    if (gemm.integer) {
      if (expand_tiles(w, layout, panel, first, count, scratch)) continue;
      w.stored.codes(first, count, w.col_inverse.data() + first, scratch.codes, scratch.rows);
      layout.each_range(panel, scratch.b, [&](int64_t k, int64_t length, std::byte* out) {
        gemm.pack_b_codes({scratch.codes + k, w.in, count, length}, out);
      });
      continue;
    }
    w.stored.floats(first, count, scratch.rows);
    if (w.compute == Compute::f16) {
      for (int64_t i = 0; i < count * w.in; ++i) scratch.rows[i] = saturated_f16(scratch.rows[i]);
    }
    layout.each_slice({isa::Elem::f32, {scratch.rows, w.in}, count, w.in}, panel, scratch.b, gemm.pack_b);
  }
}

}  // namespace

std::unique_ptr<Linear> CpuOps::make_linear(LinearSpec spec) {
  const int64_t in = spec.weight.cols, out = spec.weight.rows;
  H3_ASSERT(in > 0 && out > 0 && (spec.bias.empty() || static_cast<int64_t>(spec.bias.size()) == out));
  LinearChoice choice = choose_linear(spec, level_, forced_linear_);
  auto w = std::make_unique<CpuLinear>();
  w->label = std::move(spec.label);
  w->in = in;
  w->out = out;
  w->compute = spec.compute;
  w->kernel = std::move(choice.kernel);
  w->refusals = std::move(choice.refusals);
  w->gemm = choice.gemm;
  w->rotation = choice.rotation;
  const bool expands = choice.expands;
  w->bias = std::move(spec.bias);
  const isa::Gemm& gemm = *w->gemm;
  w->layout = Packed(gemm, false, out, in);
  const int64_t padded = w->layout.panels() * gemm.nr;
  if (w->rotation > 0) {
    w->col_scale = scales_of(spec.weight);
    spec.weight = codes_of(spec.weight);
  }
  if (gemm.integer) w->col_scale.resize(static_cast<size_t>(padded));
  if (gemm.a_offset != 0) w->col_offset.resize(static_cast<size_t>(padded));
  need_local(TaskScratch(nullptr, *w, expands).bytes);
  if (expands) {
    w->stored = PackedWeights(std::move(spec.weight), kernels_);
    w->bytes = w->stored.stored_bytes();
    if (gemm.integer) {
      w->col_inverse.resize(static_cast<size_t>(out));
      context_.pool.parallel_indexed(out, [&](int64_t row, int worker) {
        scale_stored_row(kernels_, *w, row, TaskScratch(local(worker), *w, true));
      });
    }
  } else {
    w->packed = device_.allocate(w->layout.bytes(), w->label.c_str());
    need_local(gemm.nr * in * 4);
    std::byte* packed = static_cast<std::byte*>(w->packed.data());
    context_.pool.parallel_indexed(w->layout.panels(), [&](int64_t panel, int worker) {
      pack_weight_panel(spec.weight, *w, panel, reinterpret_cast<float*>(local(worker)), packed);
    });
    w->bytes = w->packed.bytes();
  }
  const size_t per_column = w->col_scale.size() + w->col_offset.size() + w->col_inverse.size() + w->bias.size();
  w->bytes += static_cast<int64_t>(per_column * 4);
  // Rounding up to a panel costs at most a panel of rows; 8 bytes a row are the scales of integer kernels.
  row_bytes_ = std::max(row_bytes_, Packed(gemm, true, gemm.mr, in).bytes() / gemm.mr + 8);
  const int64_t rows = spec.max_rows > 0 ? spec.max_rows : reserved_rows_;
  need_shared(ChunkScratch(nullptr, *w, chunk_rows(rows, gemm.mr)).bytes);
  return w;
}

void CpuOps::linear(const Linear& weight, const View& x, const View& y) { linear_rows(weight, nullptr, x, y); }

void CpuOps::linear_add(const Linear& weight, float scale, const View& x, const View& y) {
  H3_ASSERT(x.type == y.type && static_cast<const CpuLinear&>(weight).bias.empty());
  H3_ASSERT(weight.compute == Compute::f32 || weight.compute == Compute::bf16);
  linear_rows(weight, &scale, x, y);
}

void CpuOps::linear_onto(const Linear& weight, const View& x, const View& y) {
  const float once = 1;
  linear_rows(weight, &once, x, y);
}

void CpuOps::linear_rows(const Linear& weight, const float* add_scale, const View& x, const View& y) {
  H3_ASSERT(x.rank == 2 && y.rank == 2 && x.dim[0] == y.dim[0] && x.dim[1] == weight.in && y.dim[1] == weight.out);
  H3_ASSERT((x.stride[1] == 1 || x.dim[1] == 1) && (y.stride[1] == 1 || y.dim[1] == 1));
  const CpuLinear& w = static_cast<const CpuLinear&>(weight);
  const int64_t rows = x.dim[0], step = chunk_rows(rows, w.gemm->mr);
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first);
    linear_chunk(weight, add_scale, x.slice(0, first, count), y.slice(0, first, count));
  }
}

namespace {

// Packs the rows of one panel; integer kernels leave the scales of the rows behind.
void pack_activations(const isa::Level& kernels, const CpuLinear& w, const View& x, int64_t panel,
                      const ChunkScratch& chunk, float* staging) {
  const isa::Gemm& gemm = *w.gemm;
  const int64_t first = panel * gemm.mr, count = std::min<int64_t>(gemm.mr, x.dim[0] - first);
  isa::PackSource source{elem_of(x.type), {x.data + first * x.stride[0] * size_of(x.type), x.stride[0]}, count, w.in};
  if (w.rotation > 0) {
    for (int64_t r = 0; r < count; ++r) {
      const std::byte* row = static_cast<const std::byte*>(source.rows.data) + r * x.stride[0] * size_of(x.type);
      float* out = staging + r * w.in;
      kernels.pointwise->convert(source.type, row, isa::Elem::f32, out, w.in);
      chunk.row_scale[first + r] = int8_convrot_row(out, w.in, w.rotation);
      chunk.row_inverse[first + r] = 1;  // they are codes already
    }
    source.type = isa::Elem::f32;
    source.rows = {staging, w.in};
  } else if (gemm.integer) {
    for (int64_t r = 0; r < count; ++r) {
      const std::byte* row = static_cast<const std::byte*>(source.rows.data) + r * x.stride[0] * size_of(x.type);
      const float absmax = kernels.absmax(source.type, row, w.in);
      chunk.row_scale[first + r] = int8_row_scale(absmax);
      chunk.row_inverse[first + r] = int8_row_inverse(absmax);
    }
  }
  if (w.compute == Compute::f16 && x.type != DType::f16) {
    for (int64_t r = 0; r < count; ++r) {
      const std::byte* row = static_cast<const std::byte*>(source.rows.data) + r * x.stride[0] * size_of(x.type);
      float* out = staging + r * w.in;
      kernels.pointwise->convert(source.type, row, isa::Elem::f32, out, w.in);
      for (int64_t k = 0; k < w.in; ++k) out[k] = saturated_f16(out[k]);
    }
    source.type = isa::Elem::f32;
    source.rows = {staging, w.in};
  }
  chunk.layout.each_slice(source, panel, chunk.a, [&](const isa::PackSource& slice, std::byte* out) {
    gemm.pack_a(slice, chunk.row_inverse + first, out);
  });
}

// One block of the result; b holds the packed columns from `first_col` on.
struct BlockOfWeight {
  const Packed& layout;
  const std::byte* b;
  int64_t first_col;
};

struct Area {
  int64_t m = 0, rows = 0, n = 0, cols = 0;  // rows 0: none
};

// Points the fetches of `block` at slice s of `area`.
void set_next(isa::GemmBlock& block, const CpuLinear& w, const ChunkScratch& chunk, const BlockOfWeight& weight,
              const Area& area, int64_t s) {
  const isa::Gemm& gemm = *w.gemm;
  block.next_a = nullptr;
  block.next_b = nullptr;
  block.next_a_bytes = 0;
  if (area.rows == 0) return;
  block.next_a = chunk.a + chunk.layout.offset(s, area.m / gemm.mr);
  block.next_a_bytes = ceil_div(area.rows, gemm.mr) * chunk.layout.panel_bytes(s);
  block.next_b = weight.b + weight.layout.offset(s, (area.n - weight.first_col) / gemm.nr);
}

isa::StoreArgs store_args(const CpuLinear& w, const ChunkScratch& chunk, const isa::GemmBlock& block,
                          const float* add_scale, const View& y, const Area& area) {
  isa::StoreArgs store;
  store.c = block.c;
  set_layout(store, *w.gemm, block.layout);
  store.rows = area.rows;
  store.cols = area.cols;
  if (w.gemm->integer) {
    store.row_scale = chunk.row_scale + area.m;
    store.col_scale = w.col_scale.data() + area.n;
    if (!w.col_offset.empty()) store.col_offset = w.col_offset.data() + area.n;
  }
  if (!w.bias.empty()) store.col_bias = w.bias.data() + area.n;
  store.add_scale = add_scale;
  store.stream = add_scale == nullptr && y.bytes() >= kStreamBytes;
  store.type = elem_of(y.type);
  store.y = {y.data + (area.m * y.stride[0] + area.n) * size_of(y.type), y.stride[0]};
  return store;
}

// `next` is the area that this worker is likely to be given afterwards: its first slice is fetched meanwhile.
void compute_block(const isa::Level& kernels, const CpuLinear& w, const ChunkScratch& chunk,
                   const BlockOfWeight& weight, float* c, const float* add_scale, const View& y, const Area& area,
                   const Area& next) {
  const isa::Gemm& gemm = *w.gemm;
  const int64_t slices = weight.layout.slices();
  isa::GemmBlock block;
  block.m_panels = ceil_div(area.rows, gemm.mr);
  block.n_panels = ceil_div(area.cols, gemm.nr);
  block.c = c;
  block.layout = tiled_result(gemm, block.m_panels);
  set_next(block, w, chunk, weight, area, 0);
  for (int64_t s = 0; s < slices; ++s) {
    const bool last = s + 1 == slices;
    block.a = block.next_a;
    block.b = block.next_b;
    block.a_panel = chunk.layout.panel_bytes(s);
    block.b_panel = weight.layout.panel_bytes(s);
    block.k_steps = weight.layout.steps(s);
    block.accumulate = s > 0;
    set_next(block, w, chunk, weight, last ? next : area, last ? 0 : s + 1);
    gemm.block(block);
  }
  kernels.store(store_args(w, chunk, block, add_scale, y, area));
}

}  // namespace

void CpuOps::linear_chunk(const Linear& weight, const float* add_scale, const View& x, const View& y) {
  const CpuLinear& w = static_cast<const CpuLinear&>(weight);
  const isa::Gemm& gemm = *w.gemm;
  const bool expands = w.packed.data() == nullptr;
  const int64_t rows = x.dim[0];
  need_shared(ChunkScratch(nullptr, w, rows).bytes);
  need_local(TaskScratch(nullptr, w, expands).bytes);
  const ChunkScratch chunk(shared(), w, rows);
  context_.pool.parallel_indexed(chunk.layout.panels(), [&](int64_t panel, int worker) {
    pack_activations(kernels_, w, x, panel, chunk, TaskScratch(local(worker), w, expands).rows);
  });
  const int64_t mb = w.block_rows(), nb = w.block_cols();
  const int64_t m_blocks = ceil_div(rows, mb), n_blocks = ceil_div(w.out, nb);
  const auto area_at = [&](int64_t task) {
    if (task >= m_blocks * n_blocks) return Area{};
    const int64_t m = task % m_blocks * mb, n = task / m_blocks * nb;
    return Area{m, std::min(mb, rows - m), n, std::min(nb, w.out - n)};
  };
  if (!expands) {
    // Neighbouring tasks share their columns of the weight, so that threads of one core fetch them once.
    const BlockOfWeight all{w.layout, static_cast<const std::byte*>(w.packed.data()), 0};
    context_.pool.parallel_indexed(m_blocks * n_blocks, [&](int64_t task, int worker) {
      compute_block(kernels_, w, chunk, all, TaskScratch(local(worker), w, expands).c, add_scale, y,
                    area_at(task), area_at(task + context_.pool.threads()));
    });
    return;
  }
  context_.pool.parallel_indexed(n_blocks, [&](int64_t column, int worker) {
    const TaskScratch mine(local(worker), w, expands);
    const int64_t first = column * m_blocks, n = column * nb, cols = std::min(nb, w.out - n);
    const Packed layout(gemm, false, cols, w.in);
    expand_columns(w, layout, n, cols, mine);
    for (int64_t i = 0; i < m_blocks; ++i) {
      compute_block(kernels_, w, chunk, {layout, mine.b, n}, mine.c, add_scale, y,
                    area_at(first + i), i + 1 < m_blocks ? area_at(first + i + 1) : Area{});
    }
  });
}

}  // namespace h3
