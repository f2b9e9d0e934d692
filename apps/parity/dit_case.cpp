#include "apps/parity/dit_case.h"

#include <filesystem>

#include "apps/parity/overlay.h"
#include "base/error.h"
#include "base/file_map.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

Component component_of(std::shared_ptr<TensorSource> source, const std::string& origin, Spelling spelling) {
  Component component;
  component.role = Role::dit;
  component.spelling = spelling;
  component.source = std::move(source);
  component.origin = origin;
  component.qkv_order = spelling == Spelling::official ? QkvOrder::interleaved : QkvOrder::contiguous;
  return component;
}

LayoutSpec spec_of(const GoldenFile& file) {
  const Json json = file.json_metadata("case");
  const auto integer = [&](const char* key) { return static_cast<int>(json.at(key).as_int()); };
  LayoutSpec spec;
  spec.latent_frames = integer("latent_frames");
  spec.latent_height = integer("latent_h");
  spec.latent_width = integer("latent_w");
  spec.audio_latents = integer("audio_latents");
  const std::vector<int64_t> tags = file.i64("in.token_tags");
  for (int64_t row : file.i64("in.text_indices")) {
    spec.text_tags.push_back(static_cast<int32_t>(tags.at(static_cast<size_t>(row))));
  }
  using Kind = LayoutBlock::Kind;
  for (const Json& anchor : json.at("anchors").items()) {
    const Kind kind = anchor.as_string() == "first" ? Kind::first_frame : Kind::last_frame;
    spec.blocks.push_back({kind, 1, spec.latent_height, spec.latent_width, 0});
  }
  for (const Json& reference : json.at("refs").items()) {
    const auto value = [&](size_t i) { return static_cast<int>(reference.at(i).as_int()); };
    const std::string& kind = reference.at(size_t{0}).as_string();
    if (kind == "image")
      spec.blocks.push_back({Kind::image, 1, value(1), value(2), 0});
    else if (kind == "audio")
      spec.blocks.push_back({Kind::audio, 0, 0, 0, value(1)});
    else
      spec.blocks.push_back({Kind::video, value(1), value(2), value(3), value(4)});
  }
  return spec;
}

// [0, count) of the values: condition rows come first.
std::vector<float> head_of(const std::vector<float>& values, int64_t count) {
  return {values.begin(), values.begin() + count};
}

}  // namespace

ToyDit find_toy_dit(const Suite& suite) {
  ToyDit toy;
  if (suite.exists("toy/transformer")) {
    const std::string folder = suite.path("toy/transformer");
    toy.diffusers = component_of(open_safetensors(folder), folder, Spelling::diffusers);
    const std::string config = folder + "/config.json";
    if (fs::exists(config)) toy.diffusers->config = Json::parse(read_file(config), config);
  }
  std::shared_ptr<TensorSource> delta;
  if (!suite.exists("toy_comfy")) return toy;
  for (const fs::directory_entry& entry : fs::directory_iterator(suite.path("toy_comfy"))) {
    if (entry.path().extension() != ".safetensors") continue;
    std::shared_ptr<TensorSource> source = open_safetensors(entry.path().string());
    if (source->find("video_patch_proj.weight") != nullptr)
      toy.comfy = component_of(source, entry.path().string(), Spelling::comfy);
    else if (source->find("adaln_t_table") != nullptr)
      delta = source;
  }
  if (!toy.comfy) return toy;
  if (delta != nullptr) {
    const auto keep = [](const std::string& name) { return !name.starts_with("time_embedder."); };
    toy.curve = component_of(std::make_shared<OverlaySource>(toy.comfy->source, delta, keep), "toy with a time curve",
                             Spelling::comfy);
  }
  if (suite.exists("toy_original/transformer")) {
    std::shared_ptr<TensorSource> interleaved = open_safetensors(suite.path("toy_original/transformer"));
    const auto keep = [](const std::string&) { return true; };
    toy.official = component_of(std::make_shared<OverlaySource>(toy.comfy->source, interleaved, keep),
                                "toy in the official order", Spelling::official);
  }
  return toy;
}

DitCase read_dit_case(const GoldenFile& file) {
  DitCase out;
  out.layout = build_layout(spec_of(file));
  out.video_row = file.info("in.hidden_states").dims.at(1);
  out.audio_row = file.info("in.audio_hidden_states").dims.at(1);
  const std::vector<float> video = file.f32("in.hidden_states"), audio = file.f32("in.audio_hidden_states");
  out.request.text = file.f32("in.encoder_hidden_states");
  out.request.condition_video = head_of(video, out.layout.condition_video_rows * out.video_row);
  out.request.condition_audio = head_of(audio, out.layout.condition_audio_rows * out.audio_row);
  out.video = tail_of(video, static_cast<size_t>(out.layout.target_video_rows() * out.video_row));
  out.audio = tail_of(audio, static_cast<size_t>(out.layout.target_audio_rows() * out.audio_row));
  return out;
}

Velocities evaluate(Ops& ops, Dit& dit, const DitCase& dit_case, float video_time, float audio_time,
                    const std::function<void(const char*, const View&)>& probe) {
  Device& device = ops.device();
  DitRequest request = dit_case.request;
  request.layout = &dit_case.layout;
  request.video_times = {video_time};
  request.audio_times = {audio_time};
  request.probe = probe;
  const Control control;
  const std::unique_ptr<DitSession> session = dit.start(std::move(request), control);
  const std::vector<int64_t> video_dims{dit_case.layout.target_video_rows(), dit_case.video_row};
  const std::vector<int64_t> audio_dims{dit_case.layout.target_audio_rows(), dit_case.audio_row};
  const Tensor video = upload_f32(device, dit_case.video.data(), video_dims, DType::f32, "video rows");
  const Tensor audio = upload_f32(device, dit_case.audio.data(), audio_dims, DType::f32, "audio rows");
  const Tensor video_velocity(device, DType::f32, video_dims, "video velocity");
  const Tensor audio_velocity(device, DType::f32, audio_dims, "audio velocity");
  session->evaluate(0, video, audio, video_velocity, audio_velocity);
  ops.sync();
  return {download_f32(video_velocity), download_f32(audio_velocity)};
}

std::vector<float> tail_of(const std::vector<float>& values, size_t count) {
  H3_ASSERT(values.size() >= count);
  return {values.end() - static_cast<int64_t>(count), values.end()};
}

}  // namespace h3
