// The default body of sparse_attention: plain loops in double on the host's pool.
#include <algorithm>
#include <cmath>

#include "base/context.h"
#include "base/error.h"
#include "ops/ops.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

constexpr double kLog2e = 1.4426950408889634;

int64_t blocks_of(int64_t rows) { return (rows + kSparseBlock - 1) / kSparseBlock; }

// The keys and values of one head, and what stands for their blocks.
struct HeadSummary {
  int64_t rows, dim, blocks;
  std::vector<double> k, v;    // [S, D]
  std::vector<double> kc, vc;  // [NT, D] rounded to T
  std::vector<double> mu, var;

  HeadSummary(const View& keys, const View& values)
      : rows(keys.dim[0]),
        dim(keys.dim[1]),
        blocks(blocks_of(rows)),
        k(static_cast<size_t>(rows * dim)),
        v(k.size()),
        kc(static_cast<size_t>(blocks * dim)),
        vc(kc.size()),
        mu(static_cast<size_t>(dim)),
        var(static_cast<size_t>(dim)) {
    for (int64_t r = 0; r < rows; ++r) {
      rows::load_row(keys, r, 0, dim, &k[r * dim]);
      rows::load_row(values, r, 0, dim, &v[r * dim]);
      double* const mean = &kc[r / kSparseBlock * dim];
      double* const sum = &vc[r / kSparseBlock * dim];
      for (int64_t d = 0; d < dim; ++d) {
        mean[d] += k[r * dim + d];
        sum[d] += v[r * dim + d];
      }
    }
    for (int64_t n = 0; n < blocks; ++n) {
      for (int64_t d = 0; d < dim; ++d) {
        kc[n * dim + d] = rows::round_to(keys.type, kc[n * dim + d] / static_cast<double>(length(n)));
        vc[n * dim + d] = rows::round_to(values.type, vc[n * dim + d]);
        mu[d] += kc[n * dim + d] / static_cast<double>(blocks);
        var[d] += kc[n * dim + d] * kc[n * dim + d] / static_cast<double>(blocks);
      }
    }
    for (int64_t d = 0; d < dim; ++d) var[d] = std::max(var[d] - mu[d] * mu[d], 0.0);
  }
  int64_t length(int64_t n) const { return std::min(kSparseBlock, rows - n * kSparseBlock); }
};

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// One block of queries of one head.
class QueryBlock {
 public:
  QueryBlock(const SparseAttentionArgs& args, const HeadSummary& head, const View& q, int64_t block)
      : args_(args),
        head_(head),
        block_(block),
        first_(block * kSparseBlock),
        count_(std::min(kSparseBlock, q.dim[0] - first_)),
        scale_(static_cast<double>(args.scale) * kLog2e),
        queries_(static_cast<size_t>(count_ * head.dim)),
        scores_(static_cast<size_t>(count_ * head.blocks)) {
    for (int64_t i = 0; i < count_; ++i) rows::load_row(q, first_ + i, 0, head.dim, &queries_[i * head.dim]);
    for (int64_t i = 0; i < count_; ++i) {
      for (int64_t n = 0; n < head.blocks; ++n) {
        scores_[i * head.blocks + n] = dot(&queries_[i * head.dim], &head.kc[n * head.dim], head.dim) * scale_;
      }
    }
  }

