#include "pipeline/plan_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"

namespace h3 {
namespace {

// Candidates with given times, by rows; the values of those in `wrong` are others.
struct Table {
  std::map<int64_t, std::vector<double>> seconds;
  std::vector<int> wrong;
  std::vector<int> slow_again;  // candidates that lose their advantage in later calls
  int calls = 0;
  std::vector<const MatmulTrial*> likes;
  int fades_after = 0;  // calls
};

class TableTrial final : public MatmulTrial {
 public:
  TableTrial(Table& table, int64_t rows) : table_(table), seconds_(table.seconds.at(rows)) {}
  int candidates() const override { return static_cast<int>(seconds_.size()); }
  double run(int candidate) override {
    ++table_.calls;
    last_ = candidate;
    const auto fades = [&](int c) {
      return std::find(table_.slow_again.begin(), table_.slow_again.end(), c) != table_.slow_again.end();
    };
    return fades(candidate) && table_.calls > table_.fades_after ? 1.0 : seconds_[static_cast<size_t>(candidate)];
  }
  std::vector<float> result() override {
    const bool wrong = std::find(table_.wrong.begin(), table_.wrong.end(), last_) != table_.wrong.end();
    return {1, 2, wrong ? 4.0f : 3.0f};
  }
  std::vector<PlanChoice> choices(int candidate) override {
    return {{"5376x21504 bf16>bf16", 0, 0, {static_cast<std::byte>(candidate)}}};
  }

 private:
  Table& table_;
  std::vector<double> seconds_;
  int last_ = 0;
};

SearchResult search(Table& table, const RowBucket& bucket = {1448, 2048}) {
  return search_matmul(bucket, {}, [&](int64_t rows, MatmulTrial* like) {
    table.likes.push_back(like);
    return std::make_unique<TableTrial>(table, rows);
  });
}

TEST(RowBucket, BoundsArePowersOfTheRootOfTwo) {
  for (const int64_t rows : {1, 2, 3, 63, 1448, 1449, 1874, 2048, 2049, 19300, 37726, 262144}) {
    const RowBucket bucket = bucket_of(rows);
    EXPECT_LT(bucket.above, rows);
    EXPECT_LE(rows, bucket.upto);
    EXPECT_EQ(bucket_of(bucket.upto).above, bucket.above) << rows;
    EXPECT_EQ(bucket_of(bucket.above + 1).upto, bucket.upto) << rows;
  }
  EXPECT_EQ(bucket_of(1874).above, 1448);
  EXPECT_EQ(bucket_of(1874).upto, 2048);
}

TEST(PlanSearch, TheFirstProposalStaysUnlessAnotherIsClearlyFaster) {
  Table close{{{2048, {1.0, 0.98}}, {1449, {1.0, 0.98}}}, {}, {}, 0, {}};
  EXPECT_EQ(search(close).candidate, 0);
  EXPECT_TRUE(search(close).choices.empty());
  Table clear{{{2048, {1.0, 0.95, 0.90}}, {1449, {1.0, 0.94, 0.99}}}, {}, {}, 0, {}};
  const SearchResult found = search(clear);
  EXPECT_EQ(found.candidate, 1) << "the third is not faster at the other end";
  ASSERT_EQ(found.choices.size(), 1u);
  EXPECT_EQ(found.choices[0].above, 1448);
  EXPECT_EQ(found.choices[0].upto, 2048);
  EXPECT_EQ(found.choices[0].data, std::vector<std::byte>{std::byte{1}});
  ASSERT_EQ(clear.likes.size(), 2u);
  EXPECT_EQ(clear.likes[0], nullptr);
  EXPECT_NE(clear.likes[1], nullptr) << "the same candidates at both ends";
  EXPECT_EQ(found.report.at("ends").size(), 2u);
}

TEST(PlanSearch, WrongValuesAreNeverTaken) {
  Table table{{{2048, {1.0, 0.5, 0.8}}, {1449, {1.0, 0.5, 0.8}}}, {1}, {}, 0, {}};
  const SearchResult found = search(table);
  EXPECT_EQ(found.candidate, 2);
  EXPECT_EQ(found.report.at("ends").at(0).at("wrong").dump(), "[1]");
}

TEST(PlanSearch, WhatCannotMultiplySoManyRowsIsNotTaken) {
  const double never = std::numeric_limits<double>::infinity();
  Table table{{{2048, {1.0, 0.5}}, {1449, {1.0, never}}}, {}, {}, 0, {}};
  EXPECT_EQ(search(table).candidate, 0);
}

TEST(PlanSearch, AnAdvantageOfOneRoundIsNone) {
  // A bucket of one number of rows has one end: nothing else refuses the candidate.
  Table lasting{{{2, {1.0, 0.5}}}, {}, {}, 0, {}};
  EXPECT_EQ(search(lasting, {1, 2}).candidate, 1);
  const int first = 3, round = 2 * SearchOptions().calls;  // calls: one alone and each for its result; of a round
  ASSERT_EQ(lasting.calls, first + 2 * round);
  Table fading{{{2, {1.0, 0.5}}}, {}, {1}, 0, {}};
  fading.fades_after = first + round;  // between the rounds
  EXPECT_EQ(search(fading, {1, 2}).candidate, 0);
}

TEST(PlanSearch, AFirstProposalThatIsNotFiniteIsAnError) {
  Table table{{{2048, {std::numeric_limits<double>::infinity()}}, {1449, {1.0}}}, {}, {}, 0, {}};
  EXPECT_THROW(search(table), Error);
}

}  // namespace
}  // namespace h3
