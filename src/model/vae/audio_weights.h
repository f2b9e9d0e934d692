// Dimensions and weight table of the audio autoencoder (spec vae 2.2). The names are the same in every layout; only
// weight norm is spelled three ways: folded `X.weight`, `X.weight_g` with `X.weight_v`, and `X.parametrizations.weight.
// original0` with `original1`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "store/weight_table.h"

namespace h3 {

// From tensor shapes, and from the config what shapes cannot tell; the defaults are the release's.
struct AudioVaeConfig {
  bool has_decoder = true, has_encoder = true;
  int64_t latent = 32, latent_dim = 2048, decoder_dim = 1024, encoder_dim = 64, heads = 8;
  std::vector<int> decoder_rates = {5, 5, 2, 2, 2, 2, 2}, decoder_kernels = {9, 9, 4, 4, 4, 4, 4};
  std::vector<int> block_kernels = {3, 7, 11}, block_dilations = {1, 3, 5};
  std::vector<int> encoder_rates = {2, 4, 4, 5, 5};
  std::vector<float> mean, std;  // [latent]

  int64_t stages() const { return static_cast<int64_t>(decoder_rates.size()); }
  int64_t blocks() const { return static_cast<int64_t>(block_kernels.size()); }
  int64_t decoder_width(int64_t stage) const { return decoder_dim >> (stage + 1); }  // after ups.stage
  int64_t encoder_width(int64_t stage) const { return encoder_dim << stage; }        // before block.{stage + 1}
};

inline constexpr int kUnitDilations[] = {1, 3, 9};  // of the encoder's residual units
inline constexpr int kFilterTaps = 12;              // of the anti-aliasing filters

// One parameter. A weight-normed convolution is named by its module, everything else by its tensor.
struct AudioRow {
  std::string name;
  std::vector<int64_t> dims;  // of the folded weight
  bool weight_norm = false;
  int flags = kRequired;  // WeightFlags
};

// Every tensor of the halves that the config has, in the order of the computation.
std::vector<AudioRow> audio_vae_rows(const AudioVaeConfig& config);

AudioVaeConfig audio_vae_config(const Component& component);

// The rows bound to a file. Values are read when they are asked for, so that loading holds one tensor at a time.
class AudioVaeTensors {
 public:
  // Error(data) listing everything that is missing, mis-shaped or unknown. Fills the statistics of the config.
  AudioVaeTensors(const Component& component, AudioVaeConfig& config);

  bool has(const std::string& name) const;                   // of a row that may be absent
  std::vector<float> values(const std::string& name) const;  // weight norm folded
  MatrixSource matrix(const std::string& name) const;        // [dims[0], rest] of a plain row

 private:
  struct Bound {
    const TensorInfo* value = nullptr;      // folded or plain
    const TensorInfo* magnitude = nullptr;  // weight_g
    const TensorInfo* direction = nullptr;  // weight_v
  };
  const Bound& bound(const std::string& name) const;

  WeightBinder binder_;
  std::map<std::string, Bound> bound_;
};

// w = v * (g / ||v||), the norm over every axis but the first, f32 (spec vae 2.2).
std::vector<float> fold_weight_norm(const std::vector<float>& direction, const std::vector<float>& magnitude);

// The design behind the stored filters (spec vae 11), for files without them.
std::vector<float> default_filter();

}  // namespace h3
