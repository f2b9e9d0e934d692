// The denoiser: tables, every intermediate value of one evaluation, velocities at two steps in f32 and bf16, the curve
// checkpoint, and the three spellings of one checkpoint.
#include <cstdlib>
#include <map>

#include "apps/parity/dit_case.h"
#include "apps/parity/suite.h"
#include "base/error.h"
#include "model/dit/adaln.h"
#include "model/dit/session.h"
#include "sampling/noise.h"

namespace h3 {
namespace {

constexpr Limits kFloat{.rel_l2 = 5e-6};  // golden/README 12
constexpr Limits kHalf{.rel_l2 = 2e-2};
constexpr Limits kTable{.max_abs = 1e-6};  // sines and cosines of equal f32 angles

using Values = std::map<std::string, std::vector<float>>;

// Model times of the target rows of one evaluation, from the packed structure of the golden.
struct Times {
  float video = 0, audio = 0;
};
Times times_of(const GoldenFile& file, const std::string& prefix) {
  const std::vector<float> distinct = file.f32(prefix + "timestep");
  const std::vector<int64_t> index = file.i64(prefix + "timestep_indices");
  const auto at = [&](const char* rows) {
    return distinct.at(static_cast<size_t>(index.at(static_cast<size_t>(file.i64(rows).back()))));
  };
  return {at("in.video_indices"), at("in.audio_indices")};
}

void check_layout(Suite& suite, const std::string& name, const GoldenFile& file, const DitCase& c) {
  const PackedLayout& layout = c.layout;
  const std::vector<int64_t> tags(layout.tags.begin(), layout.tags.end());
  suite.exact(name + ".layout", layout.position == file.f64("in.position_ids") && tags == file.i64("in.token_tags") &&
                                    layout.video_rows == file.i64("in.video_indices") &&
                                    layout.audio_rows == file.i64("in.audio_indices") &&
                                    layout.text_rows == file.i64("in.text_indices"));
  const Times times = times_of(file, "in.");
  const RowTimes rows = row_times(layout, times.video, times.audio);
  const std::vector<int64_t> index(rows.index.begin(), rows.index.end());
  suite.exact(name + ".row_times", rows.times == file.f32("in.timestep") && index == file.i64("in.timestep_indices"));
}

// Rows are made of latents and noise as the goldens say.
void check_rows(Suite& suite, const std::string& name, const GoldenFile& file) {
  std::vector<float> rows;
  const auto append = [&](const std::vector<float>& latent, const TensorInfo& info) {
    const auto dim = [&](size_t i) { return static_cast<int>(info.dims.at(i)); };
    const std::vector<float> part = patchify(latent.data(), dim(0), dim(1), dim(2), dim(3));
    rows.insert(rows.end(), part.begin(), part.end());
  };
  for (int i = 0; file.has("in.condition_latent." + std::to_string(i)); ++i) {
    const std::string number = std::to_string(i);
    std::vector<float> latent = file.f32("in.condition_latent." + number);
    noise_condition(noise_profile("diffusers"), latent, file.f32("in.condition_noise." + number));
    append(latent, file.info("in.condition_latent." + number));
  }
  append(file.f32("in.video_noise_latent"), file.info("in.video_noise_latent"));
  suite.check(name + ".rows", rows, file.f32("in.hidden_states"), {.max_abs = 0});
}

// Rows of the golden's AdaLN tables that some row of the sequence reads: golden row = time x 3 + tag.
void check_adaln(Suite& suite, const std::string& name, const GoldenFile& file, const DitCase& c, const Values& values,
                 const std::vector<int32_t>& ids) {
  const std::vector<int64_t> index = file.i64("in.timestep_indices");
  const std::vector<float>& bank = values.at("b0.adaln");
  for (int chunk = 0; file.has("act.b0.adaln." + std::to_string(chunk)); ++chunk) {
    const std::string key = "act.b0.adaln." + std::to_string(chunk);
    const size_t hidden = static_cast<size_t>(file.info(key).dims.at(1));
    const std::vector<float> table = file.f32(key);
    std::map<size_t, size_t> pairs;  // golden row -> bank row
    for (size_t s = 0; s < index.size(); ++s) {
      pairs[static_cast<size_t>(index[s] * 3 + c.layout.tags[s])] = static_cast<size_t>(ids.at(s));
    }
    std::vector<float> got, want;
    for (const auto& [golden, ours] : pairs) {
      want.insert(want.end(), table.begin() + static_cast<int64_t>(golden * hidden),
                  table.begin() + static_cast<int64_t>((golden + 1) * hidden));
      const auto begin = bank.begin() + static_cast<int64_t>((ours * 6 + static_cast<size_t>(chunk)) * hidden);
      got.insert(got.end(), begin, begin + static_cast<int64_t>(hidden));
    }
    suite.check(name + "." + key, got, want, kFloat);
  }
}

// Everything the golden recorded under `prefix` that the forward showed. Values of the final norm are of target rows.
void check_values(Suite& suite, const std::string& name, const GoldenFile& file, const std::string& prefix,
                  const Values& values, const Limits& limits) {
  for (const std::string& key : file.names()) {
    if (!key.starts_with(prefix)) continue;
    const auto found = values.find(key.substr(prefix.size()));
    if (found == values.end()) continue;
    const std::vector<float> want = file.f32(key);
    const bool targets = key == prefix + "norm_out";
    suite.check(name + "." + key, found->second, targets ? tail_of(want, found->second.size()) : want, limits);
  }
}

void check_velocities(Suite& suite, const std::string& name, const GoldenFile& file, const std::string& prefix,
                      const Velocities& got, const Limits& limits) {
  for (const char* stream : {"video", "audio"}) {
    const std::string key = prefix + stream + "_velocity";
    if (!file.has(key)) continue;
    const std::vector<float>& ours = std::string(stream) == "video" ? got.video : got.audio;
    suite.check(name + "." + key, ours, tail_of(file.f32(key), ours.size()), limits);
  }
}

// Time embedding of the distinct times of the case.
void check_times(Suite& suite, const std::string& name, const GoldenFile& file, const dit::Source& source,
                 const std::string& prefix, const std::string& times_key) {
  if (source.config.time_dim == 0 || !file.has(prefix + "temb")) return;
  const std::vector<float> times = file.f32(times_key);
  const std::string sinusoid = prefix + (file.has(prefix + "sinusoid") ? "sinusoid" : "time_sinusoid");
  if (file.has(sinusoid)) {
    suite.check(name + sinusoid, dit::time_sinusoid(times, source.config.freq_dim), file.f32(sinusoid), kTable);
  }
  const Tensor temb = dit::embed_times(suite.ops(), source, times);
  suite.check(name + prefix + "temb", download_f32(temb), file.f32(prefix + "temb"), kFloat);
}

struct Loaded {
  std::unique_ptr<Dit> f32, bf16;
};

Loaded load(Suite& suite, const Component& component) {
  const Control control;
  Loaded loaded;
  loaded.f32 = load_dit(suite.ops(), component, {Compute::f32, DType::f32}, control);
  loaded.bf16 = load_dit(suite.ops(), component, {Compute::bf16, DType::bf16}, control);
  return loaded;
}

void run_case(Suite& suite, const std::string& name, const GoldenFile& file, const Loaded& dit,
              const dit::Source& source) {
  const DitCase c = read_dit_case(file);
  check_layout(suite, name, file, c);
  check_rows(suite, name, file);
  check_times(suite, name + ".", file, source, "act.", "in.timestep");
  const Times times = times_of(file, "in.");
  Values values;
  std::vector<int32_t> ids;
  const auto record = [&](const char* key, const View& view) {
    if (is_float(view.type)) {
      values[key] = download_f32(view);
      return;
    }
    ids.resize(static_cast<size_t>(view.elements()));
    view.device->download(view, ids.data());
  };
  const Velocities probed = evaluate(suite.ops(), *dit.f32, c, times.video, times.audio, record);
  check_values(suite, name, file, "act.", values, kFloat);
  if (file.has("act.b0.adaln.0")) check_adaln(suite, name, file, c, values, ids);
  const Velocities plain = evaluate(suite.ops(), *dit.f32, c, times.video, times.audio);
  check_velocities(suite, name, file, "out.", plain, kFloat);
  suite.exact(name + ".probe_changes_nothing", probed.video == plain.video && probed.audio == plain.audio);
  if (file.has("step0.timestep")) {
    const Times start = times_of(file, "step0.");
    check_velocities(suite, name, file, "step0.", evaluate(suite.ops(), *dit.f32, c, start.video, start.audio), kFloat);
  }
  values.clear();
  const Velocities half = evaluate(suite.ops(), *dit.bf16, c, times.video, times.audio, record);
  check_values(suite, name, file, "bf16.act.", values, kHalf);
  check_velocities(suite, name, file, "bf16.out.", half, kHalf);
  check_velocities(suite, name + ".bf16_against_f32", file, "out.", half, kHalf);
}

void run_tables(Suite& suite, const GoldenFile& file, const dit::Source& source) {
  const dit::RotaryTables tables = dit::rotary_tables(file.f64("rope.position_ids"), source.inv_freq);
  suite.check("tables.rope.inv_freq", source.inv_freq, file.f32("rope.inv_freq"), {.max_abs = 0});
  const size_t pairs = 3 * source.inv_freq.size();
  for (const char* key : {"rope.cos", "rope.sin"}) {
    const std::vector<float>& ours = std::string(key) == "rope.cos" ? tables.cos : tables.sin;
    std::vector<float> both;  // the golden repeats the pairs for the second half of the rotated channels
    for (size_t row = 0; row * pairs < ours.size(); ++row) {
      for (int half = 0; half < 2; ++half) {
        both.insert(both.end(), ours.begin() + static_cast<int64_t>(row * pairs),
                    ours.begin() + static_cast<int64_t>((row + 1) * pairs));
      }
    }
    suite.check(std::string("tables.") + key, both, file.f32(key), kTable);
  }
  check_times(suite, "tables.", file, source, "time.", "time.t");
}

// "<case>.video_velocity": inputs of dit_<case>, weights of the curve checkpoint.
void run_curve(Suite& suite, const GoldenFile& file, const Component& component) {
  const dit::Source source = dit::read_source(component, suite.ops().context().log);
  const auto coordinates = [&](const std::vector<float>& times) {
    return dit::curve_coordinates(source.curve, source.config.curve_rank, times);
  };
  suite.check("curve.lerp", coordinates(file.f32("lerp.t")), file.f32("lerp.coordinates"), {.rel_l2 = 1e-6});
  const Loaded dit = load(suite, component);
  for (const std::string& key : file.names()) {
    const size_t end = key.find(".video_velocity");
    if (end == std::string::npos) continue;
    const std::string name = key.substr(0, end);
    const GoldenFile inputs = suite.open("dit_" + name + ".safetensors");
    const DitCase c = read_dit_case(inputs);
    const Times times = times_of(inputs, "in.");
    if (file.has(name + ".curve_coordinates")) {
      suite.check("curve." + name + ".coordinates", coordinates(inputs.f32("in.timestep")),
                  file.f32(name + ".curve_coordinates"), {.rel_l2 = 1e-6});
    }
    check_velocities(suite, "curve", file, name + ".", evaluate(suite.ops(), *dit.f32, c, times.video, times.audio),
                     kFloat);
    check_velocities(suite, "curve.bf16_against_f32", file, name + ".",
                     evaluate(suite.ops(), *dit.bf16, c, times.video, times.audio), kHalf);
  }
}

// Other spellings of the same checkpoint give the same bytes.
void run_spellings(Suite& suite, const ToyDit& toy, const std::string& name, const GoldenFile& file,
                   const Loaded& dit) {
  const DitCase c = read_dit_case(file);
  const Times times = times_of(file, "in.");
  const struct {
    const char* label;
    const std::optional<Component>& component;
  } others[] = {{"comfy", toy.comfy}, {"official", toy.official}};
  for (const auto& other : others) {
    if (!other.component) continue;
    const Loaded loaded = load(suite, *other.component);
    const struct {
      const char* label;
      Dit& ours;
      Dit& theirs;
    } precisions[] = {{"f32", *dit.f32, *loaded.f32}, {"bf16", *dit.bf16, *loaded.bf16}};
    for (const auto& precision : precisions) {
      const Velocities a = evaluate(suite.ops(), precision.ours, c, times.video, times.audio);
      const Velocities b = evaluate(suite.ops(), precision.theirs, c, times.video, times.audio);
      suite.exact(std::string("spelling.") + other.label + "." + name + "." + precision.label,
                  a.video == b.video && a.audio == b.audio, "velocities differ");
    }
  }
}

}  // namespace

void run_dit(Suite& suite) {
  const ToyDit toy = find_toy_dit(suite);
  std::vector<std::string> cases;
  for (const std::string& file : suite.files("dit_", ".safetensors")) {
    const std::string name = file.substr(4, file.size() - 4 - std::string(".safetensors").size());
    if (GoldenFile(suite.path(file)).has("in.hidden_states")) cases.push_back(name);
  }
  if (cases.empty()) return;
  if (!toy.diffusers) {
    suite.fail("toy", "the golden folder has no toy/transformer");
    return;
  }
  const dit::Source source = dit::read_source(*toy.diffusers, suite.ops().context().log);
  if (suite.exists("dit_tables.safetensors")) run_tables(suite, suite.open("dit_tables.safetensors"), source);
  const Loaded dit = load(suite, *toy.diffusers);
  for (const std::string& name : cases) {
    const GoldenFile file = suite.open("dit_" + name + ".safetensors");
    run_case(suite, name, file, dit, source);
  }
  run_spellings(suite, toy, cases.back(), suite.open("dit_" + cases.back() + ".safetensors"), dit);
  if (toy.curve && suite.exists("dit_curve.safetensors"))
    run_curve(suite, suite.open("dit_curve.safetensors"), *toy.curve);
}

}  // namespace h3
