// The encoder half: one channel of samples through a DAC-style stack and an attention head (spec vae 12).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/vae/audio_vae.h"
#include "model/vae/audio_weights.h"
#include "ops/workspace.h"

namespace h3 {

class AudioEncoder {
 public:
  AudioEncoder(Ops& ops, const AudioVaeConfig& config, const AudioVaeTensors& tensors, const StageObserver& observe);

  // samples [count] -> mean [latent, n], n = ceil(count / 800); log_std likewise when asked for and in the file.
  std::vector<float> encode(const float* samples, int64_t count, const std::function<void()>& step,
                            std::vector<float>* log_std);
  int64_t steps() const { return static_cast<int64_t>(stages_.size()) + 2; }
  int64_t scratch_bytes(int64_t count) const;
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  struct Snake {
    Tensor a, inv;  // [C] alpha, 1 / (alpha + 1e-9)
  };
  struct Unit {
    Snake first, second;
    std::unique_ptr<Conv> wide, narrow;  // kernel 7 dilated, kernel 1
  };
  struct Stage {
    std::vector<Unit> units;
    Snake snake;
    std::unique_ptr<Conv> down;
    int64_t width = 0, rate = 1;
  };
  struct Norm {
    Tensor weight, bias;
  };

  std::unique_ptr<Conv> make_conv(const AudioVaeTensors& tensors, const std::string& name, ConvSpec spec);
  Snake make_snake(const AudioVaeTensors& tensors, const std::string& name, int64_t width);
  Stage make_stage(const AudioVaeConfig& config, const AudioVaeTensors& tensors, int64_t index);
  Norm make_norm(const AudioVaeTensors& tensors, const std::string& name, int64_t width);
  std::unique_ptr<Linear> make_linear(const std::string& name, MatrixSource weight, std::vector<float> bias);
  void make_head(const AudioVaeConfig& config, const AudioVaeTensors& tensors);
  WorkspacePlan plan(int64_t latents) const;
  // Both leave their result in the named slot: "x" holds [latent_dim, n], then "rows" [n, latent].
  void run_stack(Workspace& memory, int64_t length, const std::function<void()>& step);
  void run_head(Workspace& memory, int64_t n);
  void snake(const Snake& snake, const View& x, const View& y) { ops_.snake(x, snake.a, snake.inv, y); }
  void norm(const Norm& norm, const View& x, const View& y) { ops_.layer_norm(x, norm.weight, norm.bias, 1e-5f, y); }
  void see(const std::string& stage, const View& value) const {
    if (observe_) observe_(stage, value);
  }

  Ops& ops_;
  StageObserver observe_;
  int64_t latent_ = 0, latent_dim_ = 0, heads_ = 0, weight_bytes_ = 0;
  std::unique_ptr<Conv> first_, last_;
  std::vector<Stage> stages_;
  Snake last_snake_;
  Norm norm1_, norm2_, norm3_, mlp_norm_;
  std::unique_ptr<Linear> qkv_, attn_out_, proj_, w0_, w1_, w2_, mean_, log_std_;
};

// Mean over heads, average pooling of the head features to [latent], then the projection are all linear: one matrix
// [latent, heads * features] (spec vae 12.3). The bins of the pooling overlap when the sizes do not divide.
std::vector<float> pooled_projection(const std::vector<float>& projection, int64_t latent, int64_t heads,
                                     int64_t features);

}  // namespace h3
