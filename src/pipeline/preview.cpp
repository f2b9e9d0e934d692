#include "pipeline/preview.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/knobs.h"
#include "model/vae/video_vae.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

// Of the clips that are fitted: kSide latent positions to an edge.
constexpr int kSide = 4, kLatentFrames = 7, kFrames = 22;
constexpr int kEncodedClips = 4, kDecodedClips = 4;
constexpr int kLongestEdge = 512, kLargestFactor = 16;
constexpr float kMean[3] = {0.485f, 0.456f, 0.406f}, kStd[3] = {0.229f, 0.224f, 0.225f};  // spec vae 8.4

// Latents whose colour varies by clip, by frame and by position, each channel of variance one.
std::vector<float> random_latent(TorchGenerator& generator, int channels) {
  const int64_t cells = int64_t{kSide} * kSide;
  const std::vector<float> clip = generator.randn(channels), frame = generator.randn(channels * kLatentFrames);
  std::vector<float> latent = generator.randn(channels * kLatentFrames * cells);
  for (int c = 0; c < channels; ++c) {
    for (int t = 0; t < kLatentFrames; ++t) {
      for (int64_t i = 0; i < cells; ++i) {
        float& value = latent[static_cast<size_t>((c * kLatentFrames + t) * cells + i)];
        value = 0.6f * clip[static_cast<size_t>(c)] + 0.5f * frame[static_cast<size_t>(c * kLatentFrames + t)] +
                0.62f * value;
      }
    }
  }
  return latent;
}

// A plain ground with two plain rectangles that move: [3, kFrames, edge, edge] in 0..1. Half of the colours are
// corners of the cube, where a map fitted on mild ones would be weakest.
std::vector<float> drawn_clip(TorchGenerator& generator, int edge) {
  constexpr int kShapes = 3;  // the first is the ground
  const std::vector<float> random = generator.randn(kShapes * 8);
  std::vector<float> rgb(static_cast<size_t>(3) * kFrames * edge * edge);
  for (int shape = 0; shape < kShapes; ++shape) {
    const float* const r = random.data() + 8 * shape;
    for (int f = 0; f < kFrames; ++f) {
      const auto place = [&](float start, float speed) {
        const float middle = 0.5f + 0.25f * start + 0.02f * speed * static_cast<float>(f - kFrames / 2);
        return static_cast<int>(middle * static_cast<float>(edge));
      };
      const int x0 = shape == 0 ? 0 : place(r[3], r[5]) - edge / 4, x1 = shape == 0 ? edge : x0 + edge / 2;
      const int y0 = shape == 0 ? 0 : place(r[4], r[6]) - edge / 4, y1 = shape == 0 ? edge : y0 + edge / 2;
      for (int c = 0; c < 3; ++c) {
        const float mild = std::clamp(0.5f + 0.3f * r[c], 0.0f, 1.0f);
        const float value = r[7] > 0 ? (r[c] > 0 ? 1.0f : 0.0f) : mild;
        float* const plane = rgb.data() + (static_cast<size_t>(c) * kFrames + f) * edge * edge;
        for (int y = std::max(y0, 0); y < std::min(y1, edge); ++y) {
          std::fill(plane + y * edge + std::max(x0, 0),
                    plane + y * edge + std::max(std::min(x1, edge), std::max(x0, 0)), value);
        }
      }
    }
  }
  return rgb;
}

// The latent frame that makes output frame f: one frame for the first of each clip of 17, four for the others (vae 5).
int latent_frame_of(int f) { return f / 17 * 5 + (f % 17 + 3) / 4; }

// Sums of the normal equations of rgb ~ weight [latent; 1].
struct Normal {
  explicit Normal(int unknowns)
      : n(unknowns), a(static_cast<size_t>(unknowns * unknowns)), b(static_cast<size_t>(3 * unknowns)) {}
  void add(const std::vector<double>& x, const double* rgb) {
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j)
        a[static_cast<size_t>(i * n + j)] += x[static_cast<size_t>(i)] * x[static_cast<size_t>(j)];
      for (int c = 0; c < 3; ++c) b[static_cast<size_t>(c * n + i)] += rgb[c] * x[static_cast<size_t>(i)];
    }
    for (int c = 0; c < 3; ++c) squares += rgb[c] * rgb[c];
    ++samples;
  }
  // Cholesky; a ridge of a thousandth of the samples keeps channels that never vary out of the way.
  PreviewMap solve() const;

  int n, samples = 0;
  std::vector<double> a, b;
  double squares = 0;
};

