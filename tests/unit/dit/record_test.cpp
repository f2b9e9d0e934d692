// Recorded blocks give the values of blocks that are called one by one, wherever the evaluations are cut.
#include <gtest/gtest.h>

#include <utility>

#include "backends/list.h"
#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "model/dit/dit.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3 {
namespace {

// Keeps the calls and makes them again; as on a card, they are made by replay alone.
class RecordingOps final : public RefOps {
 public:
  using RefOps::RefOps;
  std::unique_ptr<Recording> record(const std::function<void()>& calls) override {
    ++asked;
    if (!records) return nullptr;
    return std::make_unique<Kept>(*this, calls);
  }

  bool records = true;
  int asked = 0, replays = 0;

 private:
  struct Kept final : Recording {
    Kept(RecordingOps& ops, std::function<void()> calls) : ops_(ops), calls_(std::move(calls)) {}
    void replay() override {
      ++ops_.replays;
      calls_();
    }

   private:
    RecordingOps& ops_;
    std::function<void()> calls_;
  };
};

// Called where the stack of earlier calls lay, which holds something else now: a recording has no references into it.
[[gnu::noinline]] void over_old_frames(const std::function<void()>& call) {
  volatile unsigned char rubbish[1 << 14];
  for (volatile unsigned char& byte : rubbish) byte = 0xa5;
  call();
  if (rubbish[0] != 0xa5) ADD_FAILURE() << "the stack was overwritten";
}

class Record : public ::testing::Test {
 protected:
  Record() {
    component_.role = Role::dit;
    component_.source = testing::toy_source();
    dit_ = load_dit(ops_, component_, {}, control_);
    LayoutSpec spec;
    spec.text_tags.assign(5, 1);
    spec.latent_frames = 2;
    spec.latent_height = spec.latent_width = 4;
    spec.audio_latents = 3;
    layout_ = build_layout(spec);
  }

  // Three evaluations; blocks one by one with 0.
  std::vector<float> evaluate(int64_t record) {
    ops_.asked = ops_.replays = 0;
    const DitConfig& config = dit_->config();
    TorchGenerator generator(3);
    DitRequest request;
    request.layout = &layout_;
    request.text = generator.randn(layout_.text_count() * config.text_dim);
    request.video_times = {0.0f, 0.3f, 0.6f};
    request.audio_times = {0.0f, 0.4f, 0.7f};
    request.record_blocks = record;
    const std::unique_ptr<DitSession> session = dit_->start(std::move(request), control_);
    const auto stream = [&](int64_t rows, int64_t width) {
      return upload_f32(ops_.device(), generator.randn(rows * width).data(), {rows, width}, DType::f32, "test");
    };
    const Tensor video = stream(layout_.target_video_rows(), config.video_row);
    const Tensor audio = stream(layout_.target_audio_rows(), config.audio_row);
    const Tensor video_out = stream(layout_.target_video_rows(), config.video_row);
    const Tensor audio_out = stream(layout_.target_audio_rows(), config.audio_row);
    std::vector<float> all;
    for (int evaluation = 0; evaluation < 3; ++evaluation) {
      const auto run = [&] { session->evaluate(evaluation, video, audio, video_out, audio_out); };
      evaluation == 2 ? over_old_frames(run) : run();
      for (const float v : download_f32(video_out)) all.push_back(v);
      for (const float v : download_f32(audio_out)) all.push_back(v);
    }
    dense_calls_ = session->sparse_report().dense;
    return all;
  }

  ThreadPool pool_{2};
  Log log_;
  Context context_{pool_, log_};
  RecordingOps ops_{context_};
  Component component_;
  const Control control_;
  std::unique_ptr<Dit> dit_;
  PackedLayout layout_;
  int64_t dense_calls_ = 0;
};

TEST_F(Record, RepeatedBlocksGiveTheValuesOfCalledOnes) {
  const int64_t layers = dit_->config().layers;
  const std::vector<float> eager = evaluate(0);
  EXPECT_EQ(ops_.asked, 0);
  for (const int64_t span : {int64_t{1}, int64_t{2}, layers}) {
    EXPECT_EQ(evaluate(span), eager) << span;
    const int64_t spans = (layers + span - 1) / span;
    EXPECT_EQ(ops_.asked, spans) << "the first evaluation calls, the second records";
    EXPECT_EQ(ops_.replays, 2 * spans);
    EXPECT_EQ(dense_calls_, 3 * layers) << span;
  }
}

TEST_F(Record, ABackEndThatDoesNotRecordIsAskedOnce) {
  const std::vector<float> eager = evaluate(0);
  ops_.records = false;
  EXPECT_EQ(evaluate(2), eager);
  EXPECT_EQ(ops_.asked, 1);
  EXPECT_EQ(make_backend("cpu", context_)->record([] { ADD_FAILURE() << "the calls were made"; }), nullptr);
}

}  // namespace
}  // namespace h3
