#include "model/vae/video_encoder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "ops/values.h"

namespace h3 {
namespace {

// The first elements of a scratch view as [channels, t, h, w].
View shaped(const View& scratch, int64_t channels, const int64_t extent[3]) {
  return scratch.slice(0, 0, channels * extent[0] * extent[1] * extent[2])
      .reshape({channels, extent[0], extent[1], extent[2]});
}

// [C, F, H, W] of a clip into [C, t, h, w] of one tile; frames beyond the last repeat it.
void cut_tile(const float* pixels, int64_t channels, int frames, int height, int width, int y, int x,
              const int64_t extent[3], float* out) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t t = 0; t < extent[0]; ++t) {
      const int64_t frame = c * frames + std::min<int64_t>(t, frames - 1);
      for (int64_t r = 0; r < extent[1]; ++r, out += extent[2]) {
        const float* row = pixels + (frame * height + y + r) * width + x;
        std::copy(row, row + extent[2], out);
      }
    }
  }
}

}  // namespace

VideoEncoder::VideoEncoder(Ops& ops, const Component& component, const VideoVaeConfig& config,
                           const VideoVaeTensors& tensors, const VideoVaeOptions& options)
    : ops_(ops),
      component_(component),
      tensors_(tensors),
      config_(config),
      compute_(options.encoder_compute),
      tiling_(options.tiling),
      observe_(options.observe) {}

std::unique_ptr<Conv> VideoEncoder::make_conv(const WeightBinder& binder, const char* label, const TensorInfo* weight,
                                              const TensorInfo* bias, int space, int time, Kind kind) {
  ConvSpec spec;
  spec.label = std::string("video_vae.encoder.") + label;
  spec.kind = ConvKind::conv3d;
  spec.compute = compute_;
  VideoKernel kernel = read_kernel(binder, tensors_, weight, kind == Kind::picture);
  spec.out = kernel.out;
  spec.in = kernel.in;
  spec.weight = std::move(kernel.values);
  spec.bias = binder.values(bias);
  const int side = kernel.side;
  const bool one_tap = kind == Kind::picture || kernel.taps == 1;
  spec.kernel[0] = kernel.taps;
  spec.kernel[1] = spec.kernel[2] = side;
  spec.stride[0] = one_tap ? 1 : time;
  spec.stride[1] = spec.stride[2] = space;
  spec.pad_before[0] = spec.kernel[0] - 1;
  if (side > 1) {
    spec.spatial_pad = Pad::reflect;
    for (int axis : {1, 2}) {
      spec.pad_before[axis] = space == 1 ? 1 : 0;
      spec.pad_after[axis] = 1;
    }
  }
  std::unique_ptr<Conv> conv = ops_.make_conv(std::move(spec));
  weight_bytes_ += conv->bytes;
  return conv;
}

VideoEncoder::Norm VideoEncoder::make_norm(const WeightBinder& binder, const TensorInfo* weight,
                                           const TensorInfo* bias) {
  const int64_t channels = weight->dims[0];
  weight_bytes_ += 8 * channels;
  return {upload_f32(ops_.device(), binder.values(weight).data(), {channels}, DType::f32, "video encoder"),
          upload_f32(ops_.device(), binder.values(bias).data(), {channels}, DType::f32, "video encoder")};
}

VideoEncoder::Resnet VideoEncoder::make_resnet(const WeightBinder& binder, const ResnetTensors& t,
                                               const ShortcutTensors& shortcut, const std::string& label, Kind kind) {
  Resnet resnet;
  resnet.norm1 = make_norm(binder, t.norm1, t.norm1_bias);
  resnet.norm2 = make_norm(binder, t.norm2, t.norm2_bias);
  resnet.conv1 = make_conv(binder, (label + "conv1").c_str(), t.conv1, t.conv1_bias, 1, 1, kind);
  resnet.conv2 = make_conv(binder, (label + "conv2").c_str(), t.conv2, t.conv2_bias, 1, 1, kind);
  if (shortcut.conv != nullptr) {
    resnet.shortcut = make_conv(binder, (label + "shortcut").c_str(), shortcut.conv, shortcut.bias, 1, 1, kind);
  }
  return resnet;
}

