// Video autoencoder: tile and clip arithmetic, encoder stages and moments, condition latents, decoder stages and
// frames.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "apps/parity/suite.h"
#include "apps/parity/synthetic.h"
#include "base/error.h"
#include "base/file_map.h"
#include "codec/scalar.h"
#include "model/vae/video_vae.h"

namespace h3 {
namespace {

constexpr Limits kFloat{.rel_l2 = 2e-6};  // golden/README 12: video VAE float32
constexpr Limits kHalf{.rel_l2 = 2e-3};   // decode and encode with f16 operands

Component open_component(const std::string& folder) {
  Component component;
  component.role = Role::video_vae;
  component.origin = folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") component.source = open_safetensors(entry.path().string());
  }
  if (component.source == nullptr) fail(Code::data, "%s holds no safetensors file", folder.c_str());
  component.config = Json::parse(read_file(folder + "/config.json"), folder + "/config.json");
  return component;
}

using Stages = std::map<std::string, std::vector<float>>;

// Keeps the first value of every stage.
StageObserver recorder(Ops& ops, Stages& stages) {
  return [&](const std::string& stage, const View& value) {
    if (stages.contains(stage)) return;
    ops.sync();
    stages[stage] = download_f32(value);
  };
}

VideoTiling tiling_of(const Json& value) {
  return {static_cast<int>(value.at("tile").as_int()), static_cast<int>(value.at("min_overlap").as_int())};
}

// ---- pixels (golden/README 2)
// -----------------------------------------------------------------------------------------

// synth_image for even frames of a case, smooth_image for odd ones; [3, F, H, W] normalised.
std::vector<float> make_pixels(int frames, int h, int w, int64_t seed) {
  constexpr float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
  const int64_t area = static_cast<int64_t>(h) * w;
  std::vector<float> out(static_cast<size_t>(3 * frames * area));
  for (int t = 0; t < frames; ++t) {
    const std::vector<uint8_t> image = made_image(t % 2 == 0 ? "synth" : "smooth", w, h, static_cast<int>(seed) + t);
    for (int64_t i = 0; i < 3 * area; ++i) {
      const int64_t c = i % 3;
      out[(c * frames + t) * area + i / 3] = (static_cast<float>(image[i]) / 255.0f - mean[c]) / std[c];
    }
  }
  return out;
}

// The list behind "base seeds in order of the cases:".
std::vector<int64_t> base_seeds(const GoldenFile& file) {
  const auto found = file.metadata().find("pixels");
  std::vector<int64_t> seeds;
  if (found == file.metadata().end()) return seeds;
  const size_t colon = found->second.rfind(':');
  if (colon == std::string::npos) return seeds;
  const Json list = Json::parse("[" + found->second.substr(colon + 1) + "]", "base seeds");
  for (const Json& seed : list.items()) {
    seeds.push_back(seed.as_int());
  }
  return seeds;
}

// ---- encoder
// ------------------------------------------------------------------------------------------------------------

std::vector<float> silu_of(std::vector<float> values) {
  for (float& v : values) v = static_cast<float>(v / (1.0 + std::exp(-static_cast<double>(v))));
  return values;
}

// The golden latent lies on the f16 grid before it is normalised, so a difference of one part in 1e7 may show as a
// whole step of the grid. Judged is how far our unrounded sample lies outside of what rounds to the golden value.
void check_condition(Suite& suite, const std::string& name, const VideoVae& vae, const std::vector<float>& moments,
                     const std::vector<float>& golden) {
  const int64_t channels = static_cast<int64_t>(vae.latents_mean().size());
  const int64_t positions = static_cast<int64_t>(golden.size()) / channels;
  if (static_cast<int64_t>(moments.size()) != 2 * channels * positions) return suite.fail(name, "wrong shape");
  const std::vector<float> sample = sample_posterior(moments, channels, positions);
  std::vector<float> nearest(sample.size());
  for (size_t i = 0; i < sample.size(); ++i) {
    const float mean = vae.latents_mean()[i / positions], std = vae.latents_std()[i / positions];
    const uint16_t bits = f32_to_f16(golden[i] * std + mean);
    const double value = f16_to_f32(bits);
    if (std::fabs((static_cast<float>(value) - mean) / std - golden[i]) > 1e-6f * (1 + std::fabs(golden[i]))) {
      return suite.fail(name, "the golden value is not a rounded sample");
    }
    // Half way to the neighbours of larger and of smaller magnitude.
    const double outer = (value + f16_to_f32(static_cast<uint16_t>(bits + 1))) / 2;
    const double inner = (bits & 0x7fff) == 0 ? -outer : (value + f16_to_f32(static_cast<uint16_t>(bits - 1))) / 2;
    nearest[i] = static_cast<float>(std::clamp<double>(sample[i], std::min(inner, outer), std::max(inner, outer)));
  }
  suite.check(name, sample, nearest, kFloat);
}

void encode_case(Suite& suite, const GoldenFile& file, const Component& component, const Json::Member& item,
                 std::optional<int64_t> seed) {
  const auto& [name, value] = item;
  const int frames = static_cast<int>(value.at("frames").as_int()), h = static_cast<int>(value.at("height").as_int()),
            w = static_cast<int>(value.at("width").as_int());
  const std::string prefix = name + ".";
  std::vector<float> pixels;
  if (seed) pixels = make_pixels(frames, h, w, *seed);
  if (file.has(prefix + "pixels")) {
    const std::vector<float> stored = file.f32(prefix + "pixels");
    if (seed) suite.exact("encode." + prefix + "pixels", stored == pixels);
    pixels = stored;
  }
  if (pixels.empty()) return suite.fail("encode." + name, "neither a seed nor pixels in the file");
  Stages stages;
  VideoVaeOptions options{.decoder = false, .tiling = tiling_of(value), .observe = recorder(suite.ops(), stages)};
  const std::unique_ptr<VideoVae> vae = load_video_vae(suite.ops(), component, options);
  const std::vector<float> moments = vae->encode_moments(pixels.data(), frames, h, w, Control());
  for (const std::string& tensor : file.names()) {
    if (!tensor.starts_with(prefix)) continue;
    const std::string stage = tensor.substr(prefix.size()), label = "encode." + tensor;
    if (stage == "pixels") continue;
    if (stage == "moments") {
      suite.check(label, moments, file.f32(tensor), kFloat);
      options.encoder_compute = Compute::f16;
      options.observe = {};
      const std::unique_ptr<VideoVae> half = load_video_vae(suite.ops(), component, options);
      suite.check(label + ".f16", half->encode_moments(pixels.data(), frames, h, w, Control()), file.f32(tensor),
                  kHalf);
    } else if (stage == "condition_latent") {
      check_condition(suite, label, *vae, moments, file.f32(tensor));
    } else if (!stages.contains(stage)) {
      suite.fail(label, "no stage of this name");
    } else {
      // Our norms include the activation that follows.
      const bool norm = stage == "norm_out" || stage.ends_with(".norm1") || stage.ends_with(".norm2");
      suite.check(label, stages[stage], norm ? silu_of(file.f32(tensor)) : file.f32(tensor), kFloat);
    }
  }
}

void run_encode(Suite& suite, const Component& component) {
  const GoldenFile file = suite.open("vae_encode.safetensors");
  const std::vector<int64_t> seeds = base_seeds(file);
  size_t index = 0;
  const Json cases = file.json_metadata("cases");
  for (const Json::Member& item : cases.members()) {
    encode_case(suite, file, component, item, index < seeds.size() ? std::optional(seeds[index]) : std::nullopt);
    ++index;
  }
}

// ---- decoder
// ------------------------------------------------------------------------------------------------------------

struct Decoded {
  std::vector<float> sample;
  int frames = 0, height = 0, width = 0;
};

std::vector<float> frames_of(const Decoded& d, const Json& kept) {
  const int64_t area = static_cast<int64_t>(d.height) * d.width;
  std::vector<float> out;
  for (int64_t c = 0; c < 3; ++c) {
    for (const Json& frame : kept.items()) {
      const float* from = d.sample.data() + (c * d.frames + frame.as_int()) * area;
      out.insert(out.end(), from, from + area);
    }
  }
  return out;
}

std::vector<float> picked_of(const Decoded& d, int64_t count) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(d.sample[static_cast<size_t>(static_cast<uint64_t>(i) * 2654435761u % d.sample.size())]);
  }
  return out;
}

