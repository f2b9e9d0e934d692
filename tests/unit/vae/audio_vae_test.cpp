#include "model/vae/audio_vae.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backends/list.h"
#include "base/compare.h"
#include "base/context.h"
#include "model/vae/audio_encoder.h"
#include "model/vae/audio_weights.h"
#include "sampling/rng.h"
#include "tests/unit/vae/tiny_video_vae.h"

namespace h3 {
namespace {

using Map = TinyVideoVae::Map;

struct Bench {
  ThreadPool pool;
  Log log;
  Context context{pool, log};
  std::unique_ptr<Ops> ops;
  explicit Bench(int threads = 2, const char* backend = "ref") : pool(threads), ops(make_backend(backend, context)) {}
};

// Every structure of the release at a fraction of its width; the head dimension is the release's 256.
AudioVaeConfig tiny_config() {
  AudioVaeConfig config;
  config.latent = 8;
  config.latent_dim = 512;
  config.decoder_dim = 128;
  config.encoder_dim = 4;
  config.heads = 2;
  return config;
}

std::vector<float> noise(int64_t n, uint64_t seed = 7) { return TorchGenerator(seed).randn(n); }

// Random weights from the table itself, weight norm spelled g and v with g unlike ||v||.
Map tiny_tensors(const AudioVaeConfig& config) {
  Map tensors;
  uint64_t seed = 0;
  for (const AudioRow& row : audio_vae_rows(config)) {
    const int64_t n = std::accumulate(row.dims.begin(), row.dims.end(), int64_t{1}, std::multiplies<>());
    std::vector<float> values = noise(n, ++seed);
    const bool norm = row.name.find("norm") != std::string::npos && row.name.ends_with(".weight");
    const bool filter = row.name.ends_with("filter");
    const double fan = static_cast<double>(n) / static_cast<double>(row.dims[0]);
    for (float& v : values) {
      if (row.name.ends_with("alpha") || row.name.ends_with("beta")) {
        v = 0.3f + 0.05f * v;
      } else if (norm) {
        v = 1 + 0.1f * v;
      } else if (filter) {
        v = 0.08f + 0.05f * v;
      } else if (row.name.ends_with("bias")) {
        v *= 0.1f;
      } else {
        v *= static_cast<float>(1 / std::sqrt(fan));
      }
    }
    if (!row.weight_norm) {
      tensors[row.name] = {row.dims, std::move(values)};
      continue;
    }
    std::vector<float> magnitude = noise(row.dims[0], seed + 5000);
    for (float& g : magnitude) g = 0.8f + 0.1f * g;
    tensors[row.name + ".weight_v"] = {row.dims, std::move(values)};
    tensors[row.name + ".weight_g"] = {{row.dims[0], 1, 1}, std::move(magnitude)};
  }
  return tensors;
}

Component component_of(Map tensors) {
  Component component;
  component.role = Role::audio_vae;
  component.origin = "tiny.safetensors";
  component.source = std::make_shared<MapSource>(std::move(tensors));
  component.config = Json::parse(
      R"({"num_attention_heads": 2, "latents_mean": [0.5, -0.25, 0.125, 1, 0, 0.1, -1, 2],
          "latents_std": [1.5, 0.75, 1, 2, 1, 1, 0.5, 3]})",
      "config");
  return component;
}

Component tiny() { return component_of(tiny_tensors(tiny_config())); }

// The same weights with ".weight_g" and ".weight_v" renamed, or folded when `direction` is empty.
Map respelled(const Map& tensors, const std::string& magnitude, const std::string& direction) {
  Map out;
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with(".weight_g")) {
      if (!direction.empty()) out[name.substr(0, name.size() - 9) + magnitude] = tensor;
    } else if (name.ends_with(".weight_v")) {
      const std::string module = name.substr(0, name.size() - 9);
      if (!direction.empty()) {
        out[module + direction] = tensor;
      } else {
        out[module + ".weight"] = {tensor.first,
                                   fold_weight_norm(tensor.second, tensors.at(module + ".weight_g").second)};
      }
    } else {
      out[name] = tensor;
    }
  }
  return out;
}