PreviewMap Normal::solve() const {
  const auto at = [this](int i, int j) { return static_cast<size_t>(i * n + j); };
  std::vector<double> l = a;
  for (int i = 0; i + 1 < n; ++i) l[at(i, i)] += 1e-3 * samples;
  for (int j = 0; j < n; ++j) {
    for (int k = 0; k < j; ++k) l[at(j, j)] -= l[at(j, k)] * l[at(j, k)];
    l[at(j, j)] = std::sqrt(std::max(l[at(j, j)], 1e-12));
    for (int i = j + 1; i < n; ++i) {
      for (int k = 0; k < j; ++k) l[at(i, j)] -= l[at(i, k)] * l[at(j, k)];
      l[at(i, j)] /= l[at(j, j)];
    }
  }
  PreviewMap map;
  map.channels = n - 1;
  double error = squares;
  for (int c = 0; c < 3; ++c) {
    std::vector<double> x(b.begin() + c * n, b.begin() + (c + 1) * n);
    for (int i = 0; i < n; ++i) {
      for (int k = 0; k < i; ++k) x[static_cast<size_t>(i)] -= l[at(i, k)] * x[static_cast<size_t>(k)];
      x[static_cast<size_t>(i)] /= l[at(i, i)];
    }
    for (int i = n - 1; i >= 0; --i) {
      for (int k = i + 1; k < n; ++k) x[static_cast<size_t>(i)] -= l[at(k, i)] * x[static_cast<size_t>(k)];
      x[static_cast<size_t>(i)] /= l[at(i, i)];
    }
    for (int i = 0; i < n; ++i) {
      const double value = x[static_cast<size_t>(i)];
      map.weight.push_back(static_cast<float>(value));
      error -= 2 * value * b[static_cast<size_t>(c * n + i)];
      for (int k = 0; k < n; ++k) error += value * x[static_cast<size_t>(k)] * a[at(i, k)];
    }
  }
  map.residual = std::sqrt(std::max(error, 0.0) / (3.0 * samples));
  return map;
}

// Sums of the colours of every latent position, over the frames and pixels that belong to it.
class CellColours {
 public:
  explicit CellColours(int ratio) : ratio_(ratio), sums_(kLatentFrames * kCells * 3), counts_(kLatentFrames) {}
  // planar [3, frames, edge, edge]; `first` of the clip.
  void add(const float* rgb, int first, int frames) {
    const int edge = kSide * ratio_;
    for (int f = 0; f < frames; ++f) {
      const int t = latent_frame_of(first + f);
      if (first + f >= kFrames || t >= kLatentFrames) continue;
      ++counts_[static_cast<size_t>(t)];
      for (int c = 0; c < 3; ++c) {
        const float* const plane = rgb + (static_cast<size_t>(c) * frames + f) * edge * edge;
        for (int y = 0; y < edge; ++y) {
          for (int x = 0; x < edge; ++x) sum(t, y / ratio_ * kSide + x / ratio_, c) += plane[y * edge + x];
        }
      }
    }
  }
  void fit(Normal& normal, const std::vector<float>& latent) {
    const int channels = normal.n - 1;
    std::vector<double> x(static_cast<size_t>(normal.n), 1.0);
    for (int t = 0; t < kLatentFrames; ++t) {
      const double pixels = static_cast<double>(counts_[static_cast<size_t>(t)]) * ratio_ * ratio_;
      if (pixels == 0) continue;
      for (int cell = 0; cell < kCells; ++cell) {
        for (int c = 0; c < channels; ++c) {
          x[static_cast<size_t>(c)] = latent[static_cast<size_t>((c * kLatentFrames + t) * kCells + cell)];
        }
        const double rgb[3] = {sum(t, cell, 0) / pixels, sum(t, cell, 1) / pixels, sum(t, cell, 2) / pixels};
        normal.add(x, rgb);
      }
    }
  }

 private:
  static constexpr int kCells = kSide * kSide;
  double& sum(int t, int cell, int c) { return sums_[static_cast<size_t>((t * kCells + cell) * 3 + c)]; }

  int ratio_;
  std::vector<double> sums_;
  std::vector<int> counts_;
};

// Pictures of known colours through the encoder: latents like those of real clips.
void add_encoded(Normal& normal, VideoVae& vae, TorchGenerator& generator, const Control& control) {
  const int edge = kSide * vae.spatial_ratio();
  const size_t plane = static_cast<size_t>(kFrames) * edge * edge;
  std::vector<float> rgb = drawn_clip(generator, edge);
  CellColours colours(vae.spatial_ratio());
  colours.add(rgb.data(), 0, kFrames);
  for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = (rgb[i] - kMean[i / plane]) / kStd[i / plane];
  const std::vector<float> moments = vae.encode_moments(rgb.data(), kFrames, edge, edge, control);
  colours.fit(normal, condition_latent(vae, moments, kLatentFrames * kSide * kSide, Posterior::mean));
}