  std::vector<bool> exact() const {
    std::vector<bool> out(static_cast<size_t>(head_.blocks));
    if (!args_.mask.empty()) {
      const uint8_t* row = host<uint8_t>(args_.mask.select(0, block_));
      for (int64_t n = 0; n < head_.blocks; ++n) out[n] = row[n * args_.mask.stride[1]] != 0;
      return out;
    }
    std::vector<double> centre(static_cast<size_t>(head_.dim));
    for (int64_t i = 0; i < count_; ++i) {
      for (int64_t d = 0; d < head_.dim; ++d) centre[d] += queries_[i * head_.dim + d] / static_cast<double>(count_);
    }
    double spread = 0;
    for (int64_t d = 0; d < head_.dim; ++d) spread += centre[d] * centre[d] * head_.var[d];
    const double threshold = dot(centre.data(), head_.mu.data(), head_.dim) * scale_ +
                             static_cast<double>(args_.tau) * std::sqrt(std::max(spread, 0.0) * scale_ * scale_ + 1e-6);
    for (int64_t n = 0; n < head_.blocks; ++n) {
      double mean = 0;
      for (int64_t i = 0; i < count_; ++i) mean += scores_[i * head_.blocks + n] / static_cast<double>(count_);
      out[n] = mean > threshold || std::abs(block_ - n) <= 1 || n < blocks_of(args_.exact_keys);
    }
    return out;
  }

  void attend(const std::vector<bool>& exact, const View& out) const {
    for (int64_t i = 0; i < count_; ++i) attend_row(exact, i, out);
  }

 private:
  void attend_row(const std::vector<bool>& exact, int64_t i, const View& out) const {
    const DType type = args_.v.type;
    const double* query = &queries_[i * head_.dim];
    std::vector<double> score, weight;
    std::vector<const double*> value;
    for (int64_t n = 0; n < head_.blocks; ++n) {
      if (!exact[n]) {
        score.push_back(scores_[i * head_.blocks + n]);
        weight.push_back(static_cast<double>(head_.length(n)));
        value.push_back(&head_.vc[n * head_.dim]);
        continue;
      }
      for (int64_t key = n * kSparseBlock; key < n * kSparseBlock + head_.length(n); ++key) {
        score.push_back(dot(query, &head_.k[key * head_.dim], head_.dim) * scale_);
        weight.push_back(1);
        value.push_back(&head_.v[key * head_.dim]);
      }
    }
    double top = score[0], total = 0;
    for (const double s : score) top = s > top ? s : top;
    std::vector<double> sum(static_cast<size_t>(head_.dim));
    for (size_t j = 0; j < score.size(); ++j) {
      const double p = std::exp2(score[j] - top), rounded = type == DType::f32 ? p : rows::round_to(type, p);
      total += p * weight[j];
      for (int64_t d = 0; d < head_.dim; ++d) sum[d] += rounded * value[j][d];
    }
    for (double& s : sum) s /= total;
    rows::store_row(out, first_ + i, 0, head_.dim, sum.data());
  }

  const SparseAttentionArgs& args_;
  const HeadSummary& head_;
  int64_t block_, first_, count_;
  double scale_;
  std::vector<double> queries_;  // [count, D]
  std::vector<double> scores_;   // [count, NT] of the summary keys
};

}  // namespace

void Ops::sparse_attention(const SparseAttentionArgs& args) {
  H3_ASSERT(args.q.rank == 3 && rows::same_dims(args.q, args.k) && rows::same_dims(args.q, args.v));
  H3_ASSERT(rows::same_dims(args.q, args.out) && device().is_host());
  const int64_t heads = args.q.dim[1], blocks = blocks_of(args.q.dim[0]);
  H3_ASSERT(args.mask.empty() || (args.mask.dim[0] == blocks && args.mask.dim[1] == blocks));
  for (int64_t h = 0; h < heads; ++h) {
    const View q = args.q.select(1, h), out = args.out.select(1, h);
    const HeadSummary head(args.k.select(1, h), args.v.select(1, h));
    std::vector<int32_t> exact(static_cast<size_t>(blocks));
    context().pool.parallel(blocks, [&](int64_t block) {
      const QueryBlock queries(args, head, q, block);
      const std::vector<bool> chosen = queries.exact();
      exact[block] = static_cast<int32_t>(std::count(chosen.begin(), chosen.end(), true));
      queries.attend(chosen, out);
    });
    if (args.exact_blocks.empty()) continue;
    for (const int32_t count : exact) *host<int32_t>(args.exact_blocks) += count;
  }
}

}  // namespace h3