// An error of relative L2 e moves the sum by at most e * sqrt(n * sumsq) and the sum of squares by about 2 e * sumsq.
void check_sums(Suite& suite, const std::string& label, const Decoded& d, const Json& value) {
  double sum = 0, squares = 0;
  for (float v : d.sample) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const double want = value.at("sumsq_f64").as_double();
  const double scale = std::sqrt(want * static_cast<double>(d.sample.size()));
  const float got_sums[2] = {static_cast<float>(sum / scale), static_cast<float>(squares / want / 2)};
  const float want_sums[2] = {static_cast<float>(value.at("sum_f64").as_double() / scale), 0.5f};
  suite.check(label + ".sums", got_sums, want_sums, {.max_abs = kFloat.rel_l2});
}

// Frames first.. of one raw tile, as unpatchify leaves them: [3, count, 16h, 16w].
std::vector<float> unpatchified(Suite& suite, const std::vector<float>& rows, int64_t t, int64_t h, int64_t w,
                                int64_t features, int64_t count, const VideoVae& vae) {
  Device& device = suite.ops().device();
  const int64_t p = vae.spatial_ratio();
  const Tensor raw =
      upload_f32(device, rows.data(), {static_cast<int64_t>(rows.size()) / features, features}, DType::f32, "raw tile");
  const Tensor out(device, DType::f32, {3, count, p * h, p * w}, "pixels");
  TileBlend blend;
  blend.tile = raw;
  blend.t = t;
  blend.h = h;
  blend.w = w;
  blend.pt = vae.clip().ratio;
  blend.p = static_cast<int>(p);
  blend.out = out;
  suite.ops().blend_tile(blend);
  suite.ops().sync();
  return download_f32(out);
}

