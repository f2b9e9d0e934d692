// Adapters: dit_lora_<case>.safetensors holds velocities of dit_<case> after W += strength * (alpha / rank) * up * down
// in f32 (golden/README 4). The same values are asked of weights merged so and of live branches beside the base.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "apps/parity/dit_case.h"
#include "apps/parity/overlay.h"
#include "base/error.h"
#include "model/lora/adapter.h"
#include "store/values.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

constexpr Limits kFloat{.rel_l2 = 5e-6};  // golden/README 12

// The adapter among the folder's checkpoints, by its tensors; "" when there is none.
std::string find_adapter(const Suite& suite) {
  if (!suite.exists("toy_comfy")) return "";
  for (const fs::directory_entry& entry : fs::directory_iterator(suite.path("toy_comfy"))) {
    if (entry.path().extension() != ".safetensors") continue;
    for (const std::string& name : GoldenFile(entry.path().string()).names()) {
      if (name.ends_with(".lora_down.weight")) return entry.path().string();
    }
  }
  return "";
}

// The base, in the row order of the forward, with every matrix of the adapter replaced by its merged weight.
Component merge(const Component& base, const lora::Adapter& adapter, float strength) {
  std::vector<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  for (const lora::Site& site : adapter.sites()) {
    const std::string weight = base.prefix + lora::name_of(site) + ".weight";
    const TensorInfo* info = base.source->find(weight);
    if (info == nullptr) fail(Code::data, "the adapter names %s, which the checkpoint lacks", weight.c_str());
    std::vector<float>& rows = values.emplace_back(values_of(*info));
    lora::SiteMerge({{&adapter, strength}}, site).add(0, info->dims.at(0), rows.data());
    tensors.push_back({weight, Format::f32, info->dims, {}});
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = std::as_bytes(std::span(values[i]));
  const std::string path = fs::temp_directory_path() / strf("h3-parity-%d.safetensors", static_cast<int>(getpid()));
  write_safetensors(path, tensors, {});
  Component component = base;
  component.source =
      std::make_shared<OverlaySource>(base.source, open_safetensors(path), [](const std::string&) { return true; });
  fs::remove(path);  // the mapping keeps it
  return component;
}

float time_of(const GoldenFile& file, const char* rows) {
  const int64_t row = file.i64(rows).back();
  return file.f32("in.timestep").at(static_cast<size_t>(file.i64("in.timestep_indices").at(static_cast<size_t>(row))));
}

class LoraCase {
 public:
  LoraCase(Suite& suite, std::string name, const GoldenFile& golden)
      : suite_(suite), name_(std::move(name)), golden_(golden), inputs_(suite.path("dit_" + name_ + ".safetensors")) {}

  void run(const ToyDit& toy, const std::string& path) {
    const float strength = std::strtof(golden_.metadata().at("strength").c_str(), nullptr);
    const Control control;
    const DitCase plain = read_dit_case(inputs_);
    // The same adapter beside either spelling of the base.
    const struct {
      const char* how;
      const std::optional<Component>& base;
    } spellings[] = {{"live", toy.comfy}, {"live.diffusers", toy.diffusers}};
    for (const auto& spelling : spellings) {
      if (!spelling.base) continue;
      const std::unique_ptr<Dit> base = load_dit(suite_.ops(), *spelling.base, {Compute::f32, DType::f32}, control);
      const lora::Adapter adapter(lora::open_adapter(path), lora::TargetTable(base->config()), {});
      DitCase live = plain;
      live.request.adapters = {{base->load_adapter(adapter, control), strength}};
      judge(spelling.how, *base, live);
      // The base itself is untouched, whatever ran before.
      const Velocities without = evaluate(*base, plain);
      suite_.check(name_ + "." + spelling.how + ".none.video", without.video,
                   tail_of(inputs_.f32("out.video_velocity"), without.video.size()), kFloat);
      if (spelling.base->spelling != Spelling::comfy) continue;  // merge() takes the names of the adapter
      const Component merged = merge(*toy.comfy, adapter, strength);
      judge("merged", *load_dit(suite_.ops(), merged, {Compute::f32, DType::f32}, control), plain);
    }
  }

 private:
  Velocities evaluate(Dit& dit, const DitCase& c) {
    return h3::evaluate(suite_.ops(), dit, c, time_of(inputs_, "in.video_indices"),
                        time_of(inputs_, "in.audio_indices"));
  }
  void judge(const char* how, Dit& dit, const DitCase& c) {
    const Velocities got = evaluate(dit, c);
    const std::string start = name_ + "." + how;
    suite_.check(start + ".video", got.video, tail_of(golden_.f32("out.video_velocity"), got.video.size()), kFloat);
    suite_.check(start + ".audio", got.audio, tail_of(golden_.f32("out.audio_velocity"), got.audio.size()), kFloat);
  }

  Suite& suite_;
  std::string name_;
  const GoldenFile& golden_;
  GoldenFile inputs_;
};

}  // namespace

void run_lora(Suite& suite) {
  const std::string path = find_adapter(suite), start = "dit_lora_", end = ".safetensors";
  const ToyDit toy = find_toy_dit(suite);
  for (const std::string& file : suite.files(start, end)) {
    const std::string name = file.substr(start.size(), file.size() - start.size() - end.size());
    const GoldenFile golden = suite.open(file);
    if (path.empty() || !(toy.comfy || toy.diffusers)) {
      suite.fail(name, "no adapter or no checkpoint that it fits in the folder");
      continue;
    }
    LoraCase(suite, name, golden).run(toy, path);
  }
}

}  // namespace h3