std::vector<float> decode(Ops& ops, const Component& component, int latents = 3) {
  const std::vector<float> rows = noise(2 * latents * 8);
  return load_audio_vae(ops, component)->decode(rows.data(), latents, Control());
}

std::vector<float> encode(Ops& ops, const Component& component, int64_t samples = 2000) {
  const std::vector<float> sound = noise(2 * samples);
  return load_audio_vae(ops, component)->encode(sound.data(), samples, Control());
}

std::string refusal(Ops& ops, Map tensors) {
  try {
    load_audio_vae(ops, component_of(std::move(tensors)));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::data);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(AudioVae, TheTableIsTheReleasesAndCompleteToTheParameter) {
  int64_t tensors = 0, parameters = 0, folded = 0, filters = 0;
  for (const AudioRow& row : audio_vae_rows(AudioVaeConfig())) {
    const int64_t n = std::accumulate(row.dims.begin(), row.dims.end(), int64_t{1}, std::multiplies<>());
    filters += row.name.ends_with("filter");
    tensors += row.weight_norm ? 2 : 1;
    parameters += n + (row.weight_norm ? row.dims[0] : 0);
    folded += n;
  }
  EXPECT_EQ(tensors, 1087);  // spec vae 2.2
  EXPECT_EQ(filters, 254);
  EXPECT_EQ(parameters, 151326585);  // spec vae 1
  // 605 306 340 and 605 149 024 bytes differ by the magnitudes of weight norm.
  EXPECT_EQ(4 * (parameters - folded), 605306340 - 605149024);
}

TEST(AudioVae, EverySpellingGivesTheSameBits) {
  Bench bench;
  const Map tensors = tiny_tensors(tiny_config());
  const Map folded = respelled(tensors, "", "");
  const Map parametrized =
      respelled(tensors, ".parametrizations.weight.original0", ".parametrizations.weight.original1");
  EXPECT_LT(folded.size(), tensors.size());
  const std::vector<float> sound = decode(*bench.ops, component_of(tensors)),
                           rows = encode(*bench.ops, component_of(tensors));
  for (const Map& other : {folded, parametrized}) {
    EXPECT_EQ(decode(*bench.ops, component_of(other)), sound);
    EXPECT_EQ(encode(*bench.ops, component_of(other)), rows);
  }
}

TEST(AudioVae, WeightNormIsOverEveryAxisButTheFirst) {
  const std::vector<float> folded = fold_weight_norm({3, 4, 0, 0, 0, 2}, {10, 0.5f});
  const std::vector<float> want = {6, 8, 0, 0, 0, 0.5f};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_FLOAT_EQ(folded[i], want[i]);
}

TEST(AudioVae, TheDefaultFilterIsTheReferencesDesign) {
  const uint32_t bits[6] = {0x3b04f861, 0x3c19d646, 0xbcd14084, 0xbd6c2a26, 0x3e03a888, 0x3ee2ec65};
  const std::vector<float> filter = default_filter();
  ASSERT_EQ(filter.size(), 12u);
  for (int i = 0; i < 12; ++i) {
    float want;
    std::memcpy(&want, &bits[i < 6 ? i : 11 - i], 4);
    EXPECT_NEAR(filter[i], want, 3e-8) << i;  // in double: up to 2.6e-8 before rounding (spec vae 11)
  }
  // Files without filters get it.
  Bench bench;
  Map without = tiny_tensors(tiny_config()), with = without;
  std::erase_if(without, [](const auto& item) { return item.first.ends_with("filter"); });
  for (auto& [name, tensor] : with) {
    if (name.ends_with("filter")) tensor.second = filter;
  }
  EXPECT_EQ(decode(*bench.ops, component_of(without)), decode(*bench.ops, component_of(with)));
}

TEST(AudioVae, PoolingAndProjectionAreOneMatrix) {
  // 3 bins of 8 features overlap: [0,3), [2,6), [5,8).
  const std::vector<float> projection = noise(9), values = noise(2 * 8, 3);
  const std::vector<float> matrix = pooled_projection(projection, 3, 2, 8);
  const int begin[3] = {0, 2, 5}, end[3] = {3, 6, 8};
  for (int o = 0; o < 3; ++o) {
    double want = 0, got = 0;
    for (int i = 0; i < 3; ++i) {
      double mean = 0;
      for (int d = begin[i]; d < end[i]; ++d) mean += (values[d] + values[8 + d]) / 2 / (end[i] - begin[i]);
      want += projection[o * 3 + i] * mean;
    }
    for (int k = 0; k < 16; ++k) got += matrix[o * 16 + k] * values[k];
    EXPECT_NEAR(got, want, 1e-6);
  }
}

TEST(AudioVae, BackEndsAgreeAndThreadsChangeNothing) {
  Bench bench;
  const Component component = tiny();
  const std::vector<float> sound = decode(*bench.ops, component, 5), rows = encode(*bench.ops, component, 4321);
  EXPECT_EQ(rows.size(), 2u * 6 * 8);
  for (const char* backend : {"ref", "cpu"}) {
    Bench one(1, backend), three(3, backend);
    const std::vector<float> a = decode(*one.ops, component, 5), b = encode(*one.ops, component, 4321);
    EXPECT_EQ(decode(*three.ops, component, 5), a) << backend;
    EXPECT_EQ(encode(*three.ops, component, 4321), b) << backend;
    EXPECT_TRUE(compare_values(a, sound, {.rel_l2 = 1e-5}).passed) << backend;
    EXPECT_TRUE(compare_values(b, rows, {.rel_l2 = 1e-5}).passed) << backend;
  }
}

TEST(AudioVae, SidesAreIndependentAndInOrder) {
  Bench bench;
  const std::unique_ptr<AudioVae> vae = load_audio_vae(*bench.ops, tiny());
  const int n = 4;
  const std::vector<float> rows = noise(2 * n * 8);
  const std::vector<float> both = vae->decode(rows.data(), n, Control());
  ASSERT_EQ(both.size(), 2u * n * 800);
  std::vector<float> swapped(rows.begin() + n * 8, rows.end());
  swapped.insert(swapped.end(), rows.begin(), rows.begin() + n * 8);
  std::vector<float> other = vae->decode(swapped.data(), n, Control());
  std::rotate(other.begin(), other.begin() + n * 800, other.end());
  EXPECT_EQ(other, both);
  // The head is causal: a later sample does not move an earlier latent beyond the convolutions' reach.
  std::vector<float> sound = noise(40 * 800);
  const std::vector<float> before = vae->encode_channel(sound.data(), 40 * 800, Control());
  sound.back() += 1;
  const std::vector<float> after = vae->encode_channel(sound.data(), 40 * 800, Control());
  for (int c = 0; c < 8; ++c) EXPECT_EQ(before[c * 40], after[c * 40]);
  EXPECT_NE(before, after);
}

TEST(AudioVae, ReferenceSoundsArePaddedOnTheRight) {
  Bench bench;
  const std::unique_ptr<AudioVae> vae = load_audio_vae(*bench.ops, tiny());
  std::vector<float> sound = noise(801);
  const std::vector<float> got = vae->encode_channel(sound.data(), 801, Control());
  sound.resize(1600, 0.0f);
  EXPECT_EQ(got, vae->encode_channel(sound.data(), 1600, Control()));
  EXPECT_EQ(got.size(), 2u * 8);
  EXPECT_EQ(vae->encode_channel(sound.data(), 1, Control()).size(), 8u);
}

TEST(AudioVae, HalvesAndOptionalTensors) {
  Bench bench;
  const Map all = tiny_tensors(tiny_config());
  Map half = all;
  std::erase_if(half, [](const auto& item) { return item.first.starts_with("encoder."); });
  const std::unique_ptr<AudioVae> decoder = load_audio_vae(*bench.ops, component_of(half));
  EXPECT_TRUE(decoder->has_decoder());
  EXPECT_FALSE(decoder->has_encoder());
  EXPECT_EQ(decode(*bench.ops, component_of(half)), decode(*bench.ops, component_of(all)));
  Map optional = all;
  optional.erase("logs_proj.weight");
  optional.erase("logs_proj.bias");
  optional.erase("pre_block.attn.zero_k_bias");
  std::vector<float> log_std = {1};
  const std::vector<float> sound = noise(800);
  load_audio_vae(*bench.ops, component_of(optional))->encode_channel(sound.data(), 800, Control(), &log_std);
  EXPECT_TRUE(log_std.empty());
  load_audio_vae(*bench.ops, component_of(all))->encode_channel(sound.data(), 800, Control(), &log_std);
  EXPECT_EQ(log_std.size(), 8u);
}

TEST(AudioVae, StatisticsComeFromTensorsThenConfig) {
  Bench bench;
  Map tensors = tiny_tensors(tiny_config());
  EXPECT_EQ(load_audio_vae(*bench.ops, component_of(tensors))->latents_std()[3], 2);
  tensors["latents_mean"] = {{8}, std::vector<float>(8, 0.25f)};
  tensors["latents_std"] = {{8}, std::vector<float>(8, 4.0f)};
  const std::unique_ptr<AudioVae> vae = load_audio_vae(*bench.ops, component_of(tensors));
  EXPECT_EQ(vae->latents_mean()[3], 0.25f);
  EXPECT_EQ(vae->latents_std()[3], 4);
  tensors["latents_std"].second[2] = 0;
  EXPECT_NE(refusal(*bench.ops, tensors).find("latents_std"), std::string::npos);
}

TEST(AudioVae, RefusalsNameTheTensor) {
  Bench bench;
  const Map all = tiny_tensors(tiny_config());
  Map missing = all;
  missing.erase("decoder.resblocks.4.convs2.1.weight_v");
  missing.erase("pre_block.mlp.w1.bias");
  std::string text = refusal(*bench.ops, missing);
  EXPECT_NE(text.find("decoder.resblocks.4.convs2.1"), std::string::npos) << text;
  EXPECT_NE(text.find("pre_block.mlp.w1.bias"), std::string::npos) << text;
  Map strange = all;
  strange["decoder.surprise"] = {{1}, {0.0f}};
  EXPECT_NE(refusal(*bench.ops, strange).find("decoder.surprise"), std::string::npos);
  Map wrong = all;
  wrong["decoder.ups.2.0.weight_g"] = {{16, 1, 1},
                                       std::vector<float>(16, 1.0f)};  // the output's count, not the input's
  EXPECT_NE(refusal(*bench.ops, wrong).find("decoder.ups.2.0.weight_g"), std::string::npos);
  Map rates = all;
  rates["encoder.block.3.block.4.weight_v"] = {{32, 16, 6}, std::vector<float>(32 * 16 * 6, 0.1f)};
  EXPECT_NE(refusal(*bench.ops, rates).find("800"), std::string::npos);
  const std::vector<float> nan(2 * 8, std::numeric_limits<float>::quiet_NaN());
  EXPECT_THROW(load_audio_vae(*bench.ops, component_of(all))->decode(nan.data(), 1, Control()), Error);
}

TEST(AudioVae, ReportsProgressAndStops) {
  Bench bench;
  const std::unique_ptr<AudioVae> vae = load_audio_vae(*bench.ops, tiny());
  const std::vector<float> rows = noise(2 * 8);
  Control control;
  int64_t calls = 0, last = 0;
  control.on_progress = [&](const Progress& progress) {
    EXPECT_EQ(progress.done, ++calls);
    EXPECT_EQ(progress.total, 2 * 9);
    last = progress.done;
  };
  vae->decode(rows.data(), 1, control);
  EXPECT_EQ(last, 18);
  calls = 0;
  control.on_progress = [&](const Progress&) {
    if (++calls == 5) control.request_stop();
  };
  EXPECT_THROW(vae->decode(rows.data(), 1, control), Error);
  EXPECT_EQ(calls, 5);
}

TEST(AudioVae, ScratchIsWhatWasAnnounced) {
  Bench bench;
  const std::unique_ptr<AudioVae> vae = load_audio_vae(*bench.ops, tiny());
  const int64_t before = bench.ops->device().allocated_bytes();
  const std::vector<float> rows = noise(2 * 3 * 8), sound = noise(4000);
  bench.ops->device().reset_peak();
  vae->decode(rows.data(), 3, Control());
  EXPECT_EQ(bench.ops->device().peak_bytes() - before, vae->decode_bytes(3));
  bench.ops->device().reset_peak();
  vae->encode_channel(sound.data(), 4000, Control());
  EXPECT_EQ(bench.ops->device().peak_bytes() - before, vae->encode_bytes(4000));
}

// ---- resampling -----------------------------------------------------------------------------------------------------

TEST(Resample, LengthsGainAndIdentity) {
  const std::vector<float> sound = noise(1000);
  EXPECT_EQ(resample_audio(sound.data(), 1000, 32000), sound);
  EXPECT_EQ(resample_audio(sound.data(), 1000, 44100).size(), 726u);  // ceil(320 * 1000 / 441)
  EXPECT_EQ(resample_audio(sound.data(), 1, 8000).size(), 4u);
  EXPECT_TRUE(resample_audio(sound.data(), 0, 8000).empty());
  for (int rate : {8000, 11025, 16000, 22050, 44100, 48000, 96000}) {
    const std::vector<float> ones(static_cast<size_t>(rate) / 10, 1.0f);
    const std::vector<float> out = resample_audio(ones.data(), static_cast<int64_t>(ones.size()), rate);
    EXPECT_NEAR(out[out.size() / 2], 1, 2e-3) << rate;  // a constant stays one away from the ends
  }
}

TEST(Resample, ToneKeepsItsPitchAndRatesWithoutACommonFactorAreNoMemoryBomb) {
  const int rate = 44101;
  std::vector<float> tone(44101);
  for (size_t i = 0; i < tone.size(); ++i)
    tone[i] = static_cast<float>(std::sin(2 * 3.14159265358979 * 1000 * i / rate));
  const std::vector<float> out = resample_audio(tone.data(), static_cast<int64_t>(tone.size()), rate);
  ASSERT_EQ(out.size(), 32000u);
  for (size_t i = 2000; i < 30000; i += 7) {
    EXPECT_NEAR(out[i], std::sin(2 * 3.14159265358979 * 1000 * static_cast<double>(i) / 32000), 2e-3);
  }
  EXPECT_THROW(resample_audio(tone.data(), 10, 0), Error);
  EXPECT_THROW(resample_audio(tone.data(), 10, 2000000), Error);
}

TEST(Resample, PreparedSoundIsCutDoubledAndTwoChannels) {
  const std::vector<float> mono = noise(48000);
  const std::vector<float> out = prepare_sound(mono.data(), 1, 48000, 48000, 12);  // half a second of frames
  ASSERT_EQ(out.size(), 2u * 16000);
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 16000, out.begin() + 16000));
  const std::vector<float> stereo = prepare_sound(mono.data(), 2, 24000, 32000, 0);
  EXPECT_TRUE(std::equal(stereo.begin(), stereo.end(), mono.begin(), mono.end()));
  EXPECT_THROW(prepare_sound(mono.data(), 6, 100, 48000, 0), Error);
}

}  // namespace
}  // namespace h3