// cos or sin [rows, pairs] as the reference lays them out: twice side by side.
std::vector<float> doubled(const std::vector<float>& table, int64_t pairs) {
  std::vector<float> out;
  for (size_t row = 0; row < table.size() / pairs; ++row) {
    for (int copy = 0; copy < 2; ++copy) {
      out.insert(out.end(), table.begin() + row * pairs, table.begin() + (row + 1) * pairs);
    }
  }
  return out;
}

void check_stage(Suite& suite, const GoldenFile& file, const std::string& tensor, const std::string& stage,
                 const Stages& stages, const std::vector<int64_t>& latent, const VideoVae& vae) {
  const std::string label = "decode." + tensor;
  const std::vector<float> want = file.f32(tensor);
  const std::vector<int64_t>& dims = file.info(tensor).dims;
  if (stage == "rope.0" || stage == "rope.1") {
    const int64_t pairs = dims.back() / 2;
    const int positions = vae.clip().window() * static_cast<int>(latent[2] * latent[3]);
    const RotaryTable table =
        rotary_table(vae.clip().window(), static_cast<int>(latent[2]), static_cast<int>(latent[3]),
                     static_cast<int>(dims[0]) - positions, 100.0, static_cast<int>(pairs / 3));
    return suite.check(label, doubled(stage == "rope.0" ? table.cos : table.sin, pairs), want, kFloat);
  }
  if (stage == "clip") {
    const int64_t features = 3 * vae.clip().ratio * vae.spatial_ratio() * vae.spatial_ratio();
    return suite.check(
        label,
        unpatchified(suite, stages.at("proj_out"), vae.clip().window(), latent[2], latent[3], features, dims[1], vae),
        want, kFloat);
  }
  if (!stages.contains(stage)) return suite.fail(label, "no stage of this name");
  std::vector<float> got = stages.at(stage);
  if (stage == "post_quant_conv") {  // stored channels first; ours are rows
    const int64_t channels = dims[0], positions = static_cast<int64_t>(want.size()) / channels;
    std::vector<float> turned(want.size());
    for (int64_t i = 0; i < channels * positions; ++i) turned[i] = got[i % positions * channels + i / positions];
    got = std::move(turned);
  }
  got.resize(std::min(got.size(), want.size()));  // stored without the suffix rows, or the first rows only
  suite.check(label, got, want, kFloat);
}

