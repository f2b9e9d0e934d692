// softmax(scale Q K^T) V with an online softmax: keys and values of a group of heads are packed once, then every task
// takes a block of queries of one head through all keys. Memory is linear in the number of keys.
#include <algorithm>
#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/packed.h"
#include "codec/scalar.h"

namespace h3 {
namespace {

constexpr int64_t kQueryBlock = 64;                   // rounded up to the panel height
constexpr int kTileKeySteps = 32;                     // k steps of P V at a time when scores stay in tiles
constexpr int64_t kPackedBudget = int64_t{96} << 20;  // bytes of packed keys and values at a time

struct Plan {
  const isa::Gemm* gemm;
  bool tiles;  // scores and accumulators stay in the order of the matrix kernel
  int64_t batch, rows, heads, keys, key_heads, dim;
  int64_t query_block;
  int64_t key_block;   // keys that one product P V runs over
  int64_t dim_padded;  // features rounded up to a panel
  Packed q, k, p, v;   // a block of queries; the keys of a head; a block of weights; the values of a head
  int64_t k_bytes, head_bytes;

  Plan(const isa::Level& kernels, const AttentionArgs& args) {
    const int rank = args.q.rank;
    gemm = args.q.type == DType::bf16 ? kernels.bf16 : kernels.f32;
    batch = rank == 4 ? args.q.dim[0] : 1;
    rows = args.q.dim[rank - 3];
    heads = args.q.dim[rank - 2];
    dim = args.q.dim[rank - 1];
    keys = args.k.dim[rank - 3];
    key_heads = args.k.dim[rank - 2];
    tiles = gemm->softmax != nullptr && args.scale > 0;
    isa::Gemm weights = *gemm;
    if (tiles) weights.slice_steps = kTileKeySteps;
    query_block = tiles ? gemm->mr : round_up(kQueryBlock, gemm->mr);
    key_block = int64_t{1} * weights.slice_steps * gemm->kr;
    dim_padded = round_up(dim, gemm->nr);
    q = Packed(*gemm, true, query_block, dim);
    k = Packed(*gemm, false, keys, dim);
    p = Packed(weights, true, query_block, key_block);
    v = Packed(weights, false, dim, keys);
    k_bytes = k.bytes();
    head_bytes = k_bytes + v.bytes();
  }
  isa::ResultLayout scores_layout(int64_t panels) const {
    return tiles ? tiled_result(*gemm, panels) : row_major_result(*gemm, key_block);
  }
  isa::ResultLayout output_layout(int64_t panels) const {
    return tiles ? tiled_result(*gemm, panels) : row_major_result(*gemm, dim_padded);
  }
  int64_t group() const { return std::max<int64_t>(1, std::min(batch * key_heads, kPackedBudget / head_bytes)); }
};

struct TaskScratch {
  std::byte *q, *p;
  float *scores, *output, *maximum, *total;
  int64_t bytes;
  TaskScratch(std::byte* base, const Plan& plan) {
    Carver carver(base);
    q = carver.take<std::byte>(plan.q.bytes());
    p = carver.take<std::byte>(plan.p.bytes());
    scores = carver.take<float>(plan.query_block * plan.key_block);
    output = carver.take<float>(plan.query_block * plan.dim_padded);
    maximum = carver.take<float>(plan.query_block);
    total = carver.take<float>(plan.query_block);
    bytes = carver.used();
  }
};

// [S, D] of one head.
View head_of(const View& all, int64_t batch, int64_t head) {
  const View one = all.rank == 4 ? all.select(0, batch) : all;
  return one.select(1, head);
}

isa::PackSource rows_of(const View& head, int64_t first, int64_t count, int64_t k) {
  return {elem_of(head.type), {head.data + first * head.stride[0] * size_of(head.type), head.stride[0]}, count, k};
}

void pack_keys(const Plan& plan, const View& k, int64_t panel, std::byte* out) {
  const int64_t first = panel * plan.gemm->nr;
  plan.k.each_slice(rows_of(k, first, std::min<int64_t>(plan.gemm->nr, plan.keys - first), plan.dim), panel, out,
                    plan.gemm->pack_b);
}

void pack_values(const Plan& plan, const View& v, int64_t panel, std::byte* out) {
  const int64_t first = panel * plan.gemm->nr, count = std::min<int64_t>(plan.gemm->nr, plan.dim - first);
  plan.v.each_slice_of_columns(rows_of(v.slice(1, first, count), 0, count, plan.keys), panel, out,
                               plan.gemm->pack_b_rows);
}

struct Head {
  View q, out;
  const std::byte *k, *v;  // packed
  float scale;
  bool causal;
};

// scores = Q K^T of a block of queries and `valid` keys from `key` on.
void score(const Plan& plan, const Head& head, const TaskScratch& s, int64_t panels, int64_t key, int64_t valid) {
  isa::GemmBlock block;
  block.m_panels = panels;
  block.n_panels = ceil_div(valid, plan.gemm->nr);
  block.c = s.scores;
  block.layout = plan.scores_layout(panels);
  for (int64_t slice = 0; slice < plan.k.slices(); ++slice) {
    block.a = s.q + plan.q.offset(slice, 0);
    block.a_panel = plan.q.panel_bytes(slice);
    block.b = head.k + plan.k.offset(slice, key / plan.gemm->nr);
    block.b_panel = plan.k.panel_bytes(slice);
    block.k_steps = plan.k.steps(slice);
    block.accumulate = slice > 0;
    plan.gemm->block(block);
  }
}

// Scores into the weights of the packed P, row by row; accumulators are rescaled where the maximum moves.
void weigh(const isa::Level& kernels, const Plan& plan, const TaskScratch& s, isa::SoftmaxArgs& softmax,
           int64_t panels) {
  const isa::Gemm& g = *plan.gemm;
  const int64_t a_panel = ceil_div(softmax.valid, g.kr) * g.a_step;
  if (!plan.tiles) {
    kernels.softmax(softmax);
    for (int64_t i = 0; i < panels; ++i) {
      g.pack_a({isa::Elem::f32,
                {s.scores + i * g.mr * plan.key_block, plan.key_block},
                std::min<int64_t>(g.mr, softmax.rows - i * g.mr),
                softmax.valid},
               nullptr, s.p + i * a_panel);
    }
    return;
  }
  const isa::ResultLayout scores = plan.scores_layout(panels), output = plan.output_layout(panels);
  isa::TileSoftmaxArgs args;
  args.scores_panel = scores.n_panel;
  args.cols = softmax.cols;
  args.valid = softmax.valid;
  args.first_key = softmax.first_key;
  args.causal = softmax.causal;
  args.scale = softmax.scale;
  args.output_panel = output.n_panel;
  args.output_panels = plan.v.panels();
  for (int64_t i = 0; i < panels; ++i) {
    const int64_t first = i * g.mr;
    args.scores = s.scores + i * scores.m_panel;
    args.weights = s.p + i * a_panel;
    args.rows = std::min<int64_t>(g.mr, softmax.rows - first);
    args.first_query = softmax.first_query + first;
    args.maximum = s.maximum + first;
    args.total = s.total + first;
    args.output = s.output + i * output.m_panel;
    g.softmax(args);
  }
}

// output += P V for the keys of one slice.
void add_values(const Plan& plan, const Head& head, const TaskScratch& s, int64_t panels, int64_t slice,
                int64_t valid) {
  const isa::Gemm& g = *plan.gemm;
  isa::GemmBlock block;
  block.k_steps = ceil_div(valid, g.kr);
  block.a = s.p;
  block.a_panel = block.k_steps * g.a_step;
  block.b = head.v + plan.v.offset(slice, 0);
  block.b_panel = plan.v.panel_bytes(slice);
  block.m_panels = panels;
  block.n_panels = plan.v.panels();
  block.c = s.output;
  block.layout = plan.output_layout(panels);
  block.accumulate = true;
  g.block(block);
}

void attend(const isa::Level& kernels, const Plan& plan, const Head& head, int64_t first, const TaskScratch& s) {
  const isa::Gemm& g = *plan.gemm;
  const int64_t rows = std::min(plan.query_block, plan.rows - first), panels = ceil_div(rows, g.mr);
  for (int64_t i = 0; i < panels; ++i) {
    plan.q.each_slice(rows_of(head.q, first + i * g.mr, std::min<int64_t>(g.mr, rows - i * g.mr), plan.dim), i, s.q,
                      [&](const isa::PackSource& source, std::byte* out) { g.pack_a(source, nullptr, out); });
  }
  std::fill_n(s.maximum, rows, -__builtin_inff());
  std::fill_n(s.total, rows, 0.0f);
  std::memset(s.output, 0, static_cast<size_t>(panels * g.mr * plan.dim_padded * 4));
  const int64_t seen = head.causal ? std::min(plan.keys, first + rows) : plan.keys;
  isa::SoftmaxArgs softmax;
  softmax.scores = s.scores;
  softmax.stride = plan.key_block;
  softmax.rows = rows;
  softmax.first_query = first;
  softmax.causal = head.causal;
  softmax.type = elem_of(head.out.type);
  softmax.scale = head.scale;
  softmax.maximum = s.maximum;
  softmax.total = s.total;
  softmax.output = s.output;
  softmax.output_stride = softmax.output_cols = plan.dim_padded;
  for (int64_t key = 0; key < seen; key += plan.key_block) {
    const int64_t valid = std::min(plan.key_block, seen - key);
    score(plan, head, s, panels, key, valid);
    softmax.valid = valid;
    softmax.cols = round_up(valid, g.kr);
    softmax.first_key = key;
    weigh(kernels, plan, s, softmax, panels);
    add_values(plan, head, s, panels, key / plan.key_block, valid);
  }
  isa::StoreArgs store;
  store.c = s.output;
  set_layout(store, g, plan.output_layout(panels));
  store.rows = rows;
  store.cols = plan.dim;
  store.divide = s.total;
  store.type = elem_of(head.out.type);
  store.y = {head.out.data + first * head.out.stride[0] * size_of(head.out.type), head.out.stride[0]};
  kernels.store(store);
}

// Causal attention multiplies unseen values by weights of zero, which an Inf or NaN among them would survive. They are
// taken out of a copy and added to the rows that do see them.
class NonFiniteValues {
 public:
  NonFiniteValues(const View& v, std::vector<std::byte>& copy) : original_(v), clean_(v) {
    copy.assign(static_cast<size_t>(v.bytes()), std::byte{});
    clean_ = make_view(*v.device, copy.data(), v.type, std::vector<int64_t>(v.dim.begin(), v.dim.begin() + v.rank));
    each([&](const std::byte* from, std::byte* to, int64_t, int64_t, int64_t, int64_t) {
      if (bits_finite(from)) std::memcpy(to, from, static_cast<size_t>(size_of(v.type)));
    });
  }
  const View& clean() const { return clean_; }

