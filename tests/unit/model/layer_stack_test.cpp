#include "model/layer_stack.h"

#include <gtest/gtest.h>

#include <string>

#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "model/dit/dit.h"
#include "sampling/rng.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3 {
namespace {

// A card with room for two groups: what is brought, found there, and read.
struct Card {
  std::vector<int64_t> slots;  // groups, in the order they came
  int entered = 0, misses = 0, brought = 0;
  int64_t groups = 0;
};

class CardGroup final : public WeightGroup {
 public:
  CardGroup(Card& card, int64_t id) : card_(card), id_(id) { bytes = 100; }
  ~CardGroup() override { std::erase(card_.slots, id_); }
  void prefetch() override {
    if (there()) return;
    ++card_.brought;
    if (card_.slots.size() == 2) card_.slots.erase(card_.slots.begin());
    card_.slots.push_back(id_);
  }
  void enter() override {
    card_.misses += !there();
    prefetch();
    EXPECT_LE(++card_.entered, 2);
  }
  void leave() override {
    EXPECT_TRUE(there()) << "group " << id_ << " was replaced while it was read";
    --card_.entered;
  }

 private:
  bool there() const { return std::find(card_.slots.begin(), card_.slots.end(), id_) != card_.slots.end(); }
  Card& card_;
  int64_t id_;
};

class CardOps final : public RefOps {
 public:
  using RefOps::RefOps;
  Card card;
  std::unique_ptr<WeightGroup> make_group() override { return std::make_unique<CardGroup>(card, card.groups++); }
};

struct Layer {
  int64_t index = 0;
  int64_t bytes() const { return 10; }
};

class LayerStackTest : public ::testing::Test {
 protected:
  // A pass as the denoiser makes it: the next layer's norms are read before this one is left.
  static void pass(LayerStack<Layer>& stack) {
    for (int64_t i = 0; i < stack.size(); ++i) {
      EXPECT_EQ(stack.enter(i).index, i);
      if (i + 1 < stack.size()) {
        EXPECT_EQ(stack.at(i + 1).index, i + 1);
      }
      stack.leave(i);
    }
  }
  static LayerStack<Layer> stack_of(Ops& ops, int64_t count, int64_t resident, int* made = nullptr) {
    LayerStack<Layer> stack;
    stack.load(
        ops, count, resident,
        [made](int64_t i, WeightGroup*) {
          if (made != nullptr) ++*made;
          return Layer{i};
        },
        [](int64_t) {});
    return stack;
  }

  ThreadPool pool_{1};
  Log log_;
  Context context_{pool_, log_};
};

TEST_F(LayerStackTest, EveryLayerIsThereWhenItIsReached) {
  CardOps ops(context_);
  LayerStack<Layer> stack = stack_of(ops, 7, 2);
  EXPECT_EQ(ops.card.groups, 5);
  EXPECT_EQ(stack.bytes(), 7 * 10 + 2 * 100);
  for (int i = 0; i < 3; ++i) pass(stack);
  EXPECT_EQ(ops.card.misses, 0);
  EXPECT_EQ(ops.card.entered, 0);
  EXPECT_EQ(ops.card.brought, 2 + 3 * 5);  // one for every layer of a pass, two ahead
}

TEST_F(LayerStackTest, APassThatWasStoppedIsForgotten) {
  CardOps ops(context_);
  LayerStack<Layer> stack = stack_of(ops, 6, 0);
  stack.enter(0);
  stack.enter(1);  // and an error ends the run
  pass(stack);
  pass(stack);
  EXPECT_EQ(ops.card.entered, 0);
}

TEST_F(LayerStackTest, TwoLayersOrFewerAlwaysStay) {
  CardOps ops(context_);
  LayerStack<Layer> stack = stack_of(ops, 4, 2);
  EXPECT_EQ(stack.resident(), 4);
  EXPECT_EQ(ops.card.groups, 0);
  pass(stack);
}

TEST_F(LayerStackTest, WithoutGroupsLayersAreMadeForEachUse) {
  RefOps ops(context_);
  int made = 0;
  LayerStack<Layer> stack = stack_of(ops, 5, 1, &made);
  EXPECT_EQ(made, 1);
  pass(stack);
  EXPECT_EQ(made, 5);
  pass(stack);
  EXPECT_EQ(made, 9);
}

// The denoiser lets the back end bound how far the host runs ahead, once a layer.
class PacedOps final : public RefOps {
 public:
  using RefOps::RefOps;
  int paces = 0;
  void pace() override { ++paces; }
};

// The same bytes wherever the layers wait.
TEST_F(LayerStackTest, StreamingChangesNoBit) {
  const testing::ToySize size;
  const Component component = testing::component_of(testing::toy_source());
  LayoutSpec spec;
  spec.text_tags = {1, 1, 1};
  spec.latent_frames = 2;
  spec.latent_height = 4;
  spec.latent_width = 6;
  spec.audio_latents = 4;
  const PackedLayout layout = build_layout(spec);
  const auto run = [&](Ops& ops, int64_t resident) {
    const Control control;
    DitOptions options;
    options.resident_layers = resident;
    const std::unique_ptr<Dit> dit = load_dit(ops, component, options, control);
    TorchGenerator generator(3);
    DitRequest request;
    request.layout = &layout;
    request.text = generator.randn(layout.text_count() * size.text);
    request.video_times = request.audio_times = {0.25f, 0.75f};
    const std::unique_ptr<DitSession> session = dit->start(std::move(request), control);
    std::vector<float> all;
    for (int evaluation = 0; evaluation < 2; ++evaluation) {
      const std::vector<int64_t> video{layout.target_video_rows(), size.video_row};
      const std::vector<int64_t> audio{layout.target_audio_rows(), size.audio_row};
      Device& device = ops.device();
      const Tensor xv = upload_f32(device, generator.randn(video[0] * video[1]).data(), video, DType::f32, "rows");
      const Tensor xa = upload_f32(device, generator.randn(audio[0] * audio[1]).data(), audio, DType::f32, "rows");
      const Tensor vv(device, DType::f32, video, "velocity"), va(device, DType::f32, audio, "velocity");
      session->evaluate(evaluation, xv, xa, vv, va);
      ops.sync();
      for (const Tensor* tensor : {&vv, &va}) {
        const std::vector<float> values = download_f32(*tensor);
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  };
  RefOps plain(context_);
  const std::vector<float> expected = run(plain, kAllLayers);
  EXPECT_EQ(run(plain, 0), expected);
  PacedOps paced(context_);
  run(paced, kAllLayers);
  EXPECT_EQ(paced.paces, 2 * size.layers);  // two evaluations
  CardOps card(context_);
  EXPECT_EQ(run(card, 0), expected);
  EXPECT_EQ(card.card.groups, size.layers);
  EXPECT_EQ(card.card.misses, 0);
}

}  // namespace
}  // namespace h3
