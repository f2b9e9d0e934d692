#include "model/vae/audio_decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace h3 {
namespace {

// A convolution of odd kernel that keeps the length.
ConvSpec same_conv(int64_t in, int64_t out, int kernel, int dilation = 1) {
  ConvSpec spec;
  spec.in = in;
  spec.out = out;
  spec.kernel[2] = kernel;
  spec.dilation[2] = dilation;
  spec.pad_before[2] = spec.pad_after[2] = (kernel - 1) * dilation / 2;
  return spec;
}

ConvSpec up_conv(int64_t in, int64_t out, int kernel, int rate) {
  ConvSpec spec;
  spec.kind = ConvKind::transposed1d;
  spec.in = in;
  spec.out = out;
  spec.kernel[2] = kernel;
  spec.stride[2] = rate;
  spec.pad_before[2] = spec.pad_after[2] = (kernel - rate) / 2;  // so that the length is exactly rate * n
  return spec;
}

}  // namespace

// Flat f32 slots, each as large as the largest stage; a stage shapes what it needs.
struct AudioDecoder::Scratch {
  Workspace memory;
  View shaped(const char* slot, int64_t rows, int64_t cols) const {
    return memory[slot].slice(0, 0, rows * cols).reshape({rows, cols});
  }
};

AudioDecoder::AudioDecoder(Ops& ops, const AudioVaeConfig& config, const AudioVaeTensors& tensors,
                           const StageObserver& observe)
    : ops_(ops),
      observe_(observe),
      latent_(config.latent),
      latent_dim_(config.latent_dim),
      decoder_dim_(config.decoder_dim) {
  ConvSpec in = same_conv(config.latent, config.latent_dim, 1);
  in.weight = tensors.values("dec_in_proj.weight");
  in.bias = tensors.values("dec_in_proj.bias");
  in.label = "audio.dec_in_proj";
  dec_in_ = ops.make_conv(std::move(in));
  weight_bytes_ += dec_in_->bytes;
  conv_pre_ = make_conv(tensors, "decoder.conv_pre", same_conv(config.latent_dim, config.decoder_dim, 7));
  for (int64_t i = 0; i < config.stages(); ++i) stages_.push_back(make_stage(config, tensors, i));
  activation_post_ = make_activation(tensors, "decoder.activation_post", stages_.back().width);
  ConvSpec post = same_conv(stages_.back().width, 1, 7);
  post.weight = tensors.values("decoder.conv_post");
  post.label = "audio.conv_post";
  conv_post_ = ops.make_conv(std::move(post));
  weight_bytes_ += conv_post_->bytes;
  const std::vector<float> zeros(static_cast<size_t>(stages_.front().width), 0.0f);
  zeros_ = upload_f32(ops.device(), zeros.data(), {stages_.front().width}, DType::f32, "audio decoder");
}

std::unique_ptr<Conv> AudioDecoder::make_conv(const AudioVaeTensors& tensors, const std::string& name, ConvSpec spec) {
  spec.weight = tensors.values(name);
  spec.bias = tensors.values(name + ".bias");
  spec.label = "audio." + name;
  std::unique_ptr<Conv> conv = ops_.make_conv(std::move(spec));
  weight_bytes_ += conv->bytes;
  return conv;
}

AudioDecoder::Activation AudioDecoder::make_activation(const AudioVaeTensors& tensors, const std::string& name,
                                                       int64_t width) {
  // alpha and beta are stored as logarithms here, not in the encoder (spec vae 17.17).
  std::vector<float> a = tensors.values(name + ".act.alpha"), inv = tensors.values(name + ".act.beta");
  for (float& v : a) v = std::exp(v);
  for (float& v : inv) v = 1 / (std::exp(v) + 1e-9f);
  const auto filter = [&](const char* suffix) {
    const std::vector<float> taps = tensors.has(name + suffix) ? tensors.values(name + suffix) : default_filter();
    return upload_f32(ops_.device(), taps.data(), {kFilterTaps}, DType::f32, "audio filters");
  };
  Activation activation;
  activation.a = upload_f32(ops_.device(), a.data(), {width}, DType::f32, "audio activations");
  activation.inv = upload_f32(ops_.device(), inv.data(), {width}, DType::f32, "audio activations");
  activation.up = filter(".upsample.filter");
  activation.down = filter(".downsample.lowpass.filter");
  weight_bytes_ += (2 * width + 2 * kFilterTaps) * 4;
  return activation;
}

AudioDecoder::Stage AudioDecoder::make_stage(const AudioVaeConfig& config, const AudioVaeTensors& tensors,
                                             int64_t index) {
  Stage stage;
  stage.width = config.decoder_width(index);
  stage.rate = config.decoder_rates[index];
  const int64_t width = stage.width;
  stage.up = make_conv(tensors, "decoder.ups." + std::to_string(index) + ".0",
                       up_conv(2 * width, width, config.decoder_kernels[index], config.decoder_rates[index]));
  for (int64_t m = 0; m < config.blocks(); ++m) {
    const std::string name = "decoder.resblocks." + std::to_string(config.blocks() * index + m) + ".";
    const int kernel = config.block_kernels[m];
    Block block;
    for (size_t q = 0; q < config.block_dilations.size(); ++q) {
      const std::string number = std::to_string(q);
      const int dilation = config.block_dilations[q];
      block.convs1.push_back(make_conv(tensors, name + "convs1." + number, same_conv(width, width, kernel, dilation)));
      block.convs2.push_back(make_conv(tensors, name + "convs2." + number, same_conv(width, width, kernel)));
    }
    for (size_t a = 0; a < 2 * config.block_dilations.size(); ++a) {
      block.activations.push_back(make_activation(tensors, name + "activations." + std::to_string(a), width));
    }
    stage.blocks.push_back(std::move(block));
  }
  const std::vector<float> share(static_cast<size_t>(width), 1.0f / static_cast<float>(config.blocks()));
  stage.share = upload_f32(ops_.device(), share.data(), {width}, DType::f32, "audio decoder");
  return stage;
}