  void add_to(const View& out) {
    const int64_t rank = out.rank, rows = out.dim[rank - 3], share = out.dim[rank - 2] / original_.dim[rank - 2];
    each([&](const std::byte* from, std::byte*, int64_t b, int64_t key, int64_t head, int64_t d) {
      if (bits_finite(from)) return;
      const View batch = rank == 4 ? out.select(0, b) : out;
      for (int64_t row = key; row < rows; ++row) {
        for (int64_t h = head * share; h < (head + 1) * share; ++h) {
          std::byte* to = batch.data + (row * batch.stride[0] + h * batch.stride[1] + d) * size_of(out.type);
          set(to, get(to) + get(from));
        }
      }
    });
  }

 private:
  float get(const std::byte* p) const {
    if (original_.type == DType::f32) return *reinterpret_cast<const float*>(p);
    const uint16_t bits = *reinterpret_cast<const uint16_t*>(p);
    return original_.type == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
  void set(std::byte* p, float value) const {
    if (original_.type == DType::f32) {
      *reinterpret_cast<float*>(p) = value;
    } else {
      *reinterpret_cast<uint16_t*>(p) = original_.type == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
    }
  }
  bool bits_finite(const std::byte* p) const { return (f32_bits(get(p)) & 0x7f800000u) != 0x7f800000u; }

  template <typename Body>
  void each(Body body) const {
    const int rank = original_.rank;
    const int64_t batch = rank == 4 ? original_.dim[0] : 1, size = size_of(original_.type);
    for (int64_t b = 0; b < batch; ++b) {
      const View from = rank == 4 ? original_.select(0, b) : original_, to = rank == 4 ? clean_.select(0, b) : clean_;
      for (int64_t key = 0; key < from.dim[0]; ++key) {
        for (int64_t head = 0; head < from.dim[1]; ++head) {
          for (int64_t d = 0; d < from.dim[2]; ++d) {
            body(from.data + (key * from.stride[0] + head * from.stride[1] + d) * size,
                 to.data + (key * to.stride[0] + head * to.stride[1] + d) * size, b, key, head, d);
          }
        }
      }
    }
  }

  View original_, clean_;
};

}  // namespace

void CpuOps::attention(const AttentionArgs& args) {
  H3_ASSERT(args.math == AttentionMath::exact);
  if (args.causal && !all_finite(args.v)) {
    std::vector<std::byte> copy;
    NonFiniteValues values(args.v, copy);
    AttentionArgs cleaned = args;
    cleaned.v = values.clean();
    attention(cleaned);
    values.add_to(args.out);
    return;
  }
  const int rank = args.q.rank;
  H3_ASSERT((rank == 3 || rank == 4) && args.k.rank == rank && args.v.rank == rank && args.out.rank == rank);
  H3_ASSERT(args.q.type == args.k.type && args.q.type == args.v.type && args.q.type == args.out.type);
  const Plan plan(kernels_, args);
  H3_ASSERT(plan.keys > 0 && plan.heads % plan.key_heads == 0 && (!args.causal || plan.rows == plan.keys));
  if (plan.rows == 0) return;
  const int64_t total = plan.batch * plan.key_heads, group = plan.group(), share = plan.heads / plan.key_heads;
  need_shared(group * plan.head_bytes);
  need_local(TaskScratch(nullptr, plan).bytes);
  std::byte* packed = shared();
  const int64_t k_panels = plan.k.panels(), v_panels = plan.v.panels();
  const int64_t blocks = ceil_div(plan.rows, plan.query_block);
  for (int64_t first = 0; first < total; first += group) {
    const int64_t count = std::min(group, total - first);
    context_.pool.parallel(count * (k_panels + v_panels), [&](int64_t task) {
      const int64_t i = task / (k_panels + v_panels), panel = task % (k_panels + v_panels);
      const int64_t b = (first + i) / plan.key_heads, h = (first + i) % plan.key_heads;
      std::byte* keys = packed + i * plan.head_bytes;
      if (panel < k_panels) {
        pack_keys(plan, head_of(args.k, b, h), panel, keys);
      } else {
        pack_values(plan, head_of(args.v, b, h), panel - k_panels, keys + plan.k_bytes);
      }
    });
    context_.pool.parallel_indexed(count * share * blocks, [&](int64_t task, int worker) {
      const int64_t i = task / (share * blocks), member = task / blocks % share;
      const int64_t b = (first + i) / plan.key_heads, h = (first + i) % plan.key_heads * share + member;
      const std::byte* keys = packed + i * plan.head_bytes;
      const Head head{
          head_of(args.q, b, h), head_of(args.out, b, h), keys, keys + plan.k_bytes, args.scale, args.causal};
      attend(kernels_, plan, head, task % blocks * plan.query_block, TaskScratch(local(worker), plan));
    });
  }
}

void CpuOps::reserve(int64_t max_rows, int64_t max_heads_by_dim) {
  reserved_rows_ = std::max(reserved_rows_, max_rows);
  // Packed keys and values of all heads, padded to panels in both directions, 4 bytes an element at most.
  const int64_t keys = 2 * round_up(max_rows, 64) * round_up(max_heads_by_dim, 64) * 4;
  const int64_t rows = (std::min(max_rows, kMaxPackedRows) + 64) * row_bytes_ + 4096;
  need_shared(std::max(std::min(keys, kPackedBudget), rows));
  AttentionArgs widest;  // heads of up to 256 features
  for (DType type : {DType::f32, DType::bf16}) {
    widest.q.type = type;
    widest.q.rank = widest.k.rank = 3;
    widest.q.dim = {1, 1, 256};
    widest.k.dim = {1, 1, 256};
    need_local(TaskScratch(nullptr, Plan(kernels_, widest)).bytes);
  }
}

}  // namespace h3
