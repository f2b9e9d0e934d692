#include "pipeline/plan_search.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/compare.h"
#include "base/error.h"

namespace h3 {
namespace {

constexpr int kRounds = 2;
constexpr double kAllowed = 0x1p-8;  // relative L2 of two orders of summation, rounded to bf16

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The trials at one number of rows.
class End {
 public:
  End(std::unique_ptr<MatmulTrial> trial, int64_t rows, const SearchOptions& options)
      : trial_(std::move(trial)), rows_(rows), options_(options) {
    right_.resize(static_cast<size_t>(trial_->candidates()));
    trial_->run(0);
    const std::vector<float> first = trial_->result();
    for (int c = 0; c < trial_->candidates(); ++c) {
      right_[static_cast<size_t>(c)] =
          std::isfinite(trial_->run(c)) && compare_values(trial_->result(), first, {.rel_l2 = kAllowed}).passed;
    }
    if (!right_[0]) {
      fail(Code::device, "prepare: a product of %lld rows is not finite; the card or its libraries cannot be trusted",
           static_cast<long long>(rows));
    }
    for (int round = 0; round < kRounds; ++round) measure();
  }

  int candidates() const { return trial_->candidates(); }
  bool right(int candidate) const { return right_[static_cast<size_t>(candidate)]; }
  // Of the time of candidate 0 in the round where it gains least.
  double gain(int candidate) const {
    double least = 1;
    for (const std::vector<double>& round : seconds_) {
      least = std::min(least, 1 - round[static_cast<size_t>(candidate)] / round[0]);
    }
    return least;
  }
  MatmulTrial& trial() { return *trial_; }
  Json report() const {
    Json rounds = Json::array();
    for (const std::vector<double>& round : seconds_) {
      Json list = Json::array();
      for (const double seconds : round) list.push(seconds);
      rounds.push(std::move(list));
    }
    Json wrong = Json::array();
    for (size_t c = 0; c < right_.size(); ++c) {
      if (!right_[c]) wrong.push(static_cast<int64_t>(c));
    }
    Json row = Json::object({{"rows", rows_}, {"candidates", static_cast<int64_t>(right_.size())}});
    return row.set("wrong", std::move(wrong)).set("seconds", std::move(rounds));
  }

 private:
  void measure() {
    std::vector<std::vector<double>> times(right_.size());
    for (int call = 0; call < options_.calls; ++call) {
      for (size_t c = 0; c < right_.size(); ++c) {
        if (right_[c]) times[c].push_back(trial_->run(static_cast<int>(c)));
      }
    }
    std::vector<double>& round = seconds_.emplace_back();
    for (std::vector<double>& of_candidate : times) {
      round.push_back(of_candidate.empty() ? 0 : median(std::move(of_candidate)));
    }
  }

  std::unique_ptr<MatmulTrial> trial_;
  int64_t rows_;
  const SearchOptions& options_;
  std::vector<bool> right_;
  std::vector<std::vector<double>> seconds_;  // [round][candidate]
};

}  // namespace

RowBucket bucket_of(int64_t rows) {
  H3_ASSERT(rows > 0);
  const auto bound = [](int half) { return static_cast<int64_t>(std::floor(std::exp2(0.5 * half) + 1e-9)); };
  int half = 0;
  while (bound(half) < rows) ++half;
  return {half == 0 ? 0 : bound(half - 1), bound(half)};
}

SearchResult search_matmul(const RowBucket& bucket, const SearchOptions& options, const MakeTrial& trial) {
  std::vector<std::unique_ptr<End>> ends;
  ends.push_back(std::make_unique<End>(trial(bucket.upto, nullptr), bucket.upto, options));
  if (bucket.above + 1 < bucket.upto) {
    const int64_t rows = bucket.above + 1;
    ends.push_back(std::make_unique<End>(trial(rows, &ends.front()->trial()), rows, options));
  }
  SearchResult result;
  double best = options.gain;
  for (int c = 1; c < ends.front()->candidates(); ++c) {
    double least = 1;
    for (const auto& end : ends) least = std::min(least, end->right(c) ? end->gain(c) : -1);
    if (least <= best) continue;
    best = least;
    result.candidate = c;
  }
  if (result.candidate > 0) {
    result.choices = ends.front()->trial().choices(result.candidate);
    for (PlanChoice& choice : result.choices) {
      choice.above = bucket.above;
      choice.upto = bucket.upto;
    }
  }
  Json list = Json::array();
  for (const auto& end : ends) list.push(end->report());
  result.report = Json::object({{"above", bucket.above}, {"upto", bucket.upto}, {"candidate", result.candidate}});
  result.report.set("ends", std::move(list));
  return result;
}

}  // namespace h3
