// The vision tower and the language model, stage by stage, on the golden ids and pixels.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "apps/parity/suite.h"
#include "base/error.h"
#include "model/text/conditioner.h"
#include "model/text/presentation.h"
#include "store/model_files.h"

namespace h3 {
namespace {

constexpr Limits kF32{.rel_l2 = 5e-6};
constexpr Limits kBf16{.rel_l2 = 3e-2};

ModelFiles open_toy(Suite& suite) {
  OpenOptions options;
  options.paths = {suite.path("toy")};
  return open_model_files(options);
}

std::unique_ptr<Conditioner> load(Suite& suite, const ModelFiles& files, int tap, Compute compute) {
  ConditionerOptions options;
  options.tap = tap;
  options.compute = compute;
  return load_conditioner(suite.ops(), files, options);
}

// Names of the cases: what stands before ".input_ids".
std::vector<std::string> case_names(const GoldenFile& file) {
  const std::string suffix = ".input_ids";
  std::vector<std::string> out;
  for (const std::string& name : file.names()) {
    if (name.ends_with(suffix)) out.push_back(name.substr(0, name.size() - suffix.size()));
  }
  std::sort(out.begin(), out.end());
  return out;
}

void add_inputs(const GoldenFile& file, const std::string& grid_name, const std::string& pixel_name, bool video,
                Presentation& presentation) {
  if (!file.has(grid_name)) return;
  const std::vector<int64_t> grids = file.i64(grid_name);
  const std::vector<int64_t> pixels = file.i64(pixel_name);
  auto next = pixels.begin();
  for (size_t i = 0; i + 2 < grids.size(); i += 3) {
    VisionInput input{.video = video, .grid_t = grids[i], .grid_h = grids[i + 1], .grid_w = grids[i + 2]};
    const int64_t count = input.rows() * kPatchRow;
    if (pixels.end() - next < count) fail(Code::data, "%s has too few rows for its grid", pixel_name.c_str());
    input.patches.assign(next, next + count);
    next += count;
    presentation.vision.push_back(std::move(input));
  }
}

Presentation read_case(const GoldenFile& file, const std::string& name) {
  Presentation presentation;
  for (const int64_t id : file.i64(name + ".input_ids")) presentation.ids.push_back(static_cast<int32_t>(id));
  presentation.tags.assign(presentation.ids.size(), 1);
  add_inputs(file, name + ".image_grid_thw", name + ".pixel_values_u8", false, presentation);
  add_inputs(file, name + ".video_grid_thw", name + ".pixel_values_videos_u8", true, presentation);
  return presentation;
}

// Intermediate values by golden name: pictures of one modality are one call there, so their rows are joined; the videos
// of a mixed case are the second call.
class Recorder {
 public:
  explicit Recorder(const Presentation& presentation) {
    for (const VisionInput& input : presentation.vision) videos_.push_back(input.video);
    mixed_ = std::set<bool>(videos_.begin(), videos_.end()).size() > 1;
  }

  void operator()(const char* name, int64_t index, int64_t input, const View& value) {
    const std::string what = name;
    const bool vision = what.starts_with("vis.");
    const bool second = vision && mixed_ && videos_[static_cast<size_t>(input)];
    const bool numbered = what == "vis.block" || what == "vis.deepstack" || what == "lm.layer";
    const std::vector<float> values = download_f32(value);
    std::vector<float>& all = values_[what + (numbered ? "." + std::to_string(index) : "") + (second ? "#2" : "")];
    all.insert(all.end(), values.begin(), values.end());
    if (what == "vis.cos" || what == "vis.sin") {  // one frame's table serves all frames of a video
      for (int64_t t = 1; t < frames(input); ++t) all.insert(all.end(), values.begin(), values.end());
    }
  }

  std::vector<int64_t> grid_t;
  const std::vector<float>* find(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }

 private:
  int64_t frames(int64_t input) const { return grid_t[static_cast<size_t>(input)]; }

