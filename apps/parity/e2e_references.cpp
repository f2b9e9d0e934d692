#include "apps/parity/e2e_references.h"

#include "apps/parity/synthetic.h"
#include "base/error.h"
#include "model/text/presentation.h"
#include "pipeline/conditions.h"

namespace h3 {
namespace {

constexpr int kRate = 32000;

Reference image_reference(int width, int height, int seed) {
  Image image;
  image.width = width;
  image.height = height;
  image.rgb = synth_image(width, height, seed);
  Reference reference;
  reference.picture = std::make_shared<Image>(std::move(image));
  return reference;
}

// smooth_image(64, 64, t), t = 0 .. 23; with sound when `samples` is not 0.
Reference video_reference(double fps, int64_t samples) {
  ClipData clip;
  clip.width = clip.height = 64;
  clip.fps = fps;
  for (int t = 0; t < 24; ++t) clip.frames.push_back(smooth_image(64, 64, t));
  if (samples > 0) {
    clip.sample_rate = kRate;
    clip.channels = 2;
    clip.samples = made_wave(samples, 2, 0);
  }
  Reference reference;
  reference.kind = Reference::Kind::video;
  reference.clip = std::make_shared<ClipData>(std::move(clip));
  return reference;
}

Reference audio_reference(int64_t samples, int seed) {
  ClipData clip;
  clip.sample_rate = kRate;
  clip.channels = 1;
  clip.samples = made_wave(samples, 1, seed);
  Reference reference;
  reference.kind = Reference::Kind::audio;
  reference.clip = std::make_shared<ClipData>(std::move(clip));
  return reference;
}

template <typename T>
std::string hash_of_values(const std::vector<T>& values) {
  return hex64(poly64(values.data(), static_cast<int64_t>(values.size()), sizeof(T)));
}

void check_vision(Suite& suite, const std::string& name, const Resolved& resolved, const Json& vision) {
  std::vector<float> values[2];
  std::string grids[2] = {"[", "["};
  for (const PromptMedia& media : prompt_media(resolved)) {
    if (media.kind == PromptMedia::Kind::audio) continue;
    const bool video = media.kind == PromptMedia::Kind::video;
    std::vector<Picture> seen;
    for (const int64_t index : conditioner_frames(static_cast<int64_t>(media.frames.size()))) {
      seen.push_back(media.frames[static_cast<size_t>(index)]);
    }
    const VisionInput input = video ? prepare_video(seen) : prepare_image(seen[0]);
    for (const uint8_t sample : input.patches) values[video].push_back(pixel_value(sample));
    grids[video] += strf("%s[%lld,%lld,%lld]", grids[video].size() > 1 ? "," : "", static_cast<long long>(input.grid_t),
                         static_cast<long long>(input.grid_h), static_cast<long long>(input.grid_w));
  }
  const char* const kPixels[2] = {"pixel_values", "pixel_values_videos"};
  const char* const kGrids[2] = {"image_grid_thw", "video_grid_thw"};
  for (int video = 0; video < 2; ++video) {
    const Json* const want = vision.find(kPixels[video]);
    if (want == nullptr || want->is_null()) continue;
    suite.exact(name + "." + kPixels[video], hash_of_values(values[video]) == want->at("poly64").as_string());
    suite.exact(name + "." + kGrids[video], grids[video] + "]" == vision.at(kGrids[video]).dump(), grids[video]);
  }
}

}  // namespace

std::vector<Reference> listed_references(const std::string& name) {
  if (name == "ref2va") return {image_reference(48, 80, 3), video_reference(24, 16000), audio_reference(20001, 1)};
  if (name == "ref2va_video30") return {video_reference(30, 0), image_reference(64, 64, 4)};
  return {};
}

void check_references(Suite& suite, const std::string& name, const Resolved& resolved, const Json& entry) {
  for (size_t i = 0; i < resolved.references.size(); ++i) {
    const std::string key = strf("reference.%zu", i);
    const Json& want = entry.at(key);
    const ReferenceInput& got = resolved.references[i];
    suite.exact(name + "." + key + ".kind", want.at(size_t{0}).as_string() == name_of(got.kind));
    std::vector<uint8_t> pixels;
    for (const std::vector<uint8_t>& frame : got.frames) pixels.insert(pixels.end(), frame.begin(), frame.end());
    for (size_t part = 1; part < want.size(); ++part) {
      if (want.at(part).is_null()) {
        suite.exact(name + "." + key + ".no_sound", got.sound.empty());
        continue;
      }
      const bool sound = part == 2 || got.kind == Reference::Kind::audio;
      const std::string hash = sound ? hash_of_values(got.sound) : hash_of_values(pixels);
      suite.exact(name + "." + key + (sound ? ".sound" : ".frames"), hash == want.at(part).at("poly64").as_string());
    }
  }
  if (const Json* vision = entry.find("vision")) check_vision(suite, name, resolved, *vision);
}

}  // namespace h3