void decode_case(Suite& suite, const GoldenFile& file, const Component& component, const Json::Member& item) {
  const auto& [name, value] = item;
  const std::string prefix = name + ".", label = "decode." + name;
  const std::vector<float> latent = file.f32(prefix + "latent");
  const std::vector<int64_t> dims = file.info(prefix + "latent").dims;
  const int t = static_cast<int>(dims[1]), h = static_cast<int>(dims[2]), w = static_cast<int>(dims[3]);
  Stages stages;
  VideoVaeOptions options{.encoder = false, .tiling = tiling_of(value), .observe = recorder(suite.ops(), stages)};
  const std::unique_ptr<VideoVae> vae = load_video_vae(suite.ops(), component, options);
  Decoded d{vae->decode_raw(latent.data(), t, h, w, Control())};
  d.frames = clip_schedule(t, vae->clip()).frames;
  d.height = h * vae->spatial_ratio();
  d.width = w * vae->spatial_ratio();
  const Json& shape = value.at("sample");
  const bool same =
      shape.at(1).as_int() == d.frames && shape.at(2).as_int() == d.height && shape.at(3).as_int() == d.width;
  suite.exact(label + ".shape", same);
  if (!same) return;
  check_sums(suite, label, d, value);
  options.compute = Compute::f16;
  options.observe = {};
  const Decoded half{load_video_vae(suite.ops(), component, options)->decode_raw(latent.data(), t, h, w, Control()),
                     d.frames, d.height, d.width};
  for (const std::string& tensor : file.names()) {
    if (!tensor.starts_with(prefix)) continue;
    const std::string stage = tensor.substr(prefix.size());
    if (stage == "latent") continue;
    const auto select = [&](const Decoded& decoded) {
      if (stage == "sample") return decoded.sample;
      return stage == "sample_frames" ? frames_of(decoded, value.at("kept"))
                                      : picked_of(decoded, file.info(tensor).dims[0]);
    };
    if (stage.starts_with("sample")) {
      suite.check("decode." + tensor, select(d), file.f32(tensor), kFloat);
      suite.check("decode." + tensor + ".f16", select(half), file.f32(tensor), kHalf);
    } else {
      check_stage(suite, file, tensor, stage, stages, dims, *vae);
    }
  }
}

// The original spelling of the same weights must give the same bits.
void spelling_case(Suite& suite, const GoldenFile& file, const Component& component) {
  const std::string folder = "toy_original/video_vae/source";
  if (!suite.exists(folder)) return;
  const Component other = open_component(suite.path(folder));
  const Json cases = file.json_metadata("cases");
  for (const Json::Member& item : cases.members()) {
    const std::vector<int64_t> dims = file.info(item.first + ".latent").dims;
    const std::vector<float> latent = file.f32(item.first + ".latent");
    const VideoVaeOptions options{.encoder = false, .tiling = tiling_of(item.second)};
    const auto decode = [&](const Component& c) {
      return load_video_vae(suite.ops(), c, options)
          ->decode_raw(latent.data(), static_cast<int>(dims[1]), static_cast<int>(dims[2]), static_cast<int>(dims[3]),
                       Control());
    };
    suite.exact("spelling.original." + item.first, decode(component) == decode(other));
    return;  // one case exercises every tensor
  }
}

void run_decode(Suite& suite, const Component& component) {
  const GoldenFile file = suite.open("vae_decode.safetensors");
  const Json cases = file.json_metadata("cases");
  for (const Json::Member& item : cases.members()) decode_case(suite, file, component, item);
  spelling_case(suite, file, component);
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

std::vector<int> ints(const Json& list) {
  std::vector<int> out;
  for (const Json& item : list.items()) out.push_back(static_cast<int>(item.as_int()));
  return out;
}

void run_tiles(Suite& suite) {
  const Json file = suite.json("vae_tiles.json");
  std::vector<std::string> wrong;
  for (const Json& row : file.at("rows").items()) {
    const int length = static_cast<int>(row.at(0).as_int()), tile = static_cast<int>(row.at(1).as_int());
    const TileAxis axis = tile_axis(length, tile, static_cast<int>(row.at(2).as_int()));
    const bool equal =
        axis.starts == ints(row.at(3)) && axis.lengths == ints(row.at(4)) && axis.overlaps == ints(row.at(5));
    suite.exact(strf("tiles.%d_tile%d", length, tile), equal);
  }
  const Json& want = file.at("geometry");
  const ClipGeometry geometry;
  suite.exact("tiles.geometry", want.at("frame_pre_padding").as_int() == geometry.pre_padding() &&
                                    want.at("tokens_chunk_size").as_int() == geometry.tokens() &&
                                    want.at("token_overlap").as_int() == geometry.token_overlap() &&
                                    want.at("frame_overlap").as_int() == geometry.frame_overlap());
}

}  // namespace

void run_video_vae(Suite& suite) {
  if (suite.exists("vae_tiles.json")) run_tiles(suite);
  if (!suite.exists("toy/vae")) return;
  const Component component = open_component(suite.path("toy/vae"));
  if (suite.exists("vae_encode.safetensors")) run_encode(suite, component);
  if (suite.exists("vae_decode.safetensors")) run_decode(suite, component);
}

}  // namespace h3
