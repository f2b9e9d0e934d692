// The audio autoencoder as CMF files hold it: weight norm folded.
#include <memory>

#include "model/export.h"
#include "model/vae/audio_weights.h"

namespace h3 {
namespace {

struct Origin {
  explicit Origin(const Component& from)
      : component(from), config(audio_vae_config(component)), tensors(component, config) {}
  Component component;
  AudioVaeConfig config;
  AudioVaeTensors tensors;
};

// What runs between samples and latents; the rest runs between latents and samples.
bool of_encoder(const std::string& name) {
  for (const char* start : {"encoder.", "pre_block.", "mean_proj.", "logs_proj."}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

Json numbers(const std::vector<int>& values) {
  Json array = Json::array();
  for (const int value : values) array.push(value);
  return array;
}

Json config_of(const AudioVaeConfig& c) {
  int hop = 1;
  for (const int rate : c.decoder_rates) hop *= rate;
  Json dilations = Json::array();
  for (size_t i = 0; i < c.block_kernels.size(); ++i) dilations.push(numbers(c.block_dilations));
  Json json = Json::object();
  json.set("decoder_dim", c.decoder_dim).set("hop_length", hop).set("latent_dim", c.latent_dim);
  json.set("latents_per_second", 32000 / hop).set("num_attention_heads", c.heads);
  json.set("resblock_dilation_sizes", dilations).set("resblock_kernel_sizes", numbers(c.block_kernels));
  json.set("sample_rate", 32000).set("upsample_kernel_sizes", numbers(c.decoder_kernels));
  return json.set("upsample_rates", numbers(c.decoder_rates)).set("vae_latent_channels", c.latent);
}

}  // namespace

Exported export_audio_vae(const Component& component, const VaeExportOptions& options) {
  const auto origin = std::make_shared<const Origin>(component);
  Exported out;
  for (const AudioRow& row : audio_vae_rows(origin->config)) {
    if ((row.flags & kMayBeAbsent) != 0 && !origin->tensors.has(row.name)) continue;
    if (of_encoder(row.name) ? !options.encoder : !options.decoder) continue;
    const std::string name = "avae." + row.name + (row.weight_norm ? ".weight" : "");
    const std::string key = row.name;
    const int64_t rows = row.dims[0];
    out.tensors.push_back({name, row.dims, Keep::half, of_encoder(row.name) ? "avae.enc" : "avae.dec",
                           [origin, key, name, rows] { return owned_rows(name, origin->tensors.values(key), rows); }});
  }
  const int64_t latent = origin->config.latent;
  out.tensors.push_back(export_values("avae.latents_mean", "avae", Keep::exact, {latent}, origin->config.mean));
  out.tensors.push_back(export_values("avae.latents_std", "avae", Keep::exact, {latent}, origin->config.std));
  out.configs.emplace_back("avae.config_json", config_of(origin->config));
  return out;
}

}  // namespace h3
