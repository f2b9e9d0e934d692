#include "apps/pack/velocity.h"

#include <cmath>
#include <memory>
#include <vector>

#include "backends/list.h"
#include "base/context.h"
#include "base/hash.h"
#include "model/dit/dit.h"

namespace h3 {
namespace {

constexpr float kTimes[] = {0.9f, 0.5f, 0.1f};

// Values with the variance of a standard normal, the same everywhere.
std::vector<float> noise(int64_t count, uint64_t seed) {
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) {
    const double uniform = static_cast<double>(mix64(seed ^ (i * 0x9e3779b97f4a7c15u)) >> 11) * 0x1p-53;
    out[i] = static_cast<float>((2 * uniform - 1) * std::sqrt(3.0));
  }
  return out;
}

PackedLayout small_layout() {
  LayoutSpec spec;
  spec.text_tags.assign(8, 1);
  spec.latent_frames = 2;
  spec.latent_height = spec.latent_width = 8;
  spec.audio_latents = 8;
  return build_layout(spec);
}

struct Velocities {
  std::vector<float> video, audio;
};

Velocities evaluate(Ops& ops, const Component& component, const Control& control) {
  const std::unique_ptr<Dit> dit = load_dit(ops, component, {Compute::f32, DType::f32}, control);
  const DitConfig& config = dit->config();
  const PackedLayout layout = small_layout();
  const std::vector<int64_t> video_dims{layout.target_video_rows(), config.video_row};
  const std::vector<int64_t> audio_dims{layout.target_audio_rows(), config.audio_row};
  DitRequest request;
  request.layout = &layout;
  request.text = noise(layout.text_count() * config.text_dim, 1);
  request.video_times = request.audio_times = {std::begin(kTimes), std::end(kTimes)};
  const std::unique_ptr<DitSession> session = dit->start(std::move(request), control);
  Device& device = ops.device();
  const std::vector<float> video_noise = noise(video_dims[0] * video_dims[1], 2);
  const std::vector<float> audio_noise = noise(audio_dims[0] * audio_dims[1], 3);
  const Tensor video = upload_f32(device, video_noise.data(), video_dims, DType::f32, "video rows");
  const Tensor audio = upload_f32(device, audio_noise.data(), audio_dims, DType::f32, "audio rows");
  const Tensor video_out(device, DType::f32, video_dims, "video velocity");
  const Tensor audio_out(device, DType::f32, audio_dims, "audio velocity");
  Velocities all;
  for (int i = 0; i < static_cast<int>(std::size(kTimes)); ++i) {
    session->evaluate(i, video, audio, video_out, audio_out);
    ops.sync();
    const std::vector<float> v = download_f32(video_out), a = download_f32(audio_out);
    all.video.insert(all.video.end(), v.begin(), v.end());
    all.audio.insert(all.audio.end(), a.begin(), a.end());
  }
  return all;
}

double rel_l2(const std::vector<float>& found, const std::vector<float>& given) {
  double squares = 0, reference = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const double g = static_cast<double>(given[i]), d = static_cast<double>(found[i]) - g;
    squares += d * d;
    reference += g * g;
  }
  return reference > 0 ? std::sqrt(squares / reference) : std::sqrt(squares);
}

}  // namespace

VelocityError velocity_error(const Component& given, const Component& packed, ThreadPool& pool, Log& log,
                             const Control& control) {
  Context context{pool, log};
  const std::unique_ptr<Ops> ops = make_backend("cpu", context);
  const Velocities before = evaluate(*ops, given, control), after = evaluate(*ops, packed, control);
  return {rel_l2(after.video, before.video), rel_l2(after.audio, before.audio)};
}

}  // namespace h3
