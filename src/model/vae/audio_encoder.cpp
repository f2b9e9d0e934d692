#include "model/vae/audio_encoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/export.h"

namespace h3 {
namespace {

ConvSpec conv_spec(int64_t in, int64_t out, int kernel, int pad, int stride = 1, int dilation = 1) {
  ConvSpec spec;
  spec.in = in;
  spec.out = out;
  spec.kernel[2] = kernel;
  spec.stride[2] = stride;
  spec.dilation[2] = dilation;
  spec.pad_before[2] = spec.pad_after[2] = pad;
  return spec;
}

View shaped(const Workspace& memory, const char* slot, int64_t rows, int64_t cols) {
  return memory[slot].slice(0, 0, rows * cols).reshape({rows, cols});
}

View transposed(View view) {
  std::swap(view.dim[0], view.dim[1]);
  std::swap(view.stride[0], view.stride[1]);
  return view;
}

}  // namespace

std::vector<float> pooled_projection(const std::vector<float>& projection, int64_t latent, int64_t heads,
                                     int64_t features) {
  std::vector<float> out(static_cast<size_t>(latent * heads * features));
  for (int64_t o = 0; o < latent; ++o) {
    std::vector<double> row(static_cast<size_t>(features), 0.0);
    for (int64_t i = 0; i < latent; ++i) {
      const int64_t begin = i * features / latent, end = ((i + 1) * features + latent - 1) / latent;
      for (int64_t d = begin; d < end; ++d) {
        row[d] += static_cast<double>(projection[o * latent + i]) / static_cast<double>((end - begin) * heads);
      }
    }
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < features; ++d) out[(o * heads + h) * features + d] = static_cast<float>(row[d]);
    }
  }
  return out;
}

AudioEncoder::AudioEncoder(Ops& ops, const AudioVaeConfig& config, const AudioVaeTensors& tensors,
                           const StageObserver& observe)
    : ops_(ops), observe_(observe), latent_(config.latent), latent_dim_(config.latent_dim), heads_(config.heads) {
  const int64_t stages = static_cast<int64_t>(config.encoder_rates.size()), width = config.encoder_width(stages);
  first_ = make_conv(tensors, "encoder.block.0", conv_spec(1, config.encoder_dim, 7, 3));
  for (int64_t s = 0; s < stages; ++s) stages_.push_back(make_stage(config, tensors, s));
  last_snake_ = make_snake(tensors, "encoder.block." + std::to_string(stages + 1) + ".alpha", width);
  last_ = make_conv(tensors, "encoder.block." + std::to_string(stages + 2), conv_spec(width, config.latent_dim, 3, 1));
  make_head(config, tensors);
}

std::unique_ptr<Conv> AudioEncoder::make_conv(const AudioVaeTensors& tensors, const std::string& name, ConvSpec spec) {
  spec.weight = tensors.values(name);
  spec.bias = tensors.values(name + ".bias");
  spec.label = "audio." + name;
  std::unique_ptr<Conv> conv = ops_.make_conv(std::move(spec));
  weight_bytes_ += conv->bytes;
  return conv;
}

AudioEncoder::Snake AudioEncoder::make_snake(const AudioVaeTensors& tensors, const std::string& name, int64_t width) {
  const std::vector<float> alpha = tensors.values(name);
  std::vector<float> inv = alpha;
  for (float& v : inv) v = 1 / (v + 1e-9f);
  weight_bytes_ += 8 * width;
  return {upload_f32(ops_.device(), alpha.data(), {width}, DType::f32, "audio activations"),
          upload_f32(ops_.device(), inv.data(), {width}, DType::f32, "audio activations")};
}

AudioEncoder::Stage AudioEncoder::make_stage(const AudioVaeConfig& config, const AudioVaeTensors& tensors,
                                             int64_t index) {
  Stage stage;
  stage.width = config.encoder_width(index);
  stage.rate = config.encoder_rates[index];
  const int64_t width = stage.width;
  const std::string name = "encoder.block." + std::to_string(index + 1) + ".block.";
  for (size_t j = 0; j < std::size(kUnitDilations); ++j) {
    const std::string unit = name + std::to_string(j) + ".block.";
    const int dilation = kUnitDilations[j];
    stage.units.push_back({make_snake(tensors, unit + "0.alpha", width), make_snake(tensors, unit + "2.alpha", width),
                           make_conv(tensors, unit + "1", conv_spec(width, width, 7, 3 * dilation, 1, dilation)),
                           make_conv(tensors, unit + "3", conv_spec(width, width, 1, 0))});
  }
  stage.snake = make_snake(tensors, name + "3.alpha", width);
  const int rate = config.encoder_rates[index];
  // ceil(rate / 2): a circulating "fix" to rate / 2 shifts everything (spec vae 17.16).
  stage.down = make_conv(tensors, name + "4", conv_spec(width, 2 * width, 2 * rate, (rate + 1) / 2, rate));
  return stage;
}

