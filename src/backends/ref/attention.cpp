#include "backends/ref/attention_heads.h"
#include "backends/ref/ref_ops.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

constexpr int64_t kQueries = 8;    // queries a task handles together
constexpr int64_t kKeyBlock = 64;  // keys decoded at a time

struct Heads {
  View q, k, v, out;  // [rows, D] of one batch entry and one head
  float scale;
  bool causal;
};

// scores[i][j] = scale * q_i . k_j for queries first .. first + count and every key.
void score(const Heads& h, int64_t first, int64_t count, std::vector<double>& scores) {
  const int64_t d = h.q.dim[1], keys = h.k.dim[0];
  std::vector<double> query(static_cast<size_t>(count * d)), block(static_cast<size_t>(d * kKeyBlock));
  std::vector<double> row(static_cast<size_t>(d));
  for (int64_t i = 0; i < count; ++i) rows::load_row(h.q, first + i, 0, d, &query[i * d]);
  for (int64_t key = 0; key < keys; key += kKeyBlock) {
    const int64_t n = std::min(kKeyBlock, keys - key);
    for (int64_t j = 0; j < n; ++j) {  // transposed, so that the loop over keys vectorises
      rows::load_row(h.k, key + j, 0, d, row.data());
      for (int64_t e = 0; e < d; ++e) block[e * kKeyBlock + j] = row[e];
    }
    for (int64_t i = 0; i < count; ++i) {
      double acc[kKeyBlock] = {};
      for (int64_t e = 0; e < d; ++e) {
        for (int64_t j = 0; j < kKeyBlock; ++j) acc[j] += query[i * d + e] * block[e * kKeyBlock + j];
      }
      for (int64_t j = 0; j < n; ++j) scores[i * keys + key + j] = static_cast<double>(h.scale) * acc[j];
    }
  }
}

// Softmax of a row in double, then P as P V takes it: rounded to T, not at all for f32.
void softmax(double* row, int64_t n, DType type) {
  double top = row[0], sum = 0;
  for (int64_t j = 1; j < n; ++j) top = row[j] > top ? row[j] : top;
  for (int64_t j = 0; j < n; ++j) sum += row[j] = std::exp(row[j] - top);  // a NaN anywhere reaches the sum
  for (int64_t j = 0; j < n; ++j) row[j] = type == DType::f32 ? row[j] / sum : rows::round_to(type, row[j] / sum);
}

void attend(const Heads& h, int64_t first, int64_t count) {
  const int64_t d = h.q.dim[1], keys = h.k.dim[0];
  std::vector<double> p(static_cast<size_t>(count * keys)), out(static_cast<size_t>(count * d));
  std::vector<double> row(static_cast<size_t>(d));
  score(h, first, count, p);
  const auto seen = [&](int64_t i) { return h.causal ? first + i + 1 : keys; };
  for (int64_t i = 0; i < count; ++i) softmax(&p[i * keys], seen(i), h.v.type);
  for (int64_t j = 0; j < seen(count - 1); ++j) {
    rows::load_row(h.v, j, 0, d, row.data());
    for (int64_t i = 0; i < count; ++i) {
      if (j >= seen(i)) continue;
      const double weight = p[i * keys + j];
      for (int64_t e = 0; e < d; ++e) out[i * d + e] += weight * row[e];
    }
  }
  for (int64_t i = 0; i < count; ++i) rows::store_row(h.out, first + i, 0, d, &out[i * d]);
}

}  // namespace

void RefOps::attention(const AttentionArgs& args) {
  const View& q = args.q;
  const int rank = q.rank;
  H3_ASSERT((rank == 3 || rank == 4) && args.k.rank == rank && args.v.rank == rank && rows::same_dims(q, args.out));
  H3_ASSERT(rows::same_dims(args.k, args.v) && args.k.dim[rank - 1] == q.dim[rank - 1]);
  const int64_t batch = rank == 4 ? q.dim[0] : 1, rows = q.dim[rank - 3], heads = q.dim[rank - 2];
  const int64_t keys = args.k.dim[rank - 3], key_heads = args.k.dim[rank - 2];
  H3_ASSERT(rank == 3 || args.k.dim[0] == batch);
  H3_ASSERT(keys > 0 && key_heads > 0 && heads % key_heads == 0 && (!args.causal || rows == keys));
  if (args.math == AttentionMath::eight_bit) return attention_eight_bit(args);
  const int64_t blocks = (rows + kQueries - 1) / kQueries;
  context_.pool.parallel(batch * heads * blocks, [&](int64_t task) {
    const int64_t b = task / (heads * blocks), head = task / blocks % heads, first = task % blocks * kQueries;
    const int64_t key_head = head / (heads / key_heads);
    attend({head_of(q, b, head), head_of(args.k, b, key_head), head_of(args.v, b, key_head), head_of(args.out, b, head),
            args.scale, args.causal},
           first, std::min(kQueries, rows - first));
  });
}

}  // namespace h3
