// Audio autoencoder: decoded waveforms, encoder heads, stages of both, the stored filters, resampling
// (golden/README section 8). Tensor names say the case: "dec13_b2.waveform", "enc800.mean", "resample8000.in".
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "apps/parity/suite.h"
#include "base/file_map.h"
#include "model/vae/audio_vae.h"
#include "model/vae/audio_weights.h"

namespace h3 {
namespace {

constexpr Limits kFloat{.rel_l2 = 1e-5};
constexpr char kFile[] = "audio_vae.safetensors";

using Stages = std::map<std::string, std::vector<float>>;

Component open_component(const std::string& folder) {
  Component component;
  component.role = Role::audio_vae;
  component.origin = folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") component.source = open_safetensors(entry.path().string());
  }
  if (component.source == nullptr) fail(Code::data, "%s holds no safetensors file", folder.c_str());
  component.config = Json::parse(read_file(folder + "/config.json"), folder + "/config.json");
  return component;
}

StageObserver recorder(Ops& ops, Stages& stages) {
  return [&ops, &stages](const std::string& stage, const View& value) {
    ops.sync();
    stages[stage] = download_f32(value);
  };
}

// The part of a tensor that belongs to batch item `index`.
std::vector<float> item(const GoldenFile& file, const std::string& name, int64_t index) {
  const std::vector<float> all = file.f32(name);
  const int64_t size = static_cast<int64_t>(all.size()) / file.info(name).dims[0];
  return {all.begin() + index * size, all.begin() + (index + 1) * size};
}

// Every name "<case>.<suffix>" with this suffix.
std::vector<std::string> cases_with(const GoldenFile& file, const std::string& prefix, const std::string& suffix) {
  std::vector<std::string> cases;
  for (const std::string& name : file.names()) {
    if (name.starts_with(prefix) && name.ends_with(suffix))
      cases.push_back(name.substr(0, name.size() - suffix.size()));
  }
  return cases;
}

void decode_case(Suite& suite, const GoldenFile& file, AudioVae& vae, const std::string& name) {
  const std::vector<int64_t> dims = file.info(name + ".latent").dims;  // [batch, channels, latents]
  const int latents = static_cast<int>(dims[2]);
  std::vector<float> got;
  for (int64_t b = 0; b < dims[0]; ++b) {
    const std::vector<float> one = vae.decode_channel(item(file, name + ".latent", b).data(), latents, Control());
    got.insert(got.end(), one.begin(), one.end());
  }
  suite.check(name + ".waveform", got, file.f32(name + ".waveform"), kFloat);
  if (dims[0] != 2 || !file.has(name + ".normalized_latent")) return;
  // The way the pipeline takes: normalised rows of both channels.
  const std::vector<float> normalized = file.f32(name + ".normalized_latent");
  std::vector<float> rows(normalized.size());
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t c = 0; c < dims[1]; ++c) {
      for (int64_t t = 0; t < latents; ++t) {
        rows[(b * latents + t) * dims[1] + c] = normalized[(b * dims[1] + c) * latents + t];
      }
    }
  }
  suite.check(name + ".from_rows", vae.decode(rows.data(), latents, Control()), file.f32(name + ".waveform"), kFloat);
}

void encode_case(Suite& suite, const GoldenFile& file, AudioVae& vae, const std::string& name) {
  const std::vector<int64_t> dims = file.info(name + ".waveform").dims;  // [channels, samples]
  std::vector<float> mean, logs;
  for (int64_t b = 0; b < dims[0]; ++b) {
    std::vector<float> log_std;
    const std::vector<float> one =
        vae.encode_channel(item(file, name + ".waveform", b).data(), dims[1], Control(), &log_std);
    mean.insert(mean.end(), one.begin(), one.end());
    logs.insert(logs.end(), log_std.begin(), log_std.end());
  }
  suite.check(name + ".mean", mean, file.f32(name + ".mean"), kFloat);
  if (file.has(name + ".logs")) suite.check(name + ".logs", logs, file.f32(name + ".logs"), kFloat);
  if (dims[0] != 2 || !file.has(name + ".condition_rows")) return;
  suite.check(name + ".condition_rows", vae.encode(file.f32(name + ".waveform").data(), dims[1], Control()),
              file.f32(name + ".condition_rows"), kFloat);
}

// The first activation taken apart with the product's own op: a filter with a single tap shows every other sample of
// the doubled signal, and without its sine the activation is the plain upsampling.
std::vector<float> doubled(Ops& ops, const AudioVaeTensors& tensors, const std::vector<float>& x, int64_t channels,
                           bool snake) {
  const std::string name = "decoder.resblocks.0.activations.0";
  const int64_t length = static_cast<int64_t>(x.size()) / channels;
  std::vector<float> a = tensors.values(name + ".act.alpha"), inv = tensors.values(name + ".act.beta");
  for (float& v : a) v = std::exp(v);
  for (float& v : inv) v = snake ? 1 / (std::exp(v) + 1e-9f) : 0.0f;
  Device& device = ops.device();
  const auto up = [&](const std::vector<float>& values) {
    return upload_f32(device, values.data(), {static_cast<int64_t>(values.size())}, DType::f32, "parity");
  };
  const Tensor input = upload_f32(device, x.data(), {channels, length}, DType::f32, "parity");
  const Tensor output(device, DType::f32, {channels, length}, "parity");
  const Tensor first = up(a), second = up(inv), filter = up(tensors.values(name + ".upsample.filter"));
  std::vector<float> out(2 * x.size());
  for (int odd = 0; odd < 2; ++odd) {
    std::vector<float> tap(kFilterTaps, 0.0f);
    tap[5 + odd] = 1;  // out[m] = s[2 m + tap - 5]
    const Tensor single = up(tap);
    ops.aa_snake(input, first, second, filter, single, output);
    ops.sync();
    const std::vector<float> got = download_f32(output);
    for (size_t i = 0; i < got.size(); ++i) out[2 * i + odd] = got[i];
  }
  return out;
}