AudioEncoder::Norm AudioEncoder::make_norm(const AudioVaeTensors& tensors, const std::string& name, int64_t width) {
  const std::vector<float> weight = tensors.values(name + ".weight"), bias = tensors.values(name + ".bias");
  weight_bytes_ += 8 * width;
  return {upload_f32(ops_.device(), weight.data(), {width}, DType::f32, "audio norms"),
          upload_f32(ops_.device(), bias.data(), {width}, DType::f32, "audio norms")};
}

std::unique_ptr<Linear> AudioEncoder::make_linear(const std::string& name, MatrixSource weight,
                                                  std::vector<float> bias) {
  LinearSpec spec;
  spec.label = "audio." + name;
  spec.weight = std::move(weight);
  spec.bias = std::move(bias);
  std::unique_ptr<Linear> linear = ops_.make_linear(std::move(spec));
  weight_bytes_ += linear->bytes;
  return linear;
}

void AudioEncoder::make_head(const AudioVaeConfig& config, const AudioVaeTensors& tensors) {
  const std::string attn = "pre_block.attn.";
  // Three contiguous planes; the key bias is a buffer of zeros in the release.
  std::vector<float> bias = tensors.values(attn + "q_bias");
  std::vector<float> key = tensors.values(attn + "zero_k_bias");
  key.resize(bias.size(), 0.0f);
  const std::vector<float> value = tensors.values(attn + "v_bias");
  bias.insert(bias.end(), key.begin(), key.end());
  bias.insert(bias.end(), value.begin(), value.end());
  qkv_ = make_linear("attn.qkv", tensors.matrix(attn + "qkv.weight"), std::move(bias));
  std::vector<float> pooled = pooled_projection(tensors.values(attn + "proj.weight"), config.latent, config.heads,
                                                config.latent_dim / config.heads);
  attn_out_ = make_linear("attn.proj", owned_rows("attn.proj", std::move(pooled), config.latent),
                          tensors.values(attn + "proj.bias"));
  const auto affine = [&](const std::string& name) {
    return make_linear(name, tensors.matrix(name + ".weight"), tensors.values(name + ".bias"));
  };
  proj_ = affine("pre_block.proj");
  w0_ = affine("pre_block.mlp.w0");
  w1_ = affine("pre_block.mlp.w1");
  w2_ = affine("pre_block.mlp.w2");
  mean_ = affine("mean_proj");
  if (tensors.has("logs_proj.weight") && tensors.has("logs_proj.bias")) log_std_ = affine("logs_proj");
  norm1_ = make_norm(tensors, "pre_block.norm1", config.latent_dim);
  norm3_ = make_norm(tensors, "pre_block.norm3", config.latent_dim);
  norm2_ = make_norm(tensors, "pre_block.norm2", config.latent);
  mlp_norm_ = make_norm(tensors, "pre_block.mlp.norm", config.latent);
}

int64_t AudioEncoder::scratch_bytes(int64_t count) const {
  return plan((count + kSamplesPerLatent - 1) / kSamplesPerLatent).bytes;
}

WorkspacePlan AudioEncoder::plan(int64_t n) const {
  int64_t most = latent_dim_ * n, length = n * kSamplesPerLatent;
  const int64_t samples = length;
  for (const Stage& stage : stages_) {
    most = std::max(most, stage.width * length);
    length /= stage.rate;
  }
  // Call 0 is the stack, call 1 the head.
  std::vector<Slot> slots = {{"wave", DType::f32, {samples}, 0, 0}, {"x", DType::f32, {most}, 0, 1}};
  for (const char* name : {"t", "r"}) slots.push_back({name, DType::f32, {most}, 0, 0});
  for (const char* name : {"tokens", "normed", "mixed"}) slots.push_back({name, DType::f32, {n * latent_dim_}, 1, 1});
  slots.push_back({"qkv", DType::f32, {3 * n * latent_dim_}, 1, 1});
  for (const char* name : {"rows", "y", "branch"}) slots.push_back({name, DType::f32, {n * latent_}, 1, 1});
  for (const char* name : {"gate", "value"}) slots.push_back({name, DType::f32, {2 * n * latent_}, 1, 1});
  return plan_workspace(std::move(slots));
}