// Without an encoder: random latents through the decoder. Less like real clips, so less true in colour.
void add_decoded(Normal& normal, VideoVae& vae, TorchGenerator& generator, const Control& control) {
  const std::vector<float> latent = random_latent(generator, normal.n - 1);
  CellColours colours(vae.spatial_ratio());
  vae.decode(latent.data(), kLatentFrames, kSide, kSide, control,
             [&](const FrameRun& run) { colours.add(run.rgb, run.first, run.frames); });
  colours.fit(normal, latent);
}

Json to_json(const PreviewMap& map, const std::string& model_id) {
  Json weight = Json::array();
  for (const float value : map.weight) weight.push(static_cast<double>(value));
  Json json = Json::object({{"model", model_id}, {"channels", map.channels}, {"residual", map.residual}});
  return json.set("weight", std::move(weight));
}

// Empty when there is none or it belongs to something else.
PreviewMap read_cached(const std::string& path, const std::string& model_id, int channels) {
  PreviewMap map;
  if (path.empty() || !std::filesystem::exists(path)) return map;
  try {
    const Json json = Json::parse(read_file(path, 1 << 20), path);
    if (json.at("model").as_string() != model_id || json.at("channels").as_int() != channels) return map;
    for (const Json& value : json.at("weight").items()) map.weight.push_back(static_cast<float>(value.as_double()));
    map.residual = json.at("residual").as_double();
  } catch (const Error&) {
    return {};
  }
  if (static_cast<int>(map.weight.size()) != 3 * (channels + 1)) return {};
  map.channels = channels;
  return map;
}

}  // namespace

PreviewMap fit_preview(VideoVae& vae, const Control& control) {
  Normal normal(static_cast<int>(vae.latents_mean().size()) + 1);
  TorchGenerator generator(1);
  const int clips = vae.has_encoder() ? kEncodedClips : kDecodedClips;
  for (int clip = 0; clip < clips; ++clip) {
    control.progress("fit preview", clip, clips);
    (vae.has_encoder() ? add_encoded : add_decoded)(normal, vae, generator, control);
  }
  control.progress("fit preview", clips, clips);
  return normal.solve();
}

PreviewMap preview_map(const std::string& model_id, int channels, const std::function<PreviewMap()>& fit) {
  const std::string folder = cache_folder();
  const uint64_t key = fnv1a64(std::as_bytes(std::span(model_id)));
  const std::string path =
      folder.empty() ? "" : folder + strf("/preview-%016llx.json", static_cast<unsigned long long>(key));
  PreviewMap map = read_cached(path, model_id, channels);
  if (!map.weight.empty()) return map;
  map = fit();
  if (path.empty()) return map;
  try {
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    AtomicFile file(path);
    const std::string text = to_json(map, model_id).dump() + "\n";
    file.write(text.data(), text.size());
    file.commit();
  } catch (const Error&) {
    // Without a cache the next run fits again.
  }
  return map;
}

Image preview_picture(const PreviewMap& map, const float* latent, int frames, int height, int width, int frame) {
  H3_ASSERT(frame >= 0 && frame < frames && !map.weight.empty());
  Image small;
  small.width = width;
  small.height = height;
  const int64_t area = int64_t{height} * width;
  small.rgb.resize(static_cast<size_t>(3 * area));
  for (int64_t i = 0; i < area; ++i) {
    for (int c = 0; c < 3; ++c) {
      const float* const row = map.weight.data() + c * (map.channels + 1);
      float value = row[map.channels];
      for (int k = 0; k < map.channels; ++k) value += row[k] * latent[(int64_t{k} * frames + frame) * area + i];
      // Written so that a NaN becomes black.
      const float kept = value > 0 ? std::min(value, 1.0f) : 0.0f;
      small.rgb[static_cast<size_t>(3 * i + c)] = static_cast<uint8_t>(std::lround(kept * 255));
    }
  }
  const int factor = std::clamp(kLongestEdge / std::max(width, height), 1, kLargestFactor);
  return factor == 1 ? small : resize_lanczos(small, width * factor, height * factor);
}

void write_preview(const std::string& path, const Image& picture) { write_png(path, picture); }

}  // namespace h3
