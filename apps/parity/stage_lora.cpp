// Adapters merged into the weights: dit_lora_<case>.safetensors holds velocities of dit_<case> after
// W += strength * (alpha / rank) * up * down in f32 (golden/README 4).
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "apps/parity/dit_case.h"
#include "apps/parity/overlay.h"
#include "base/error.h"

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

std::vector<float> values_of(const TensorInfo& info) {
  StoredMatrix all;
  all.format = info.format;
  all.rows = 1;
  all.cols = 1;
  for (const int64_t d : info.dims) all.cols *= d;
  all.data = info.data;
  std::vector<float> out(static_cast<size_t>(all.cols));
  row_of(all.format).decode_row(all, 0, out.data());
  return out;
}

// The base weight of `module` with its branch added, f32.
std::vector<float> merged(const TensorInfo& weight, const GoldenFile& adapter, const std::string& module,
                          float strength) {
  const std::vector<float> down = adapter.f32(module + ".lora_down.weight");
  const std::vector<float> up = adapter.f32(module + ".lora_up.weight");
  const int64_t rank = adapter.info(module + ".lora_down.weight").dims.at(0);
  const int64_t rows = weight.dims.at(0), cols = weight.dims.at(1);
  const float scale = strength * (adapter.f32(module + ".alpha").at(0) / static_cast<float>(rank));
  std::vector<float> out = values_of(weight);
  std::vector<float> sum(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int64_t k = 0; k < rank; ++k) {
      for (int64_t c = 0; c < cols; ++c) sum[c] += up[r * rank + k] * down[k * cols + c];
    }
    for (int64_t c = 0; c < cols; ++c) out[r * cols + c] += scale * sum[c];
  }
  return out;
}

// The base with every module of the adapter replaced by its merged weight, through a file of its own.
Component merge(const Component& base, const GoldenFile& adapter, float strength) {
  const std::string start = "diffusion_model.", end = ".lora_down.weight";
  std::vector<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : adapter.names()) {
    if (!name.starts_with(start) || !name.ends_with(end)) continue;
    const std::string module = name.substr(0, name.size() - end.size());
    const std::string weight = base.prefix + module.substr(start.size()) + ".weight";
    const TensorInfo* info = base.source->find(weight);
    if (info == nullptr) fail(Code::data, "the adapter names %s, which the checkpoint lacks", weight.c_str());
    values.push_back(merged(*info, adapter, module, strength));
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

}  // namespace

void run_merged_lora(Suite& suite) {
  const std::string path = find_adapter(suite), start = "dit_lora_", end = ".safetensors";
  const ToyDit toy = find_toy_dit(suite);
  for (const std::string& file : suite.files(start, end)) {
    const std::string name = file.substr(start.size(), file.size() - start.size() - end.size());
    const GoldenFile golden = suite.open(file);
    if (path.empty() || !toy.comfy) {
      suite.fail(name, "no adapter or no checkpoint that it fits in the folder");
      continue;
    }
    const GoldenFile inputs(suite.path("dit_" + name + end));
    const float strength = std::strtof(golden.metadata().at("strength").c_str(), nullptr);
    const Control control;
    const Component component = merge(*toy.comfy, GoldenFile(path), strength);
    const std::unique_ptr<Dit> dit = load_dit(suite.ops(), component, {Compute::f32, DType::f32}, control);
    const DitCase c = read_dit_case(inputs);
    const Velocities got =
        evaluate(suite.ops(), *dit, c, time_of(inputs, "in.video_indices"), time_of(inputs, "in.audio_indices"));
    suite.check(name + ".merged.video", got.video, tail_of(golden.f32("out.video_velocity"), got.video.size()), kFloat);
    suite.check(name + ".merged.audio", got.audio, tail_of(golden.f32("out.audio_velocity"), got.audio.size()), kFloat);
  }
}

}  // namespace h3