// A golden stage name in our observer's words; an activation of its own is "resblock.0.activations.0".
std::string observed(const std::string& stage) { return stage == "act0" ? "resblock.0.activations.0" : stage; }

// Long stages were stored as their first columns: [channels, fewer than ours].
std::vector<float> leading_columns(const std::vector<float>& got, const std::vector<int64_t>& want) {
  const int64_t columns = static_cast<int64_t>(got.size()) / want[0];
  if (want.size() != 2 || columns <= want[1] || columns * want[0] != static_cast<int64_t>(got.size())) return got;
  std::vector<float> out;
  for (int64_t c = 0; c < want[0]; ++c) {
    out.insert(out.end(), got.begin() + c * columns, got.begin() + c * columns + want[1]);
  }
  return out;
}

bool is_case_value(const std::string& stage) {
  for (const char* value : {"waveform", "mean", "logs", "condition_rows", "latent", "normalized_latent"}) {
    if (stage == value) return true;
  }
  return false;
}

// Stages were stored for one case of each half, under "dec<T>." or the encoder case's own name, of batch item 0.
void stages_of(Suite& suite, const GoldenFile& file, const Component& component, const std::string& name) {
  Stages stages;
  AudioVaeConfig config = audio_vae_config(component);
  const AudioVaeTensors tensors(component, config);
  const bool decoder = name.starts_with("dec");
  AudioVaeOptions options{.decoder = decoder, .encoder = !decoder, .observe = recorder(suite.ops(), stages)};
  const std::unique_ptr<AudioVae> vae = load_audio_vae(suite.ops(), component, options);
  if (decoder) {
    const std::string input = name + "_b1.latent";
    if (!file.has(input)) return suite.fail(name, "has stages but no latent " + input);
    vae->decode_channel(item(file, input, 0).data(), static_cast<int>(file.info(input).dims[2]), Control());
  } else {
    vae->encode_channel(item(file, name + ".waveform", 0).data(), file.info(name + ".waveform").dims[1], Control());
  }
  for (const std::string& tensor : file.names()) {
    if (!tensor.starts_with(name + ".")) continue;
    const std::string stage = tensor.substr(name.size() + 1);
    if (is_case_value(stage)) continue;
    if (stage == "act0.upsample" || stage == "act0.snakebeta") {
      const int64_t channels = file.info(tensor).dims[0];
      suite.check(tensor, doubled(suite.ops(), tensors, stages["ups.0"], channels, stage == "act0.snakebeta"),
                  file.f32(tensor), kFloat);
    } else if (stages.contains(observed(stage))) {
      suite.check(tensor, leading_columns(stages[observed(stage)], file.info(tensor).dims), file.f32(tensor), kFloat);
    } else {
      suite.fail(tensor, "no stage of this name");
    }
  }
}

void run_stages(Suite& suite, const GoldenFile& file, const Component& component) {
  std::vector<std::string> names;
  for (const std::string& tensor : file.names()) {
    const size_t dot = tensor.find('.');
    const std::string name = tensor.substr(0, dot), stage = tensor.substr(dot + 1);
    if (!name.starts_with("dec") && !name.starts_with("enc")) continue;
    if (is_case_value(stage) || std::find(names.begin(), names.end(), name) != names.end()) continue;
    names.push_back(name);
  }
  for (const std::string& name : names) stages_of(suite, file, component, name);
}

void run_filters(Suite& suite, const GoldenFile& file, const Component& component) {
  AudioVaeConfig config = audio_vae_config(component);
  const AudioVaeTensors tensors(component, config);
  for (const std::string& name : cases_with(file, "filter.", "")) {
    suite.exact(name, tensors.values(name.substr(7)) == file.f32(name));
  }
}

void run_resample(Suite& suite, const GoldenFile& file) {
  for (const std::string& name : cases_with(file, "resample", ".in")) {
    const std::vector<int64_t> dims = file.info(name + ".in").dims;  // [channels, samples]
    const int rate = std::atoi(name.c_str() + 8);
    const std::vector<float> in = file.f32(name + ".in");
    suite.check(name, prepare_sound(in.data(), static_cast<int>(dims[0]), dims[1], rate, 0), file.f32(name + ".out"),
                kFloat);
  }
}

}  // namespace

void run_audio_vae(Suite& suite) {
  const std::string folder = "toy/audio_vae";
  if (!suite.exists(kFile) || !suite.exists(folder)) return;
  const GoldenFile file = suite.open(kFile);
  const Component component = open_component(suite.path(folder));
  const std::unique_ptr<AudioVae> vae = load_audio_vae(suite.ops(), component);
  for (const std::string& name : cases_with(file, "dec", ".latent")) decode_case(suite, file, *vae, name);
  for (const std::string& name : cases_with(file, "enc", ".waveform")) encode_case(suite, file, *vae, name);
  run_stages(suite, file, component);
  run_filters(suite, file, component);
  run_resample(suite, file);
}

}  // namespace h3
