// Recorded blocks give the values of blocks that are called one by one, wherever the evaluations are cut.
#include <gtest/gtest.h>

#include "backends/list.h"
#include "base/context.h"
#include "model/dit/dit.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3 {
namespace {

TEST(Record, ABackEndThatDoesNotRecordIsAskedOnce) {
  ThreadPool pool(2);
  Log log;
  Context context{pool, log};
  const std::unique_ptr<Ops> ops = make_backend("cpu", context);
  EXPECT_EQ(ops->record([] { ADD_FAILURE() << "the calls were made"; }), nullptr);
  Component component;
  component.role = Role::dit;
  component.source = testing::toy_source();
  const Control control;
  const std::unique_ptr<Dit> dit = load_dit(*ops, component, {}, control);
  const DitConfig& config = dit->config();
  LayoutSpec spec;
  spec.text_tags.assign(5, 1);
  spec.latent_frames = 2;
  spec.latent_height = spec.latent_width = 4;
  spec.audio_latents = 3;
  const PackedLayout layout = build_layout(spec);
  const auto evaluate = [&](int64_t record) {
    TorchGenerator generator(3);
    DitRequest request;
    request.layout = &layout;
    request.text = generator.randn(layout.text_count() * config.text_dim);
    request.video_times = {0.0f, 0.3f, 0.6f};
    request.audio_times = {0.0f, 0.4f, 0.7f};
    request.record_blocks = record;
    const std::unique_ptr<DitSession> session = dit->start(std::move(request), control);
    const auto stream = [&](int64_t rows, int64_t width) {
      return upload_f32(ops->device(), generator.randn(rows * width).data(), {rows, width}, DType::f32, "test");
    };
    const Tensor video = stream(layout.target_video_rows(), config.video_row);
    const Tensor audio = stream(layout.target_audio_rows(), config.audio_row);
    const Tensor video_out = stream(layout.target_video_rows(), config.video_row);
    const Tensor audio_out = stream(layout.target_audio_rows(), config.audio_row);
    std::vector<float> all;
    for (int evaluation = 0; evaluation < 3; ++evaluation) {
      session->evaluate(evaluation, video, audio, video_out, audio_out);
      for (const float v : download_f32(video_out)) all.push_back(v);
      for (const float v : download_f32(audio_out)) all.push_back(v);
    }
    return all;
  };
  const std::vector<float> eager = evaluate(0);
  EXPECT_EQ(evaluate(1), eager);
  EXPECT_EQ(evaluate(2), eager);
  EXPECT_EQ(evaluate(config.layers), eager);
}

}  // namespace
}  // namespace h3