  std::vector<bool> videos_;
  bool mixed_ = false;
  std::map<std::string, std::vector<float>> values_;
};

// Rotary tables of the reference repeat the half table.
std::vector<float> first_half(const std::vector<float>& rows, int64_t width) {
  std::vector<float> out;
  for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(width)) {
    out.insert(out.end(), rows.begin() + static_cast<int64_t>(i), rows.begin() + static_cast<int64_t>(i) + width / 2);
  }
  return out;
}

// Golden name behind the case -> recorded name; empty for tensors that are inputs or not part of the product.
std::string recorded_name(const std::string& key) {
  const std::string second = key.ends_with("#2") ? "#2" : "";
  const std::string base = key.substr(0, key.size() - second.size());
  if (base == "vis.block0_in.position_embeddings.0") return "vis.cos" + second;
  if (base == "vis.block0_in.position_embeddings.1") return "vis.sin" + second;
  if (base == "lm.rope.0") return "lm.cos";
  if (base == "lm.rope.1") return "lm.sin";
  return base.starts_with("vis.") || base == "lm.in.inputs_embeds" || base.starts_with("lm.layer.") ? key : "";
}

void check_stages(Suite& suite, const GoldenFile& file, const std::string& name, const Recorder& recorder) {
  for (const std::string& tensor : file.names()) {
    if (!tensor.starts_with(name + ".")) continue;
    const std::string key = tensor.substr(name.size() + 1);
    const std::string ours = recorded_name(key);
    if (ours.empty() || key.find("cu_seqlens") != std::string::npos) continue;
    const std::vector<float>* got = recorder.find(ours);
    std::vector<float> want = file.f32(tensor);
    if (ours.find("cos") != std::string::npos || ours.find("sin") != std::string::npos) {
      want = first_half(want, file.info(tensor).dims.back());
    }
    if (got == nullptr) {
      suite.fail(tensor, "not computed");
    } else {
      suite.check(tensor, *got, want, kF32);
    }
  }
}

// hidden_states[k] is the embedding for k = 0, then the raw output of layer k - 1; the last one is behind the final
// norm, which H3 never runs.
void check_hidden(Suite& suite, const GoldenFile& file, const std::string& name, const Recorder& recorder) {
  const std::string tensor = name + ".hidden_states";
  const std::vector<float> all = file.f32(tensor);
  const int64_t levels = file.info(tensor).dims[0];
  const size_t size = all.size() / static_cast<size_t>(levels);
  for (int64_t k = 0; k + 1 < levels; ++k) {
    const std::string ours = k == 0 ? "lm.in.inputs_embeds" : "lm.layer." + std::to_string(k - 1);
    const std::vector<float>* got = recorder.find(ours);
    const std::span<const float> want(all.data() + static_cast<size_t>(k) * size, size);
    suite.check(strf("%s[%lld]", tensor.c_str(), static_cast<long long>(k)),
                got != nullptr ? std::span<const float>(*got) : std::span<const float>(), want, kF32);
  }
}

void check_positions(Suite& suite, const GoldenFile& file, const std::string& name, const Presentation& presentation,
                     const Tokenizer::Special& special) {
  const std::vector<VisionRun> runs = find_vision_runs(presentation.ids, special, presentation.vision);
  const int64_t rows = static_cast<int64_t>(presentation.ids.size());
  const std::string tensor = name + ".lm.in.position_ids";
  std::vector<int64_t> got;
  for (const std::vector<int32_t>& axis : rotary_positions(rows, runs)) got.insert(got.end(), axis.begin(), axis.end());
  if (file.has(tensor)) suite.exact(tensor, got == file.i64(tensor));
  const std::string mask = name + ".lm.in.visual_pos_masks";
  if (!file.has(mask)) return;
  std::vector<int64_t> spliced(static_cast<size_t>(rows));
  for (const VisionRun& run : runs) std::fill_n(spliced.begin() + run.row, run.count, 1);
  suite.exact(mask, spliced == file.i64(mask));
}

// "4 (of 6); the release reads 50 of 64", or the override of the end-to-end cases.
int golden_tap(Suite& suite, const GoldenFile& file) {
  const auto stated = file.metadata().find("text_encoder_layer");
  if (stated != file.metadata().end()) return std::atoi(stated->second.c_str());
  return static_cast<int>(suite.json("e2e.json").at("text_encoder_layer").as_int());
}

std::vector<float> slice_level(const GoldenFile& file, const std::string& tensor, int level) {
  const std::vector<float> all = file.f32(tensor);
  const size_t size = all.size() / static_cast<size_t>(file.info(tensor).dims[0]);
  return {all.begin() + static_cast<int64_t>(size) * level, all.begin() + static_cast<int64_t>(size) * (level + 1)};
}

void run_all_layers(Suite& suite, const GoldenFile& file, const ModelFiles& files,
                    const std::vector<std::string>& names) {
  const int layers = static_cast<int>(file.info(names[0] + ".hidden_states").dims[0]) - 1;
  const std::unique_ptr<Conditioner> conditioner = load(suite, files, layers, Compute::f32);
  const Control control;
  for (const std::string& name : names) {
    const Presentation presentation = read_case(file, name);
    Recorder recorder(presentation);
    for (const VisionInput& input : presentation.vision) recorder.grid_t.push_back(input.grid_t);
    check_positions(suite, file, name, presentation, conditioner->tokenizer().special());
    conditioner->run(presentation, control, std::ref(recorder));
    check_stages(suite, file, name, recorder);
    check_hidden(suite, file, name, recorder);
  }
}

void run_tap(Suite& suite, const GoldenFile& file, const ModelFiles& files, const std::vector<std::string>& names,
             int tap, Compute compute) {
  const std::unique_ptr<Conditioner> conditioner = load(suite, files, tap, compute);
  const Control control;
  const bool narrow = compute == Compute::bf16;
  for (const std::string& name : names) {
    const Conditioning got = conditioner->run(read_case(file, name), control);
    const std::string label = strf("%s tap %d %s", name.c_str(), tap, narrow ? "bf16" : "f32");
    suite.check(label, got.embeds, slice_level(file, name + ".hidden_states", tap), narrow ? kBf16 : kF32);
    const std::string reference = strf("%s.bf16.hidden_state_%d", name.c_str(), tap);
    if (narrow && file.has(reference)) suite.check(label + " against bf16", got.embeds, file.f32(reference), kBf16);
  }
}

}  // namespace

void run_text(Suite& suite) {
  if (!suite.exists("qwen_hidden.safetensors")) return;
  const GoldenFile file = suite.open("qwen_hidden.safetensors");
  const ModelFiles files = open_toy(suite);
  const std::vector<std::string> names = case_names(file);
  if (names.empty()) {
    suite.fail("qwen_hidden.safetensors", "no case in it");
    return;
  }
  run_all_layers(suite, file, files, names);
  // Every tap: features added behind the tapped layer must not be in it. The last level is behind the final norm.
  const int levels = static_cast<int>(file.info(names[0] + ".hidden_states").dims[0]);
  for (int tap = 1; tap + 1 < levels; ++tap) run_tap(suite, file, files, names, tap, Compute::f32);
  run_tap(suite, file, files, names, golden_tap(suite, file), Compute::bf16);
}

}  // namespace h3
