// One block of release shape (hidden 5376, 56 heads, ffn 14336) on 480 rows, every call repeated on the oracle.
// Minutes: the oracle multiplies 385 million weights with 480 rows in double.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "model/dit/dit.h"
#include "model/synthetic.h"
#include "ops/shadow.h"
#include "sampling/rng.h"
#include "sampling/schedule.h"

namespace h3 {
namespace {

TEST(ReleaseBlock, MatchesTheOracleCallByCall) {
  ThreadPool pool;
  Log log;
  Context context{pool, log};
  const std::unique_ptr<Ops> ops = make_shadow(make_backend("cpu", context), make_backend("ref", context));
  const Control control;
  const DitConfig config = release_dit_config(1);
  DitOptions options;
  options.compute = Compute::bf16;
  options.activation = DType::bf16;
  const std::unique_ptr<Dit> dit = load_dit(*ops, synthetic_dit(config, 11), options, control);

  LayoutSpec spec;
  spec.text_tags.assign(14, 1);
  spec.latent_frames = 7;  // 22 frames of 256x224
  spec.latent_height = 14;
  spec.latent_width = 16;
  spec.audio_latents = 37;
  const PackedLayout layout = build_layout(spec);
  ASSERT_EQ(layout.rows, 480);

  TorchGenerator generator(3);
  DitRequest request;
  request.layout = &layout;
  request.text = generator.randn(14 * config.text_dim);
  request.video_times = diffusers_grid(3, 12).time;
  request.audio_times = diffusers_grid(3, 3).time;
  const std::unique_ptr<DitSession> session = dit->start(std::move(request), control);
  const int64_t video = static_cast<int64_t>(layout.video_rows.size());
  const int64_t audio = static_cast<int64_t>(layout.audio_rows.size());
  Device& device = ops->device();
  const Tensor xv = upload_f32(device, generator.randn(video * config.video_row).data(), {video, config.video_row},
                               DType::f32, "video rows");
  const Tensor xa = upload_f32(device, generator.randn(audio * config.audio_row).data(), {audio, config.audio_row},
                               DType::f32, "audio rows");
  const Tensor vv(device, DType::f32, {video, config.video_row}, "velocity");
  const Tensor va(device, DType::f32, {audio, config.audio_row}, "velocity");
  ASSERT_NO_THROW(session->evaluate(1, xv, xa, vv, va));  // the first call that leaves its contract throws
  for (const float v : download_f32(vv)) ASSERT_TRUE(std::isfinite(v));
  for (const float v : download_f32(va)) ASSERT_TRUE(std::isfinite(v));
}

}  // namespace
}  // namespace h3
