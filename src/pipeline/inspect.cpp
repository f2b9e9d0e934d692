#include "pipeline/inspect.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "model/dit/weights.h"
#include "model/text/dims.h"
#include "model/vae/audio_weights.h"
#include "model/vae/video_weights.h"

namespace h3 {
namespace {

using Dims = std::vector<std::pair<std::string, int64_t>>;

bool has(const Component& component, const char* name) {
  return component.source->find(component.prefix + name) != nullptr;
}

void dit_dims(const Component& component, Dims& dims) {
  Log quiet;
  const DitConfig config = dit::read_source(component, quiet).config;
  dims = {{"hidden", config.hidden},
          {"layers", config.layers},
          {"refiner layers", config.refiner_layers},
          {"heads", config.heads},
          {"head dim", config.head_dim},
          {"ffn", config.ffn},
          {"video channels", config.video_channels()},
          {"audio channels", config.audio_row},
          {"text width", config.text_dim}};
  if (config.curve_points > 0) {
    dims.emplace_back("curve points", config.curve_points);
    dims.emplace_back("curve rank", config.curve_rank);
  } else {
    dims.emplace_back("time width", config.time_dim);
  }
}

void conditioner_dims(const Component& component, Dims& dims) {
  const text::Names names = text::detect_names(component);
  const text::LanguageDims language = text::language_dims(component, names);
  dims = {{"hidden", language.hidden},     {"layers", language.layers},     {"heads", language.heads},
          {"kv heads", language.kv_heads}, {"head dim", language.head_dim}, {"ffn", language.ffn},
          {"vocabulary", language.vocab}};
  if (names.vision.empty()) return;
  const text::VisionDims vision = text::vision_dims(component, names);
  dims.emplace_back("vision hidden", vision.hidden);
  dims.emplace_back("vision depth", vision.depth);
  dims.emplace_back("vision heads", vision.heads);
}

void video_vae_dims(const Component& component, Dims& dims) {
  VideoVaeConfig config = video_vae_config(component);
  bind_video_vae(component, config);  // reports every wrong tensor
  dims.emplace_back("latent channels", config.latent);
  if (config.has_decoder) {
    dims.emplace_back("decoder hidden", config.hidden);
    dims.emplace_back("decoder layers", config.layers);
    dims.emplace_back("decoder heads", config.heads);
  }
  if (config.has_encoder) {
    dims.emplace_back("encoder levels", static_cast<int64_t>(config.channels.size()));
    dims.emplace_back("encoder channels", config.channels.back());
  }
}

void audio_vae_dims(const Component& component, Dims& dims) {
  AudioVaeConfig config = audio_vae_config(component);
  const AudioVaeTensors bound(component, config);  // reports every wrong tensor
  dims.emplace_back("latent channels", config.latent);
  if (config.has_decoder) {
    dims.emplace_back("decoder width", config.decoder_dim);
    dims.emplace_back("decoder stages", config.stages());
  }
  if (config.has_encoder) {
    dims.emplace_back("encoder width", config.encoder_dim);
    dims.emplace_back("encoder heads", config.heads);
  }
}

void read_dims(const Component& component, ComponentInfo& info) {
  try {
    switch (component.role) {
      case Role::dit: dit_dims(component, info.dims); break;
      case Role::conditioner: conditioner_dims(component, info.dims); break;
      case Role::video_vae: video_vae_dims(component, info.dims); break;
      case Role::audio_vae: audio_vae_dims(component, info.dims); break;
      default: break;
    }
  } catch (const Error& error) {
    info.problems.push_back(error.what());
  }
}

ComponentInfo describe_component(const Component& component) {
  ComponentInfo info;
  info.role = component.role;
  info.spelling = component.spelling;
  info.origin = component.origin;
  info.id = component.source->id();
  info.container = component.source->container();
  info.files = static_cast<int64_t>(component.source->files().size());
  for (const TensorInfo& tensor : component.source->tensors()) {
    if (!tensor.name.starts_with(component.prefix)) continue;
    int64_t values = 1;
    for (const int64_t dim : tensor.dims) values *= dim;
    const int64_t bytes = tensor.bytes();
    FormatUse& use = info.formats[row_of(tensor.format).name];
    ++use.tensors;
    use.bytes += bytes;
    ++info.tensors;
    info.bytes += bytes;
    info.values += values;
  }
  info.config = component.config.is_object() ? "config.json" : "shapes";
  if (component.role == Role::dit) {
    info.provenance.emplace_back("partition",
                                 std::string(name_of(component.partition)) + " (" + component.partition_from + ")");
    info.provenance.emplace_back("qkv order",
                                 std::string(name_of(component.qkv_order)) + " (" + component.qkv_order_from + ")");
  }
  if (!component.unsupported.empty())
    info.problems.push_back(component.unsupported);
  else
    read_dims(component, info);
  return info;
}

// What a task needs, as lines; the roles first, then the parts of a role that files may lack.
TaskInfo task_of(const ModelFiles& files, const char* name) {
  TaskInfo task{name, {}};
  const std::string task_name = name;
  const auto need = [&](bool present, const char* what) {
    if (!present) task.needs.push_back(what);
  };
  const bool references = task_name == "ref2va";
  const bool pictures = references || task_name == "fl2va";
  if (references) {
    need(files.find_dit(Partition::ref2va) != nullptr, "a transformer of the ref2va partition");
  } else {
    need(files.find_dit(Partition::fl2va) != nullptr, "a transformer of the fl2va partition");
  }
  const Component* text = files.find(Role::conditioner);
  const Component* video = files.find(Role::video_vae);
  const Component* audio = files.find(Role::audio_vae);
  need(text != nullptr, "the conditioner (Qwen3-VL), or --prompt-embeds");
  need(text == nullptr || files.tokenizer.has_value(),
       "tokenizer data (tokenizer.json, or vocab.json with merges.txt); "
       "--tokenizer names them");
  need(video != nullptr, "the video VAE");
  need(audio != nullptr, "the audio VAE");
  if (pictures && text != nullptr) {
    bool vision = false;
    for (const char* root : {"model.visual.pos_embed.weight", "visual.pos_embed.weight", "vis.pos_embed.weight"}) {
      vision = vision || has(*text, root);
    }
    need(vision, "a vision tower in the conditioner");
  }
  if (pictures && video != nullptr) need(has(*video, "quant_conv.weight"), "the encoder of the video VAE");
  if (references && audio != nullptr)
    need(has(*audio, "mean_proj.weight"), "the encoder of the audio VAE (for sounds)");
  return task;
}

std::string bytes_text(int64_t bytes) {
  if (bytes >= 1'000'000'000) return strf("%.2f GB", static_cast<double>(bytes) / 1e9);
  if (bytes >= 1'000'000) return strf("%.1f MB", static_cast<double>(bytes) / 1e6);
  return strf("%.1f kB", static_cast<double>(bytes) / 1e3);
}

}  // namespace

ModelInfo inspect_models(const ModelFiles& files) {
  ModelInfo info;
  for (size_t i = 0; i < files.components.size(); ++i) {
    const Component& component = files.components[i];
    // One transformer in both slots of a repository is one entry that serves both partitions.
    const auto same = [&](const Component& other) {
      return other.source == component.source && other.role == component.role && other.prefix == component.prefix;
    };
    const auto first = std::find_if(files.components.begin(), files.components.end(), same);
    if (&*first != &component) {
      ComponentInfo& earlier = info.components[static_cast<size_t>(first - files.components.begin())];
      earlier.provenance[0].second = "fl2va and ref2va (" + component.partition_from + ")";
      continue;
    }
    info.components.push_back(describe_component(component));
  }
  if (files.tokenizer) info.tokenizer = files.tokenizer->origin;
  info.defaults = files.defaults;
  for (const char* name : {"t2va", "fl2va", "ref2va"}) info.tasks.push_back(task_of(files, name));
  return info;
}

Json ModelInfo::to_json() const {
  Json list = Json::array();
  for (const ComponentInfo& component : components) {
    Json formats = Json::object();
    for (const auto& [name, use] : component.formats) {
      formats.set(name, Json::object({{"tensors", use.tensors}, {"bytes", use.bytes}}));
    }
    Json dims = Json::object();
    for (const auto& [name, value] : component.dims) dims.set(name, value);
    Json item = Json::object({{"role", name_of(component.role)},
                              {"spelling", name_of(component.spelling)},
                              {"origin", component.origin},
                              {"container", component.container},
                              {"id", component.id},
                              {"files", component.files},
                              {"tensors", component.tensors},
                              {"values", component.values},
                              {"bytes", component.bytes},
                              {"formats", formats},
                              {"dims", dims},
                              {"config", component.config}});
    for (const auto& [name, text] : component.provenance) item.set(name, text);
    Json problems = Json::array();
    for (const std::string& problem : component.problems) problems.push(problem);
    item.set("problems", problems);
    list.push(item);
  }
  Json needs = Json::object();
  for (const TaskInfo& task : tasks) {
    Json missing = Json::array();
    for (const std::string& need : task.needs) missing.push(need);
    needs.set(task.name, missing);
  }
  Json json = Json::object({{"components", list}, {"tokenizer", tokenizer.empty() ? Json() : Json(tokenizer)}});
  return json.set("defaults", defaults).set("needs", needs);
}

std::string ModelInfo::to_text() const {
  std::string text;
  const auto line = [&](const char* label, const std::string& value) {
    text += strf("  %-10s ", label) + value + "\n";
  };
  for (const ComponentInfo& component : components) {
    text += strf("%s  %s\n", name_of(component.role), component.origin.c_str());
    line("names", strf("%s; %lld tensors in %lld %s file%s, id %s", name_of(component.spelling),
                       static_cast<long long>(component.tensors), static_cast<long long>(component.files),
                       component.container.c_str(), component.files == 1 ? "" : "s", component.id.c_str()));
    std::vector<std::string> parts;
    for (const auto& [name, use] : component.formats) {
      parts.push_back(
          strf("%s x %lld (%s)", name.c_str(), static_cast<long long>(use.tensors), bytes_text(use.bytes).c_str()));
    }
    line("stored", bytes_text(component.bytes) + ": " + joined(parts, ", "));
    parts.clear();
    for (const auto& [name, value] : component.dims)
      parts.push_back(strf("%s %lld", name.c_str(), static_cast<long long>(value)));
    if (!parts.empty()) line("dims", joined(parts, ", ") + " (" + component.config + ")");
    for (const auto& [name, value] : component.provenance) line(name.c_str(), value);
    for (const std::string& problem : component.problems) line("problem", problem);
  }
  text += "tokenizer  " + (tokenizer.empty() ? std::string("none found") : tokenizer) + "\n";
  if (defaults.is_object()) text += "defaults   " + defaults.dump() + "\n";
  for (const TaskInfo& task : tasks) {
    text +=
        strf("%-10s ", task.name.c_str()) + (task.needs.empty() ? "ready" : "needs " + joined(task.needs, "; ")) + "\n";
  }
  return text;
}

}  // namespace h3
