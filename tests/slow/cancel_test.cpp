// A stop takes effect within two blocks: the host does not run further ahead of a card (Ops::pace). Cards only.
#include <gtest/gtest.h>

#include <chrono>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "model/dit/dit.h"
#include "model/synthetic.h"
#include "sampling/rng.h"
#include "sampling/schedule.h"

namespace h3 {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

TEST(Cancel, LandsWithinTwoBlocks) {
  ThreadPool pool;
  Log log;
  Context context{pool, log};
  std::unique_ptr<Ops> ops;
  for (const BackendInfo& info : list_backends(context)) {
    if (!ops && info.refused.empty() && info.name.rfind("cuda", 0) == 0) ops = make_backend(info.name, context);
  }
  if (!ops) GTEST_SKIP() << "no card";
  constexpr int kLayers = 16, kStopAt = 10;
  int checks = 0;
  bool stops = false;
  Control control;
  control.on_check = [&] {
    if (stops && ++checks == kStopAt) control.request_stop();
  };
  const DitConfig config = release_dit_config(kLayers);
  const std::unique_ptr<Dit> dit =
      load_dit(*ops, synthetic_dit(config, 1), {Compute::bf16, DType::bf16}, control);
  LayoutSpec spec;  // 124 frames of 960x544
  spec.text_tags.assign(16, 1);
  spec.latent_frames = 37;
  spec.latent_height = 34;
  spec.latent_width = 60;
  spec.audio_latents = 207;
  const PackedLayout layout = build_layout(spec);
  DitRequest request;
  request.layout = &layout;
  request.text = TorchGenerator(7).randn(16 * config.text_dim);
  request.video_times = diffusers_grid(3, 12).time;
  request.audio_times = diffusers_grid(3, 3).time;
  const std::unique_ptr<DitSession> session = dit->start(std::move(request), control);
  const int64_t video = static_cast<int64_t>(layout.video_rows.size());
  const int64_t audio = static_cast<int64_t>(layout.audio_rows.size());
  const Tensor xv(ops->device(), DType::f32, {video, config.video_row}, "video rows");
  const Tensor xa(ops->device(), DType::f32, {audio, config.audio_row}, "audio rows");
  const Tensor vv(ops->device(), DType::f32, {video, config.video_row}, "velocity");
  const Tensor va(ops->device(), DType::f32, {audio, config.audio_row}, "velocity");
  ops->fill(xv, 0.5f);
  ops->fill(xa, 0.5f);
  const auto seconds = [&] {
    const double start = now();
    session->evaluate(1, xv, xa, vv, va);
    ops->sync();
    return now() - start;
  };
  seconds();
  const double block = seconds() / kLayers;
  stops = true;
  EXPECT_THROW(session->evaluate(1, xv, xa, vv, va), Error);
  ASSERT_EQ(checks, kStopAt);
  // What the host had queued by then. Without the bound these were the nine blocks before the stop.
  const double start = now();
  ops->sync();
  EXPECT_LE((now() - start) / block, 3.5);
}

}  // namespace
}  // namespace h3
