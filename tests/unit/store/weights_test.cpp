#include "store/weights.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "store/weight_table.h"

namespace h3 {
namespace {

// Tensors of zeros held in memory.
class FakeSource final : public TensorSource {
 public:
  explicit FakeSource(const std::vector<std::pair<std::string, std::vector<int64_t>>>& list) {
    for (const auto& [name, dims] : list) {
      int64_t n = 1;
      for (const int64_t dim : dims) n *= dim;
      TensorInfo info{name, Format::f32, dims, std::as_bytes(std::span(zeros_.data(), static_cast<size_t>(n)))};
      tensors_.push_back(info);
    }
    zeros_[1] = 2.5f;
    index_tensors();
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  std::string id() const override { return "fake"; }

 private:
  std::vector<float> zeros_ = std::vector<float>(64);
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_;
};

Component component_of(const std::vector<std::pair<std::string, std::vector<int64_t>>>& list, const char* prefix = "") {
  Component component;
  component.role = Role::dit;
  component.origin = "file.safetensors";
  component.prefix = prefix;
  component.source = std::make_shared<FakeSource>(list);
  return component;
}

TEST(WeightBinder, BindsAndReads) {
  const Component component = component_of({{"p.a", {2, 3}}, {"p.b", {4}}, {"other", {1}}}, "p.");
  WeightBinder binder(component);
  const TensorInfo* a = binder.require("a", {2, -1});
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(binder.optional("b", {4})->name, "p.b");
  EXPECT_EQ(binder.optional("c", {4}), nullptr);
  EXPECT_EQ(binder.values(a), (std::vector<float>{0, 2.5f, 0, 0, 0, 0}));
  EXPECT_EQ(binder.matrix(a).cols, 3);
  EXPECT_TRUE(binder.values(nullptr).empty());
  EXPECT_NO_THROW(binder.finish());  // "other" is outside the prefix
}

TEST(WeightBinder, OneErrorListsEverything) {
  const Component component =
      component_of({{"a", {2, 3}}, {"b", {4}}, {"x1", {1}}, {"x2", {1}}, {"y", {1}}, {"z", {1}}});
  WeightBinder binder(component);
  EXPECT_EQ(binder.require("a", {3, 2}), nullptr);
  EXPECT_EQ(binder.require("m1", {3, 2}), nullptr);
  EXPECT_EQ(binder.require("m2", {-1}), nullptr);
  EXPECT_EQ(binder.optional("b", {1, 4}), nullptr);
  binder.ignore("y");
  binder.ignore_prefix("x");
  try {
    binder.finish();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::data);
    EXPECT_STREQ(
        error.what(),
        "file.safetensors: these are not the weights of a transformer that this program knows; 2 tensors missing: "
        "m1 [3, 2], m2 [any]; 2 with a wrong shape or value: a is [2, 3] instead of [3, 2], b is [4] instead of "
        "[1, 4]; 1 not known: z");
  }
}

struct BlockW {
  const TensorInfo *norm, *out, *extra;
};
enum class Dim : uint8_t { none, hidden, inner };
constexpr WeightRow<BlockW, Dim> kBlock[] = {
    {&BlockW::norm, "norm.weight", {Dim::hidden}, kKeepF32},
    {&BlockW::out, "out.weight", {Dim::hidden, Dim::inner}, kQuantise | kAdapterTarget},
    {&BlockW::extra, "extra", {Dim::hidden}, kMayBeAbsent},
};
static_assert(std::size(kBlock) * sizeof(const TensorInfo*) == sizeof(BlockW), "a field has no row");

TEST(WeightTable, BindsRowsByConfig) {
  const Component component = component_of({{"b.0.norm.weight", {4}}, {"b.0.out.weight", {4, 6}}});
  WeightBinder binder(component);
  BlockW block{};
  bind_rows(binder, "b.0.", kBlock, block, [](Dim dim) -> int64_t { return dim == Dim::hidden ? 4 : 6; });
  binder.finish();
  EXPECT_EQ(block.out->dims, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(block.extra, nullptr);
}

}  // namespace
}  // namespace h3
