#include "model/vae/video_vae.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "backends/list.h"
#include "backends/ref/ref_ops.h"
#include "base/compare.h"
#include "base/context.h"
#include "codec/scalar.h"
#include "sampling/rng.h"
#include "tests/unit/vae/tiny_video_vae.h"

namespace h3 {
namespace {

struct Bench {
  ThreadPool pool;
  Log log;
  Context context{pool, log};
  std::unique_ptr<Ops> ops;
  explicit Bench(int threads = 2, const char* backend = "ref") : pool(threads), ops(make_backend(backend, context)) {}
};

std::vector<float> noise(int64_t n, uint64_t seed = 7) { return TorchGenerator(seed).randn(n); }

// Where bits, memory or allocations are promised, every host back end must keep the promise.
class VideoVaeOn : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Hosts, VideoVaeOn, testing::Values("ref", "cpu"),
                         [](const auto& test) { return std::string(test.param); });

constexpr VideoTiling kSmall{.tile = 48, .overlap = 16};

std::vector<float> decode_raw(Ops& ops, const Component& component, const VideoVaeOptions& options, int t, int h,
                              int w) {
  const std::vector<float> latent = noise(TinyVideoVae::kLatent * t * h * w);
  return load_video_vae(ops, component, options)->decode_raw(latent.data(), t, h, w, Control());
}

TEST_P(VideoVaeOn, BothSpellingsGiveTheSameBits) {
  Bench bench(2, GetParam());
  const TinyVideoVae tiny;
  const TinyVideoVae original = tiny.original();
  ASSERT_NE(tiny.tensors.size(), original.tensors.size());
  const VideoVaeOptions options{.tiling = kSmall};
  EXPECT_EQ(decode_raw(*bench.ops, tiny.component(), options, 7, 4, 5),
            decode_raw(*bench.ops, original.component(), options, 7, 4, 5));
  const std::vector<float> pixels = noise(3 * 17 * 48 * 32);
  const auto encode = [&](const TinyVideoVae& model) {
    return load_video_vae(*bench.ops, model.component(), {})->encode_moments(pixels.data(), 17, 48, 32, Control());
  };
  EXPECT_EQ(encode(tiny), encode(original));
}

TEST_P(VideoVaeOn, NeitherBatchNorThreadsChangeABit) {
  Bench bench(2, GetParam());
  const Component component = TinyVideoVae().component();
  const std::vector<float> want = decode_raw(*bench.ops, component, {.tiling = kSmall}, 12, 7, 8);
  for (int batch : {2, 3, 5, 64}) {
    EXPECT_EQ(decode_raw(*bench.ops, component, {.tiling = kSmall, .tile_batch = batch}, 12, 7, 8), want) << batch;
  }
  for (int threads : {1, 3}) {
    Bench other(threads, GetParam());
    EXPECT_EQ(decode_raw(*other.ops, component, {.tiling = kSmall}, 12, 7, 8), want) << threads;
  }
}

// The biases that linears are made with.
class BiasRecorder : public RefOps {
 public:
  using RefOps::RefOps;
  std::map<std::string, std::vector<float>> biases;  // by label

