// h3 compare on tensors: of embeddings the cosines row by row, as the cards of conditioner projections report them.
#include "pipeline/difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <span>

#include "base/error.h"
#include "store/tensor_source.h"
#include "tests/support/temp_folder.h"

namespace h3 {
namespace {

class DifferenceTest : public testing::Test {
 protected:
  std::string put(const char* name, const std::vector<float>& values, std::vector<int64_t> dims) const {
    const std::string path = root_ / name;
    write_safetensors(path, {{"prompt_embeds", Format::f32, std::move(dims), std::as_bytes(std::span(values))}}, {});
    return path;
  }

  TempFolder root_;
};

// Rows (1, 0), (0, 2), (3, 4) against (2, 0), (1, 1), (4, 3).
TEST_F(DifferenceTest, EmbeddingsAreComparedTokenByToken) {
  const std::string a = put("a.safetensors", {1, 0, 0, 2, 3, 4}, {3, 2});
  const std::string b = put("b.safetensors", {2, 0, 1, 1, 4, 3}, {3, 2});
  const Difference difference = compare_paths(a, b);
  ASSERT_EQ(difference.tensors.size(), 1u);
  const TensorDifference& t = difference.tensors[0];
  ASSERT_TRUE(t.by_row);
  const double half = std::sqrt(0.5);
  EXPECT_NEAR(t.row_mean, (1 + half + 24.0 / 25) / 3, 1e-12);
  EXPECT_NEAR(t.row_worst, half, 1e-12);
  EXPECT_EQ(t.worst_row, 1);
  // Each row with the next of the other side: (1,0)(1,1), (0,2)(4,3), (3,4)(2,0).
  EXPECT_NEAR(t.row_floor, (half + 0.6 + 0.6) / 3, 1e-12);
  EXPECT_NEAR(t.rel_l2, std::sqrt((1 + 2 + 2) / (4.0 + 2 + 25)), 1e-12);
  const std::string text = difference.to_text();
  for (const char* part : {"prompt_embeds", "mean", "worst", "row 1", "floor"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST_F(DifferenceTest, OppositeTokensAndNaNsAreSeen) {
  const std::string a = put("a.safetensors", {1, 0, 0, 2}, {2, 2});
  EXPECT_NEAR(compare_paths(a, put("b.safetensors", {1, 0, 0, -2}, {2, 2})).tensors[0].row_worst, -1, 1e-12);
  EXPECT_TRUE(compare_paths(a, a).identical);
  const Difference bad = compare_paths(a, put("c.safetensors", {1, 0, 0, std::nanf("")}, {2, 2}));
  EXPECT_EQ(bad.tensors[0].non_finite, 1);
  EXPECT_FALSE(bad.tensors[0].by_row);
  EXPECT_FALSE(bad.identical);
  EXPECT_FALSE(compare_paths(a, put("d.safetensors", {1, 0, 0}, {1, 3})).tensors[0].same_shape);
}

}  // namespace
}  // namespace h3