const VideoEncoder::Net& VideoEncoder::net(Kind kind) {
  std::unique_ptr<Net>& slot = nets_[static_cast<int>(kind)];
  if (slot != nullptr) return *slot;
  const WeightBinder binder(component_);
  auto net = std::make_unique<Net>();
  const EncoderTensors& t = tensors_.encoder;
  net->in = make_conv(binder, "conv_in", t.conv_in, t.conv_in_bias, 1, 1, kind);
  for (size_t level = 0; level < tensors_.levels.size(); ++level) {
    const VideoVaeTensors::Level& tensors = tensors_.levels[level];
    const std::string label = "down." + std::to_string(level) + ".";
    Level made;
    for (size_t b = 0; b < tensors.resnets.size(); ++b) {
      made.blocks.push_back(make_resnet(binder, tensors.resnets[b], tensors.shortcuts[b],
                                        label + "resnet." + std::to_string(b) + ".", kind));
    }
    if (tensors.down.conv != nullptr) {
      made.down = make_conv(binder, (label + "downsample").c_str(), tensors.down.conv, tensors.down.bias,
                            config_.space_down[level], config_.time_down[level], kind);
    }
    net->levels.push_back(std::move(made));
  }
  net->norm_out = make_norm(binder, t.norm_out, t.norm_out_bias);
  net->out = make_conv(binder, "conv_out", t.conv_out, t.conv_out_bias, 1, 1, kind);
  net->quant = make_conv(binder, "quant_conv", t.quant, t.quant_bias, 1, 1, kind);
  slot = std::move(net);
  return *slot;
}

// Scratch for one tile: its pixels and three activations.
WorkspacePlan VideoEncoder::plan_tile(int frames, int height, int width) const {
  const int64_t h = tile_axis(height, tiling_.tile, tiling_.overlap, config_.ratio).lengths[0];
  const int64_t w = tile_axis(width, tiling_.tile, tiling_.overlap, config_.ratio).lengths[0];
  const int64_t frames_in = frames == 1 ? 1 : config_.clip.clip;
  int64_t largest = 0, extent[3] = {frames_in, h, w};
  for (size_t level = 0; level < config_.channels.size(); ++level) {
    const int64_t channels = std::max(config_.level_input(level), config_.channels[level]);
    largest = std::max(largest, channels * extent[0] * extent[1] * extent[2]);
    extent[0] = (extent[0] + config_.time_down[level] - 1) / config_.time_down[level];
    extent[1] /= config_.space_down[level];
    extent[2] /= config_.space_down[level];
  }
  largest = std::max(largest, 2 * config_.latent * extent[0] * extent[1] * extent[2]);
  return plan_workspace({{"pixels", DType::f32, {config_.pixels, frames_in, h, w}},
                         {"a", DType::f32, {largest}},
                         {"b", DType::f32, {largest}},
                         {"c", DType::f32, {largest}}});
}

int64_t VideoEncoder::scratch_bytes(int frames, int height, int width) const {
  return plan_tile(frames, height, width).bytes;
}

void VideoEncoder::observe(const std::string& stage, const View& value) const {
  if (observe_) observe_(stage, value);
}

// h = shortcut(h) + conv2(silu(norm(conv1(silu(norm(h)))))); h is in scratch.a before and after.
void VideoEncoder::run_resnet(const Resnet& resnet, Scratch& s, const int64_t extent[3], const std::string& label) {
  const int groups = static_cast<int>(config_.groups);
  const int64_t in = resnet.conv1->spec.in, out = resnet.conv1->spec.out;
  const View x = shaped(s.a, in, extent), normed = shaped(s.b, in, extent);
  ops_.group_norm_silu(x, groups, resnet.norm1.weight, resnet.norm1.bias, config_.group_eps, normed);
  observe(label + ".norm1", normed);
  const View middle = shaped(s.c, out, extent), branch = shaped(s.b, out, extent);
  ops_.conv(*resnet.conv1, normed, middle);
  observe(label + ".conv1", middle);
  ops_.group_norm_silu(middle, groups, resnet.norm2.weight, resnet.norm2.bias, config_.group_eps, middle);
  ops_.conv(*resnet.conv2, middle, branch);
  View straight = x;
  if (resnet.shortcut != nullptr) {
    straight = shaped(s.c, out, extent);
    ops_.conv(*resnet.shortcut, x, straight);
    observe(label + ".shortcut", straight);
    std::swap(s.a, s.c);
  }
  ops_.add(straight, branch, straight);
  observe(label, straight);
}