WorkspacePlan AudioDecoder::plan(int64_t n) const {
  int64_t most = std::max(latent_dim_, decoder_dim_) * n, length = n;
  for (const Stage& stage : stages_) {
    length *= stage.rate;
    most = std::max(most, stage.width * length);
  }
  // The slots of a stage are all alive in it, and every stage is about as large as the largest.
  std::vector<Slot> slots = {{"latent", DType::f32, {latent_ * n}}, {"wave", DType::f32, {length}}};
  for (const char* name : {"up", "sum", "x", "t", "r"}) slots.push_back({name, DType::f32, {most}});
  return plan_workspace(std::move(slots));
}

void AudioDecoder::activate(const Activation& activation, const View& x, const View& y) {
  ops_.aa_snake(x, activation.a, activation.inv, activation.up, activation.down, y);
}

// out = block(in); `in` is kept. t and r are scratch; out may hold anything.
void AudioDecoder::run_block(const Block& block, const std::string& name, const View& in, const View& out,
                             const View& t, const View& r) {
  for (size_t q = 0; q < block.convs1.size(); ++q) {
    const View& x = q == 0 ? in : out;
    activate(block.activations[2 * q], x, t);
    see(name + ".activations." + std::to_string(2 * q), t);
    ops_.conv(*block.convs1[q], t, r);
    see(name + ".convs1." + std::to_string(q), r);
    activate(block.activations[2 * q + 1], r, t);
    ops_.conv(*block.convs2[q], t, r);
    ops_.add(r, x, out);
  }
  see(name, out);
}

void AudioDecoder::run_stage(const Stage& stage, size_t index, const View& up, const View& sum, Scratch& scratch) {
  const int64_t width = up.dim[0], length = up.dim[1];
  const View x = scratch.shaped("x", width, length), t = scratch.shaped("t", width, length);
  const View r = scratch.shaped("r", width, length);
  for (size_t m = 0; m < stage.blocks.size(); ++m) {
    const std::string name = "resblock." + std::to_string(index * stage.blocks.size() + m);
    run_block(stage.blocks[m], name, up, m == 0 ? sum : x, t, r);
    if (m > 0) ops_.add(sum, x, sum);
  }
  // The reference divides by the number of blocks; multiplying by its rounded reciprocal differs by one ulp at most.
  ops_.channel_affine(sum, stage.share, zeros_.view.slice(0, 0, width), sum);
  see("stage_out." + std::to_string(index), sum);
}

std::vector<float> AudioDecoder::decode(const float* latents, int64_t n, int sides, const std::function<void()>& step) {
  Scratch scratch{Workspace(ops_.device(), plan(n), "audio decoder")};
  std::vector<float> samples;
  for (int side = 0; side < sides; ++side) {
    const View wave = decode_side(latents + side * latent_ * n, n, scratch, step);
    const size_t first = samples.size();
    samples.resize(first + static_cast<size_t>(wave.elements()));
    ops_.device().download(wave, samples.data() + first);
  }
  for (float& v : samples) v = std::clamp(v, -1.0f, 1.0f);  // NaN stays and is found by the watchdog
  return samples;
}

View AudioDecoder::decode_side(const float* latent, int64_t n, Scratch& scratch, const std::function<void()>& step) {
  const auto finished = [&] {
    ops_.pace();  // so that progress and a stop mean what they say
    step();
  };
  const View in = scratch.shaped("latent", latent_, n);
  ops_.device().upload(latent, in);
  const View wide = scratch.shaped("x", latent_dim_, n);
  ops_.conv(*dec_in_, in, wide);
  see("dec_in_proj", wide);
  View sum = scratch.shaped("sum", decoder_dim_, n);
  ops_.conv(*conv_pre_, wide, sum);
  see("conv_pre", sum);
  finished();
  int64_t length = n;
  for (size_t i = 0; i < stages_.size(); ++i) {
    length *= stages_[i].rate;
    const View up = scratch.shaped("up", stages_[i].width, length);
    ops_.conv(*stages_[i].up, sum, up);
    see("ups." + std::to_string(i), up);
    sum = scratch.shaped("sum", stages_[i].width, length);
    run_stage(stages_[i], i, up, sum, scratch);
    finished();
  }
  const View t = scratch.shaped("t", stages_.back().width, length);
  activate(activation_post_, sum, t);
  see("activation_post", t);
  const View wave = scratch.shaped("wave", 1, length);
  ops_.conv(*conv_post_, t, wave);
  see("conv_post", wave);
  finished();
  return wave;
}

}  // namespace h3