  std::unique_ptr<Linear> make_linear(LinearSpec spec) override {
    biases[spec.label] = spec.bias;
    return RefOps::make_linear(std::move(spec));
  }
};

// Whatever the blocks multiply in, what stays in f32 keeps its bias; the others' are what their results can hold.
TEST(VideoVae, ABiasIsRoundedForItsOwnMatmul) {
  Bench bench;
  const TinyVideoVae tiny;
  const auto bias = [&](const char* name) { return tiny.tensors.at(std::string(name) + ".bias").second; };
  for (const Compute compute : {Compute::packed, Compute::f16, Compute::bf16, Compute::f32}) {
    BiasRecorder ops(bench.context);
    VideoVaeOptions options{.encoder = false, .tiling = kSmall};
    set_precision(options, compute);
    load_video_vae(ops, tiny.component(), options);
    EXPECT_EQ(ops.biases.at("video_vae.decoder.proj_in"), bias("decoder.proj_in")) << name_of(compute);
    EXPECT_EQ(ops.biases.at("video_vae.decoder.post_quant_conv"), bias("post_quant_conv")) << name_of(compute);
    std::vector<float> want = bias("decoder.transformer_blocks.1.ff.net.2");
    for (float& b : want) {
      if (compute == Compute::packed || compute == Compute::f16) b = f16_to_f32(f32_to_f16(b));
      if (compute == Compute::bf16) b = bf16_to_f32(f32_to_bf16(b));
    }
    EXPECT_EQ(ops.biases.at("video_vae.decoder.blocks.1.w2"), want) << name_of(compute);
  }
}

// Tiles joined by the device op against the host's stitch of the same raw tiles.
TEST(VideoVae, DeviceBlendIsTheStitch) {
  Bench bench;
  std::vector<std::vector<float>> raw;
  VideoVaeOptions options{.tiling = {.tile = 80, .overlap = 16}};
  options.observe = [&](const std::string& stage, const View& value) {
    if (stage == "proj_out") raw.push_back(download_f32(value));
  };
  const int h = 8, w = 7;  // 128 and 112 pixels of 80-pixel tiles
  const std::vector<float> out = decode_raw(*bench.ops, TinyVideoVae().component(), options, 7, h, w);
  const TileAxis ys = tile_axis(h * 16, 80, 16), xs = tile_axis(w * 16, 80, 16);
  ASSERT_EQ(static_cast<int>(raw.size()), ys.count() * xs.count());
  std::vector<std::vector<float>> tiles;
  constexpr int kFrame = 9, kChannel = 1;  // of the output; frame 12 of the clip
  for (const std::vector<float>& rows : raw) {
    std::vector<float>& tile = tiles.emplace_back();
    for (int y = 0; y < 80; ++y) {
      for (int x = 0; x < 80; ++x) {
        const int row = ((kFrame + 3) / 4 * 5 + y / 16) * 5 + x / 16;
        tile.push_back(rows[(row * 3 + kChannel) * 1024 + (kFrame + 3) % 4 * 256 + y % 16 * 16 + x % 16]);
      }
    }
  }
  std::vector<float> want(static_cast<size_t>(h) * 16 * w * 16);
  stitch_tiles(tiles, ys, xs, 1, want.data());
  const auto frame = out.begin() + (kChannel * 22 + kFrame) * static_cast<int64_t>(want.size());
  EXPECT_EQ(std::vector<float>(frame, frame + want.size()), want);
}

// Clips overlap by five frames, cross-faded with weights k / 5; the raw clips come from decodes of single windows.
TEST_P(VideoVaeOn, ClipsAreCrossFaded) {
  Bench bench(2, GetParam());
  const auto vae = load_video_vae(*bench.ops, TinyVideoVae().component(), {});
  const int t = 12, h = 2, w = 2;
  const std::vector<float> latent = noise(TinyVideoVae::kLatent * t * h * w);
  const auto window = [&](int first) {
    std::vector<float> part;
    for (int c = 0; c < TinyVideoVae::kLatent; ++c) {
      const auto from = latent.begin() + (c * t + first) * h * w;
      part.insert(part.end(), from, from + 7 * h * w);
    }
    return vae->decode_raw(part.data(), 7, h, w, Control());
  };
  const std::vector<float> whole = vae->decode_raw(latent.data(), t, h, w, Control());
  const std::vector<float> first = window(0), second = window(5);
  const int64_t area = 32 * 32;
  ASSERT_EQ(static_cast<int64_t>(whole.size()), 3 * 39 * area);
  for (int c = 0; c < 3; ++c) {
    for (int64_t i = 0; i < 39 * area; ++i) {
      const int64_t frame = i / area;
      float want = frame < 22 ? first[c * 22 * area + i] : 0;
      if (frame >= 17) {
        const float now = second[c * 22 * area + i - 17 * area], b = static_cast<float>(frame - 17) / 5.0f;
        want = frame >= 22 ? now : want * (1.0f - b) + now * b;
      }
      ASSERT_EQ(whole[c * 39 * area + i], want) << "channel " << c << " frame " << frame;
    }
  }
}

TEST_P(VideoVaeOn, StreamsFramesInOrderWithConstantMemory) {
  Bench bench(2, GetParam());
  const Component component = TinyVideoVae().component();
  const auto vae = load_video_vae(*bench.ops, component, {.tiling = kSmall});
  const int h = 5, w = 7;
  // The back end's own scratch is made by the first request of a size.
  const std::vector<float> first = noise(TinyVideoVae::kLatent * 7 * h * w);
  vae->decode_raw(first.data(), 7, h, w, Control());
  int64_t peak = 0;
  for (int t : {12, 37, 72}) {
    const std::vector<float> latent = noise(TinyVideoVae::kLatent * t * h * w);
    Device& device = bench.ops->device();
    device.reset_peak();
    const int64_t before = device.allocated_bytes();
    int64_t allocations = -1, next = 0;
    const int total = clip_schedule(t, vae->clip()).frames;
    vae->decode(latent.data(), t, h, w, Control(), [&](const FrameRun& run) {
      EXPECT_EQ(run.first, next);
      EXPECT_EQ(run.height, h * 16);
      EXPECT_EQ(run.width, w * 16);
      next += run.frames;
      if (allocations < 0) allocations = device.allocations();
      EXPECT_EQ(device.allocations(), allocations) << "the loop allocated";
    });
    EXPECT_EQ(next, total);
    const int64_t used = device.peak_bytes() - before;
    EXPECT_EQ(used, vae->decode_bytes(t, h, w));
    if (peak == 0) peak = used;
    EXPECT_EQ(used, peak) << t << " latent frames";
  }
}

TEST(VideoVae, StreamedFramesAreTheRawOnesDenormalised) {
  Bench bench;
  const auto vae = load_video_vae(*bench.ops, TinyVideoVae().component(), {});
  const int t = 9, h = 2, w = 3;
  const std::vector<float> normalised = noise(TinyVideoVae::kLatent * t * h * w);
  std::vector<float> latent = normalised;
  for (size_t i = 0; i < latent.size(); ++i) {
    const size_t c = i / (t * h * w);
    latent[i] = latent[i] * vae->latents_std()[c] + vae->latents_mean()[c];
  }
  const std::vector<float> raw = vae->decode_raw(latent.data(), t, h, w, Control());
  const int64_t area = h * 16 * w * 16, frames = clip_schedule(t, vae->clip()).frames;
  const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
  int64_t clipped = 0;
  vae->decode(normalised.data(), t, h, w, Control(), [&](const FrameRun& run) {
    for (int c = 0; c < 3; ++c) {
      for (int64_t i = 0; i < run.frames * area; ++i) {
        const float linear = raw[(c * frames + run.first) * area + i] * std[c] + mean[c];
        const float want = std::clamp(linear, 0.0f, 1.0f);
        clipped += want != linear;
        ASSERT_EQ(run.rgb[c * run.frames * area + i], want);
      }
    }
  });
  EXPECT_GT(clipped, 0) << "the case must exercise the clamp";
}

TEST(VideoVae, ShortLatentsDecode) {
  Bench bench;
  const auto vae = load_video_vae(*bench.ops, TinyVideoVae().component(), {});
  for (const auto& [t, frames] : {std::pair{1, 1}, {2, 5}, {3, 9}, {8, 26}}) {
    const std::vector<float> latent = noise(TinyVideoVae::kLatent * t * 4);
    EXPECT_EQ(vae->decode_raw(latent.data(), t, 2, 2, Control()).size(), static_cast<size_t>(3 * frames * 32 * 32));
  }
  // A still is the first frame of seven copies of its latent.
  const std::vector<float> one = noise(TinyVideoVae::kLatent * 4);
  std::vector<float> seven;
  for (int c = 0; c < TinyVideoVae::kLatent; ++c) {
    for (int k = 0; k < 7; ++k) seven.insert(seven.end(), one.begin() + c * 4, one.begin() + (c + 1) * 4);
  }
  const std::vector<float> still = vae->decode_raw(one.data(), 1, 2, 2, Control());
  const std::vector<float> clip = vae->decode_raw(seven.data(), 7, 2, 2, Control());
  EXPECT_EQ(std::vector<float>(clip.begin(), clip.begin() + 1024),
            std::vector<float>(still.begin(), still.begin() + 1024));
}

TEST_P(VideoVaeOn, HalfProfilesStayClose) {
  Bench bench(2, GetParam());
  const Component component = TinyVideoVae().component();
  const std::vector<float> want = decode_raw(*bench.ops, component, {}, 7, 3, 4);
  for (const auto& [compute, limit] : {std::pair{Compute::f16, 2e-3}, {Compute::bf16, 2e-2}}) {
    const std::vector<float> got = decode_raw(*bench.ops, component, {.compute = compute}, 7, 3, 4);
    const Comparison comparison = compare_values(got, want, {.rel_l2 = limit});
    EXPECT_TRUE(comparison.passed) << comparison.failure;
    EXPECT_GT(comparison.rel_l2, 1e-6) << "the narrow profile was not used";
  }
}

TEST(VideoVae, StopsWithinATile) {
  Bench bench;
  const auto vae = load_video_vae(*bench.ops, TinyVideoVae().component(), {.tiling = kSmall});
  const std::vector<float> latent = noise(TinyVideoVae::kLatent * 12 * 6 * 6);
  Control control;
  std::vector<int64_t> done;
  control.on_progress = [&](const Progress& progress) {
    EXPECT_EQ(progress.total, 2 * 9);
    done.push_back(progress.done);
    if (progress.done == 3) control.request_stop();
  };
  try {
    vae->decode_raw(latent.data(), 12, 6, 6, control);
    FAIL() << "did not stop";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::cancelled);
  }
  EXPECT_EQ(done, (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(VideoVae, RefusesWhatItCannotDo) {
  Bench bench;
  const auto vae = load_video_vae(*bench.ops, TinyVideoVae().component(), {});
  const std::vector<float> zeros(3 * 64 * 64);
  const auto code_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::make_pair(true, error.code());
    }
    return std::make_pair(false, Code::io);
  };
  const auto usage = std::make_pair(true, Code::usage);
  EXPECT_EQ(code_of([&] { vae->encode_moments(zeros.data(), 1, 40, 64, Control()); }), usage);
  EXPECT_EQ(code_of([&] { vae->encode_moments(zeros.data(), 1, 16, 64, Control()); }), usage);
  EXPECT_EQ(code_of([&] { vae->encode_moments(zeros.data(), 0, 32, 64, Control()); }), usage);
  EXPECT_EQ(code_of([&] { vae->decode_raw(zeros.data(), 7, 0, 2, Control()); }), usage);
  EXPECT_EQ(code_of([&] { load_video_vae(*bench.ops, TinyVideoVae().component(), {.tiling = {250, 64}}); }), usage);
  std::vector<float> latent(TinyVideoVae::kLatent * 7 * 4);
  latent[30] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(code_of([&] { vae->decode(latent.data(), 7, 2, 2, Control(), [](const FrameRun&) {}); }),
            std::make_pair(true, Code::numeric));
}

TEST(VideoVae, HalvesLoadAlone) {
  Bench bench;
  TinyVideoVae decoder, encoder;
  decoder.keep([](const std::string& name) { return name.starts_with("decoder.") || name.starts_with("post_quant"); });
  encoder.keep(
      [](const std::string& name) { return name.starts_with("encoder.") || name.find("quant") != std::string::npos; });
  const auto first = load_video_vae(*bench.ops, decoder.component(), {});
  EXPECT_TRUE(first->has_decoder());
  EXPECT_FALSE(first->has_encoder());
  EXPECT_THROW(first->encode_moments(nullptr, 1, 32, 32, Control()), Error);
  const auto second = load_video_vae(*bench.ops, encoder.component(), {});
  EXPECT_FALSE(second->has_decoder());
  EXPECT_TRUE(second->has_encoder());
  EXPECT_EQ(decode_raw(*bench.ops, decoder.component(), {}, 7, 2, 2),
            decode_raw(*bench.ops, TinyVideoVae().component(), {}, 7, 2, 2));
}

TEST(VideoVae, FoldedStatisticsWin) {
  Bench bench;
  TinyVideoVae tiny;
  tiny.tensors["latents_mean"] = {{4}, {1, 2, 3, 4}};
  tiny.tensors["latents_std"] = {{4}, {5, 6, 7, 8}};
  const auto vae = load_video_vae(*bench.ops, tiny.component(), {});
  EXPECT_EQ(vae->latents_mean(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(vae->latents_std(), (std::vector<float>{5, 6, 7, 8}));
}

TEST(VideoVae, OneErrorNamesEveryWrongTensor) {
  Bench bench;
  TinyVideoVae tiny;
  tiny.tensors.erase("decoder.transformer_blocks.1.attn.to_k.bias");
  tiny.tensors["decoder.transformer_blocks.0.norm1.weight"] = {{5}, std::vector<float>(5)};
  tiny.tensors["encoder.surprise"] = {{1}, {0}};
  try {
    load_video_vae(*bench.ops, tiny.component(), {});
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::data);
    const std::string text = error.what();
    for (const char* name :
         {"transformer_blocks.1.attn.to_k.bias", "transformer_blocks.0.norm1.weight", "encoder.surprise"}) {
      EXPECT_NE(text.find(name), std::string::npos) << name << " not in: " << text;
    }
  }
}

// Causality: the first latent frame of a clip sees its first pixel frame alone, so the two forms of the convolutions
// agree.
TEST(VideoEncoder, PictureIsTheFirstFrameOfAClip) {
  Bench bench;
  const auto vae = load_video_vae(*bench.ops, TinyVideoVae().component(), {.tiling = kSmall});
  const int h = 64, w = 80;
  const std::vector<float> clip = noise(static_cast<int64_t>(3) * 17 * h * w);
  std::vector<float> picture;
  for (int c = 0; c < 3; ++c)
    picture.insert(picture.end(), clip.begin() + c * 17 * h * w, clip.begin() + (c * 17 + 1) * h * w);
  const std::vector<float> video = vae->encode_moments(clip.data(), 17, h, w, Control());
  const std::vector<float> still = vae->encode_moments(picture.data(), 1, h, w, Control());
  const int64_t area = (h / 16) * (w / 16);
  ASSERT_EQ(static_cast<int64_t>(video.size()), 8 * 2 * area);
  ASSERT_EQ(static_cast<int64_t>(still.size()), 8 * area);
  for (int64_t c = 0; c < 8; ++c) {
    for (int64_t i = 0; i < area; ++i) ASSERT_EQ(still[c * area + i], video[c * 2 * area + i]);
  }
}

TEST(VideoEncoder, ClipsAreIndependentAndPaddedWithTheLastFrame) {
  Bench bench;
  const auto vae = load_video_vae(*bench.ops, TinyVideoVae().component(), {});
  const int64_t area = 32 * 32;
  const std::vector<float> video = noise(3 * 20 * area);
  std::vector<float> padded;
  for (int c = 0; c < 3; ++c) {
    for (int t = 17; t < 34; ++t) {
      const auto from = video.begin() + (c * 20 + std::min(t, 19)) * area;
      padded.insert(padded.end(), from, from + area);
    }
  }
  const std::vector<float> whole = vae->encode_moments(video.data(), 20, 32, 32, Control());
  const std::vector<float> second = vae->encode_moments(padded.data(), 17, 32, 32, Control());
  ASSERT_EQ(whole.size(), 8u * 7 * 4);
  for (int64_t c = 0; c < 8; ++c) {
    for (int64_t i = 0; i < 2 * 4; ++i) ASSERT_EQ(whole[(c * 7 + 5) * 4 + i], second[c * 2 * 4 + i]);
  }
}

TEST(VideoPosterior, SampleIsSeededRoundedAndNormalised) {
  Bench bench;
  const auto vae = load_video_vae(*bench.ops, TinyVideoVae().component(), {});
  const int64_t positions = 6, count = 4 * positions;
  std::vector<float> moments = noise(2 * count, 3);
  moments[count] = -100.0f;  // clamped to -30: the sample is the mean
  const std::vector<float> mean = condition_latent(*vae, moments, positions, Posterior::mean);
  const std::vector<float> sample = condition_latent(*vae, moments, positions, Posterior::sample42);
  EXPECT_EQ(sample, condition_latent(*vae, moments, positions, Posterior::sample42)) << "the seed is fixed";
  const std::vector<float> drawn = TorchGenerator(42).randn(count);
  for (int64_t i = 0; i < count; ++i) {
    const float m = vae->latents_mean()[i / positions], s = vae->latents_std()[i / positions];
    EXPECT_EQ(mean[i], (moments[i] - m) / s);
    const float log_variance = std::max(moments[count + i], -30.0f);
    const float z = moments[i] + std::exp(0.5f * log_variance) * drawn[i];
    EXPECT_EQ(sample[i], (f16_to_f32(f32_to_f16(z)) - m) / s);
  }
  EXPECT_NEAR(sample[0], mean[0], 1e-3);
}

}  // namespace
}  // namespace h3
