// The decoder half: one channel of latents through seven upsampling stages of anti-aliased residual blocks (spec vae
// 11).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/vae/audio_vae.h"
#include "model/vae/audio_weights.h"
#include "ops/workspace.h"

namespace h3 {

class AudioDecoder {
 public:
  AudioDecoder(Ops& ops, const AudioVaeConfig& config, const AudioVaeTensors& tensors, const StageObserver& observe);

  // De-normalised latents [sides, latent, n] -> [sides, 800 n] clamped to -1..1; `step` is called once per stage.
  std::vector<float> decode(const float* latents, int64_t n, int sides, const std::function<void()>& step);
  int64_t steps() const { return static_cast<int64_t>(stages_.size()) + 2; }  // calls of `step` for a side
  int64_t scratch_bytes(int64_t n) const { return plan(n).bytes; }
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  struct Activation {
    Tensor a, inv;    // [C] exp(alpha), 1 / (exp(beta) + 1e-9)
    Tensor up, down;  // [12]
  };
  struct Block {
    std::vector<std::unique_ptr<Conv>> convs1, convs2;
    std::vector<Activation> activations;  // 2q before convs1[q], 2q + 1 before convs2[q]
  };
  struct Stage {
    std::unique_ptr<Conv> up;
    std::vector<Block> blocks;
    Tensor share;  // [C] 1 / number of blocks
    int64_t width = 0, rate = 1;
  };
  struct Scratch;

  WorkspacePlan plan(int64_t n) const;
  View decode_side(const float* latent, int64_t n, Scratch& scratch, const std::function<void()>& step);
  std::unique_ptr<Conv> make_conv(const AudioVaeTensors& tensors, const std::string& name, ConvSpec spec);
  Activation make_activation(const AudioVaeTensors& tensors, const std::string& name, int64_t width);
  Stage make_stage(const AudioVaeConfig& config, const AudioVaeTensors& tensors, int64_t index);
  void run_block(const Block& block, const std::string& name, const View& in, const View& out, const View& t,
                 const View& r);
  void run_stage(const Stage& stage, size_t index, const View& up, const View& sum, Scratch& scratch);
  void activate(const Activation& activation, const View& x, const View& y);
  void see(const std::string& stage, const View& value) const {
    if (observe_) observe_(stage, value);
  }

  Ops& ops_;
  StageObserver observe_;
  int64_t latent_ = 0, latent_dim_ = 0, decoder_dim_ = 0, weight_bytes_ = 0;
  std::unique_ptr<Conv> dec_in_, conv_pre_, conv_post_;
  std::vector<Stage> stages_;
  Activation activation_post_;
  Tensor zeros_;  // [largest width], the offsets of a division that is a channel-wise scale
};

}  // namespace h3