void VideoEncoder::run_tile(const Net& net, Scratch& s, const View& pixels, int64_t extent[3], View& moments) {
  const auto step = [&](const Conv& conv, const char* stage) {  // a -> b, which becomes a
    int64_t after[3];
    conv.output_extent(extent, after);
    const View y = shaped(s.b, conv.spec.out, after);
    ops_.conv(conv, shaped(s.a, conv.spec.in, extent), y);
    std::copy(after, after + 3, extent);
    std::swap(s.a, s.b);
    if (stage != nullptr) observe(stage, y);
    return y;
  };
  const View first = shaped(s.a, net.in->spec.out, extent);
  ops_.conv(*net.in, pixels, first);
  observe("conv_in", first);
  for (size_t l = 0; l < net.levels.size(); ++l) {
    const std::string label = "down." + std::to_string(l);
    for (size_t b = 0; b < net.levels[l].blocks.size(); ++b) {
      run_resnet(net.levels[l].blocks[b], s, extent, label + ".resnet." + std::to_string(b));
    }
    if (net.levels[l].down != nullptr) step(*net.levels[l].down, nullptr);
    observe(label, shaped(s.a, config_.channels[l], extent));
  }
  const View last = shaped(s.a, config_.channels.back(), extent);
  ops_.group_norm_silu(last, static_cast<int>(config_.groups), net.norm_out.weight, net.norm_out.bias,
                       config_.group_eps, last);
  observe("norm_out", last);
  step(*net.out, "conv_out");
  moments = step(*net.quant, "quant_conv");
}

std::vector<float> VideoEncoder::encode(const PixelSource& pixels, int frames, int height, int width,
                                        const Control& control) {
  const Kind kind = frames == 1 ? Kind::picture : Kind::clip;
  const char* stage = kind == Kind::picture ? "encode picture" : "encode video";
  const ClipGeometry& geometry = config_.clip;
  const TileAxis ys = tile_axis(height, tiling_.tile, tiling_.overlap, config_.ratio);
  const TileAxis xs = tile_axis(width, tiling_.tile, tiling_.overlap, config_.ratio);
  const int clips = kind == Kind::picture ? 1 : (frames + geometry.clip - 1) / geometry.clip;
  const int tiles = ys.count() * xs.count();
  control.progress(stage, 0, static_cast<int64_t>(clips) * tiles);

  const Net& encoder = net(kind);
  Scratch scratch{Workspace(ops_.device(), plan_tile(frames, height, width), "video encoder"), {}, {}, {}};
  scratch.a = scratch.memory["a"];
  scratch.b = scratch.memory["b"];
  scratch.c = scratch.memory["c"];
  const View input = scratch.memory["pixels"];
  const int64_t whole[3] = {input.dim[1], input.dim[2], input.dim[3]};
  ops_.reserve(whole[0] * whole[1] * whole[2], config_.channels.back());

  const int64_t channels = 2 * config_.latent,
                area = static_cast<int64_t>(height / config_.ratio) * (width / config_.ratio);
  const int64_t kept = encoded_frames(frames, geometry);
  const std::shared_ptr<std::byte> staging = ops_.device().staging(input.bytes());
  auto* const cut = reinterpret_cast<float*>(staging.get());
  const bool values = holds_values(ops_.device());
  std::vector<float> out(values ? channels * kept * area : 0), joined;
  std::vector<std::vector<float>> raw(tiles);
  const int64_t frame_values = config_.pixels * static_cast<int64_t>(height) * width;
  std::vector<float> clip_pixels(static_cast<size_t>(values ? std::min(frames, geometry.clip) * frame_values : 0));
  // The pixels of the next tile are cut while the device is busy with this one.
  const auto prepare = [&](int clip, int tile) {
    if (clip == clips || !values) return;
    const int first_frame = clip * geometry.clip, present = std::min(geometry.clip, frames - first_frame);
    if (tile == 0) pixels(first_frame, present, clip_pixels.data());
    cut_tile(clip_pixels.data(), config_.pixels, present, height, width, ys.starts[tile / xs.count()],
             xs.starts[tile % xs.count()], whole, cut);
  };
  prepare(0, 0);
  for (int clip = 0; clip < clips; ++clip) {
    int64_t per_clip = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      int64_t extent[3] = {whole[0], whole[1], whole[2]};
      ops_.device().upload(cut, input);
      View moments;
      run_tile(encoder, scratch, input, extent, moments);
      prepare(tile + 1 < tiles ? clip : clip + 1, (tile + 1) % tiles);
      ops_.sync();
      if (values) raw[tile] = download_f32(moments);
      per_clip = moments.dim[1];
      control.progress(stage, static_cast<int64_t>(clip) * tiles + tile + 1, static_cast<int64_t>(clips) * tiles);
    }
    if (!values) continue;
    joined.resize(channels * per_clip * area);
    stitch_tiles(raw, latent_axis(ys, config_.ratio), latent_axis(xs, config_.ratio), channels * per_clip,
                 joined.data());
    const int64_t first = clip * per_clip, count = std::min(per_clip, kept - first);
    for (int64_t c = 0; c < channels && count > 0; ++c) {
      std::copy_n(joined.data() + c * per_clip * area, count * area, out.data() + (c * kept + first) * area);
    }
  }
  return out;
}

}  // namespace h3