void AudioEncoder::run_stack(Workspace& memory, int64_t length, const std::function<void()>& step) {
  const auto finished = [&] {
    ops_.sync();  // so that progress and a stop mean what they say
    step();
  };
  View x = shaped(memory, "x", stages_.front().width, length);
  ops_.conv(*first_, shaped(memory, "wave", 1, length), x);
  see("block.0", x);
  finished();
  for (size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = stages_[s];
    const std::string name = "block." + std::to_string(s + 1);
    const View t = shaped(memory, "t", stage.width, length), r = shaped(memory, "r", stage.width, length);
    for (size_t j = 0; j < stage.units.size(); ++j) {
      const Unit& unit = stage.units[j];
      snake(unit.first, x, t);
      ops_.conv(*unit.wide, t, r);
      snake(unit.second, r, r);
      ops_.conv(*unit.narrow, r, t);
      ops_.add(x, t, x);
      see(name + ".res." + std::to_string(j), x);
    }
    snake(stage.snake, x, t);
    length /= stage.rate;
    x = shaped(memory, "x", 2 * stage.width, length);
    ops_.conv(*stage.down, t, x);
    see(name, x);
    finished();
  }
  const View t = shaped(memory, "t", x.dim[0], length);
  snake(last_snake_, x, t);
  see("block." + std::to_string(stages_.size() + 1), t);
  x = shaped(memory, "x", latent_dim_, length);
  ops_.conv(*last_, t, x);
  see("block." + std::to_string(stages_.size() + 2), x);
}

void AudioEncoder::run_head(Workspace& memory, int64_t n) {
  const View tokens = shaped(memory, "tokens", n, latent_dim_), normed = shaped(memory, "normed", n, latent_dim_);
  const View mixed = shaped(memory, "mixed", n, latent_dim_), qkv = shaped(memory, "qkv", n, 3 * latent_dim_);
  const View rows = shaped(memory, "rows", n, latent_), y = shaped(memory, "y", n, latent_);
  const View branch = shaped(memory, "branch", n, latent_);
  const View gate = shaped(memory, "gate", n, 2 * latent_), value = shaped(memory, "value", n, 2 * latent_);
  ops_.copy(transposed(shaped(memory, "x", latent_dim_, n)), tokens);
  norm(norm1_, tokens, normed);
  ops_.linear(*qkv_, normed, qkv);
  const int64_t features = latent_dim_ / heads_;
  AttentionArgs args;
  args.q = qkv.slice(1, 0, latent_dim_).split(1, features);
  args.k = qkv.slice(1, latent_dim_, latent_dim_).split(1, features);
  args.v = qkv.slice(1, 2 * latent_dim_, latent_dim_).split(1, features);
  args.out = mixed.split(1, features);
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(features)));
  args.causal = true;
  ops_.attention(args);
  ops_.linear(*attn_out_, mixed, branch);
  see("attn", branch);
  norm(norm3_, tokens, normed);
  ops_.linear(*proj_, normed, rows);
  ops_.add(rows, branch, rows);
  norm(norm2_, rows, y);
  norm(mlp_norm_, y, y);  // two norms in a row
  ops_.linear(*w0_, y, gate);
  ops_.gelu(gate, Ops::Gelu::tanh, gate);
  ops_.linear(*w1_, y, value);
  ops_.multiply(gate, value, gate);
  ops_.linear(*w2_, gate, branch);
  see("mlp", branch);
  ops_.add(rows, branch, rows);
  see("pre_block", rows);
}

std::vector<float> AudioEncoder::encode(const float* samples, int64_t count, const std::function<void()>& step,
                                        std::vector<float>* log_std) {
  const int64_t n = (count + kSamplesPerLatent - 1) / kSamplesPerLatent, length = n * kSamplesPerLatent;
  Workspace memory(ops_.device(), plan(n), "audio encoder");
  std::vector<float> padded(samples, samples + count);
  padded.resize(static_cast<size_t>(length), 0.0f);  // on the right, never centred (spec vae 17.22)
  memory.enter(0);
  ops_.device().upload(padded.data(), shaped(memory, "wave", 1, length));
  run_stack(memory, length, step);
  memory.enter(1);
  run_head(memory, n);
  const View rows = shaped(memory, "rows", n, latent_), y = shaped(memory, "y", n, latent_);
  const View turned = shaped(memory, "branch", latent_, n);
  const auto project = [&](const Linear& linear) {
    std::vector<float> out(static_cast<size_t>(latent_ * n));
    ops_.linear(linear, rows, y);
    ops_.copy(transposed(y), turned);
    ops_.sync();
    ops_.device().download(turned, out.data());
    return out;
  };
  std::vector<float> mean = project(*mean_);
  if (log_std != nullptr) *log_std = log_std_ ? project(*log_std_) : std::vector<float>();
  step();
  return mean;
}

}  // namespace h3
