#include "pipeline/references.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "base/error.h"
#include "base/hash.h"
#include "model/dit/layout.h"
#include "model/vae/audio_vae.h"

namespace h3 {
namespace {

constexpr int kStep = 32;              // every side is a multiple of it
constexpr int kLeastFrames = 13;       // the conditioner takes two frames of a clip, half a second apart
constexpr double kSecondsSlack = 0.1;  // containers round their lengths; 362 frames are 15.08 s

std::string size_text(int width, int height) { return strf("%dx%d", width, height); }

std::string seconds_text(double seconds) { return strf("%.2f s", seconds); }

class Loader {
 public:
  Loader(const Request& request, const ModelFacts& facts, const ReferenceTarget& target,
         std::vector<std::string>& warnings)
      : request_(request), facts_(facts), limits_(facts.references), target_(target), warnings_(warnings) {}

  std::vector<ReferenceInput> run() {
    std::vector<ReferenceInput> inputs;
    for (const Reference& reference : request_.references) {
      ReferenceInput input;
      field_ = strf("references[%zu]", inputs.size());
      input.kind = reference.kind;
      input.path = reference.path.empty() ? field_ : reference.path;
      input.name = reference.name.empty() ? input.path : reference.name;
      name_ = input.name.c_str();
      std::unique_lock<std::mutex> turn;
      if (request_.decoding != nullptr) turn = std::unique_lock(*request_.decoding);
      switch (reference.kind) {
        case Reference::Kind::image: load_image(reference, input); break;
        case Reference::Kind::video: load_video(reference, input); break;
        case Reference::Kind::audio: load_sound(reference, input); break;
      }
      inputs.push_back(std::move(input));
    }
    return inputs;
  }

 private:
  void load_image(const Reference& reference, ReferenceInput& input);
  void load_video(const Reference& reference, ReferenceInput& input);
  void load_sound(const Reference& reference, ReferenceInput& input);
  void read_frames(const Reference& reference, ReferenceInput& input);
  void resample(const std::function<bool(Image&, double&)>& next, double fps, ReferenceInput& input);
  void take_sound(const std::string& name, const Sound& sound, ReferenceInput& input);
  Canvas image_canvas(int width, int height) const;
  void check_size(int width, int height, const char* what) const;
  void check_seconds(double seconds, double& total, const char* what) const;
  // Media are read by their paths; users know them by their names.
  std::string named(std::string text, const Reference& reference) const {
    for (const auto& [path, name] :
         {std::pair(&reference.path, &reference.name), std::pair(&reference.sound, &reference.sound_name)}) {
      const size_t at = path->empty() || name->empty() ? std::string::npos : text.find(*path);
      if (at != std::string::npos) text.replace(at, path->size(), *name);
    }
    return text;
  }
  // What the media library says, with the field in front.
  template <typename Read>
  auto read(const Reference& reference, Read&& read) const {
    try {
      return read();
    } catch (const Error& error) {
      throw Error(error.code(), field_ + ": " + named(error.what(), reference));
    }
  }
  void warn(const Reference& reference, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) warnings_.push_back("references: " + named(line, reference));
  }
  std::string next_tag(const char* kind, int& count) { return strf("<%s %d>", kind, ++count); }

  const Request& request_;
  const ModelFacts& facts_;
  const ReferenceLimits& limits_;
  const ReferenceTarget& target_;
  std::vector<std::string>& warnings_;
  std::string field_;      // "references[0]"
  const char* name_ = "";  // of the reference that is read
  int pictures_ = 0, videos_ = 0, sounds_ = 0;
  double video_seconds_ = 0, sound_seconds_ = 0;
};

void Loader::check_size(int width, int height, const char* what) const {
  if (std::min(width, height) < limits_.least_side || std::max(width, height) > limits_.most_side) {
    fail(Code::usage, "%s: %s is %s, give %s of at least %d and at most %d pixels each way, scale it first",
         field_.c_str(), name_, size_text(width, height).c_str(), what, limits_.least_side, limits_.most_side);
  }
  if (width > 4 * height || height > 4 * width) {
    fail(Code::usage, "%s: %s is %s, give %s between 1:4 and 4:1, cut it first", field_.c_str(), name_,
         size_text(width, height).c_str(), what);
  }
}

void Loader::check_seconds(double seconds, double& total, const char* what) const {
  if (seconds < limits_.least_seconds - kSecondsSlack || seconds > limits_.most_seconds + kSecondsSlack) {
    fail(Code::usage, "%s: %s has %s, give %s of %g to %g seconds, %s", field_.c_str(), name_,
         seconds_text(seconds).c_str(), what, limits_.least_seconds, limits_.most_seconds,
         seconds > limits_.most_seconds ? "cut it first" : "use a longer one");
  }
  total += seconds;
  if (total > limits_.most_seconds + kSecondsSlack) {
    fail(Code::usage, "%s: with %s there are %s of %s, at most %g seconds together are allowed, cut one",
         field_.c_str(), name_, seconds_text(total).c_str(), what, limits_.most_seconds);
  }
}

// Each side on its own, half to even, as the reference rounds.
Canvas Loader::image_canvas(int width, int height) const {
  double scale = static_cast<double>(limits_.image_short_edge) / std::min(width, height);
  if (target_.image_size == "match") {
    scale = std::sqrt(static_cast<double>(target_.width) * target_.height / (static_cast<double>(width) * height));
  }
  if (target_.image_size != "official") scale = std::min(scale, 1.0);
  const auto snap = [&](int side) {
    return static_cast<int>(std::max<int64_t>(kStep, round_half_even(side * scale / kStep) * kStep));
  };
  return {snap(width), snap(height)};
}

void Loader::load_image(const Reference& reference, ReferenceInput& input) {
  Image picture = reference.picture ? *reference.picture : read(reference, [&] { return read_image(reference.path); });
  warn(reference, picture.warnings);
  check_size(picture.width, picture.height, "a picture");
  const Canvas canvas = image_canvas(picture.width, picture.height);
  input.tag = next_tag("Picture", pictures_);
  input.width = canvas.width;
  input.height = canvas.height;
  input.description = size_text(picture.width, picture.height) + " -> " + size_text(canvas.width, canvas.height);
  if (request_.measure_only) {
    picture.rgb.clear();
  } else if (picture.width != canvas.width || picture.height != canvas.height) {
    picture = resize_lanczos(picture, canvas.width, canvas.height);
  }
  input.frames.push_back(std::move(picture.rgb));
  input.encoded_frames = 1;
}

// Every source frame is held from its slot of the 24 fps clock to the next one's; only frames that are shown are
// scaled.
void Loader::resample(const std::function<bool(Image&, double&)>& next, double fps, ReferenceInput& input) {
  const size_t most = static_cast<size_t>(target_.frames);
  Image held, coming;
  double time = 0, last_time = 0;
  int64_t index = 0;
  const auto show_until = [&](int64_t slot) {
    const size_t end = std::min(most, static_cast<size_t>(std::max<int64_t>(slot, 0)));
    if (index == 0 || input.frames.size() >= end) return;
    if (request_.measure_only) {
      held.rgb.clear();
    } else if (held.width != input.width || held.height != input.height) {
      held = resize_lanczos(held, input.width, input.height);
    }
    while (input.frames.size() < end) input.frames.push_back(held.rgb);
  };
  while (input.frames.size() < most && next(coming, time)) {
    show_until(frame_slot(index, time, fps));
    std::swap(held, coming);
    last_time = time;
    ++index;
  }
  show_until(frame_slot(index, last_time + 1 / fps, fps));
}

void Loader::read_frames(const Reference& reference, ReferenceInput& input) {
  std::unique_ptr<ClipReader> reader;
  ClipInfo info;
  if (reference.clip) {
    const ClipData& clip = *reference.clip;
    info.width = clip.width;
    info.height = clip.height;
    info.fps = clip.fps;
    info.seconds =
        clip.times.empty() ? static_cast<double>(clip.frames.size()) / clip.fps : clip.times.back() + 1 / clip.fps;
  } else {
    reader = read(reference, [&] { return open_clip_reader(reference.path); });
    info = reader->info();
  }
  if (info.width == 0) fail(Code::usage, "%s: %s has no pictures, give it as a sound (audio)", field_.c_str(), name_);
  check_size(info.width, info.height, "a clip");
  if (!(info.fps > 0)) fail(Code::data, "%s: %s says %g frames per second", field_.c_str(), name_, info.fps);
  const Canvas canvas = canvas_for_aspect(info.width, info.height, limits_.video_short_edge, facts_.max_pixels);
  input.width = canvas.width;
  input.height = canvas.height;
  size_t shown = 0;
  resample(
      [&](Image& frame, double& time) {
        if (reader) return read(reference, [&] { return reader->next(frame, time); });
        const ClipData& clip = *reference.clip;
        if (shown == clip.frames.size()) return false;
        frame.width = clip.width;
        frame.height = clip.height;
        frame.rgb = clip.frames[shown];
        time = shown < clip.times.size() ? clip.times[shown] : static_cast<double>(shown) / clip.fps;
        ++shown;
        return true;
      },
      info.fps, input);
  if (reader) warn(reference, reader->warnings());
  const int frames = static_cast<int>(input.frames.size());
  if (frames < kLeastFrames && target_.frames < kLeastFrames) {
    fail(Code::usage, "frames: %d leaves too little of the reference clip %s, render at least 22", target_.frames,
         name_);
  }
  if (frames < kLeastFrames) {
    fail(Code::usage,
         "%s: %s has %d frames at 24 per second, a clip needs at least %d (%.2f s); give one of its pictures as "
         "an image",
         field_.c_str(), name_, frames, kLeastFrames, static_cast<double>(kLeastFrames) / kFramesPerSecond);
  }
  const double seconds = info.seconds > 0 ? info.seconds : static_cast<double>(frames) / kFramesPerSecond;
  check_seconds(seconds, video_seconds_, "clips");
  input.description = strf("%s of %s at %.4g fps -> %d frames of %s", seconds_text(seconds).c_str(),
                           size_text(info.width, info.height).c_str(), info.fps, frames,
                           size_text(canvas.width, canvas.height).c_str());
}

void Loader::load_video(const Reference& reference, ReferenceInput& input) {
  read_frames(reference, input);
  const int frames = static_cast<int>(input.frames.size());
  input.encoded_frames = std::min(frames, std::max(1, (frames - 5) / 17) * 17 + 5);
  if (!reference.silent && !request_.ref_silent.value_or(false)) {
    Sound sound;
    if (reference.clip) {
      const ClipData& clip = *reference.clip;
      const int64_t count = clip.channels > 0 ? static_cast<int64_t>(clip.samples.size()) / clip.channels : 0;
      sound = {clip.sample_rate, clip.channels, count, clip.samples, {}};
    } else {
      const std::string& file = reference.sound.empty() ? reference.path : reference.sound;
      sound = read(reference, [&] { return read_sound(file, target_.frames / 24.0 + 1); });
      if (sound.count == 0 && !reference.sound.empty()) {
        fail(Code::usage, "%s: %s has no sound, drop it or choose another file", field_.c_str(),
             sound_called(reference).c_str());
      }
    }
    warn(reference, sound.warnings);
    if (sound.count > 0) {
      take_sound(reference.sound.empty() ? input.name : sound_called(reference), sound, input);
    }
  }
  input.tag = next_tag("Video", videos_);
}

void Loader::load_sound(const Reference& reference, ReferenceInput& input) {
  Sound sound;
  if (reference.clip) {
    const ClipData& clip = *reference.clip;
    const int64_t count = clip.channels > 0 ? static_cast<int64_t>(clip.samples.size()) / clip.channels : 0;
    sound = {clip.sample_rate, clip.channels, count, clip.samples, {}};
  } else {
    sound = read(reference, [&] { return read_sound(reference.path, limits_.most_seconds + 1); });
  }
  warn(reference, sound.warnings);
  if (sound.count == 0 || sound.sample_rate < 1) {
    fail(Code::usage, "%s: %s has no sound, give it as a video or drop it", field_.c_str(), name_);
  }
  check_seconds(static_cast<double>(sound.count) / sound.sample_rate, sound_seconds_, "sounds");
  take_sound(input.name, sound, input);
}

void Loader::take_sound(const std::string& name, const Sound& sound, ReferenceInput& input) {
  if (!facts_.audio_encoder) {
    fail(Code::usage,
         "%s: %s has sound, but the files have no audio encoder (audio VAE with mean_proj), add it or leave "
         "the sound out (silent)",
         field_.c_str(), name.c_str());
  }
  if (sound.channels > 2) {
    fail(Code::usage, "%s: the sound of %s has %d channels, give 1 or 2, mix it down first", field_.c_str(),
         name.c_str(), sound.channels);
  }
  input.sound_name = name;
  input.sound = prepare_sound(sound.samples.data(), sound.channels, sound.count, sound.sample_rate, target_.frames);
  if (input.sound.empty()) return;
  input.sound_tag = next_tag("Audio", sounds_);
  input.sound_description = strf("%s at %d Hz %s -> %s at %d Hz stereo",
                                 seconds_text(static_cast<double>(sound.count) / sound.sample_rate).c_str(),
                                 sound.sample_rate, sound.channels == 1 ? "mono" : "stereo",
                                 seconds_text(static_cast<double>(input.samples()) / kSampleRate).c_str(), kSampleRate);
}

// "<Picture 12>" at `at`, in any case and with any of the words that people write for it.
struct FoundTag {
  size_t length = 0;  // 0 = none
  char kind = 0;      // P, V, A
  int number = 0;
  bool exact = false;
};

FoundTag tag_at(const std::string& text, size_t at) {
  struct Word {
    const char* word;
    char kind;
  };
  constexpr Word kWords[] = {{"picture", 'P'}, {"image", 'P'}, {"video", 'V'}, {"audio", 'A'}, {"sound", 'A'}};
  if (text[at] != '<') return {};
  size_t end = at + 1;
  std::string word;
  for (; end < text.size() && std::isalpha(static_cast<unsigned char>(text[end])); ++end) {
    word += static_cast<char>(std::tolower(static_cast<unsigned char>(text[end])));
  }
  while (end < text.size() && (text[end] == ' ' || text[end] == '_')) ++end;
  const size_t digits = end;
  while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
  if (end == digits || end - digits > 4 || end >= text.size() || text[end] != '>') return {};
  for (const Word& known : kWords) {
    if (word != known.word) continue;
    FoundTag tag{end + 1 - at, known.kind, std::atoi(text.c_str() + digits), false};
    const char* const name = known.kind == 'P' ? "Picture" : known.kind == 'V' ? "Video" : "Audio";
    tag.exact = text.compare(at, tag.length, strf("<%s %d>", name, tag.number)) == 0;
    return tag;
  }
  return {};
}

}  // namespace

const std::string& called(const Reference& reference) {
  return reference.name.empty() ? reference.path : reference.name;
}

const std::string& sound_called(const Reference& reference) {
  return reference.sound_name.empty() ? reference.sound : reference.sound_name;
}

void check_reference_list(const std::vector<Reference>& references, const ReferenceLimits& limits) {
  int counts[3] = {};
  for (const Reference& reference : references) {
    ++counts[static_cast<int>(reference.kind)];
    const bool video = reference.kind == Reference::Kind::video;
    if (reference.path.empty() && !reference.picture && !reference.clip) {
      fail(Code::usage, "references: one %s has no path, give its file", name_of(reference.kind));
    }
    if (!video && (reference.silent || !reference.sound.empty())) {
      fail(Code::usage, "references: %s is of type %s, only a video can be silent or have another sound",
           called(reference).c_str(), name_of(reference.kind));
    }
    if (reference.silent && !reference.sound.empty()) {
      fail(Code::usage, "references: %s is silent and has the sound %s, drop one of them", called(reference).c_str(),
           sound_called(reference).c_str());
    }
  }
  const auto at_most = [](const char* what, size_t count, int most) {
    if (count <= static_cast<size_t>(most)) return;
    fail(Code::usage, "references: %zu %s are given, at most %d are allowed, drop some", count, what, most);
  };
  at_most("images", static_cast<size_t>(counts[0]), limits.images);
  at_most("videos", static_cast<size_t>(counts[1]), limits.videos);
  at_most("sounds", static_cast<size_t>(counts[2]), limits.sounds);
  at_most("references", references.size(), limits.total);
  if (counts[2] > 0 && counts[0] + counts[1] == 0) {
    fail(Code::usage, "references: a sound cannot stand alone, give an image or a video with it");
  }
}

std::vector<ReferenceInput> load_references(const Request& request, const ModelFacts& facts,
                                            const ReferenceTarget& target, std::vector<std::string>& warnings) {
  return Loader(request, facts, target, warnings).run();
}

uint64_t hash_of(const ReferenceInput& reference) {
  const int size[2] = {reference.width, reference.height};
  uint64_t hash = fnv1a64(std::as_bytes(std::span(size)));
  for (const std::vector<uint8_t>& frame : reference.frames) hash = fnv1a64(std::as_bytes(std::span(frame)), hash);
  return fnv1a64(std::as_bytes(std::span(reference.sound)), hash);
}

std::vector<std::string> unknown_tags(const std::string& prompt, const TagCounts& counts) {
  std::vector<std::string> doubts;
  for (size_t at = 0; at < prompt.size(); ++at) {
    const FoundTag tag = tag_at(prompt, at);
    if (tag.length == 0) continue;
    const std::string text = prompt.substr(at, tag.length);
    const char* const name = tag.kind == 'P' ? "Picture" : tag.kind == 'V' ? "Video" : "Audio";
    const int most = tag.kind == 'P' ? counts.pictures : tag.kind == 'V' ? counts.videos : counts.sounds;
    std::string doubt;
    if (tag.number < 1 || tag.number > most) {
      doubt = most == 0 ? strf("prompt: %s names nothing, there is no <%s 1>", text.c_str(), name)
                        : strf("prompt: %s names nothing, the last one is <%s %d>", text.c_str(), name, most);
    } else if (!tag.exact) {
      doubt = strf("prompt: %s is not a tag, write <%s %d>", text.c_str(), name, tag.number);
    }
    if (!doubt.empty() && std::find(doubts.begin(), doubts.end(), doubt) == doubts.end()) doubts.push_back(doubt);
    at += tag.length - 1;
  }
  return doubts;
}

std::vector<std::string> unnamed_references(const std::string& prompt, const std::vector<ReferenceInput>& references) {
  std::vector<std::string> doubts;
  for (const ReferenceInput& reference : references) {
    const std::string& tag = reference.tag.empty() ? reference.sound_tag : reference.tag;
    if (tag.empty() || prompt.find(tag) != std::string::npos) continue;
    doubts.push_back(
        strf("prompt: it does not mention %s (%s), say what it is for", tag.c_str(), reference.name.c_str()));
  }
  return doubts;
}

std::vector<std::string> reference_table(const Resolved& resolved) {
  std::vector<std::string> lines;
  for (const ReferenceInput& reference : resolved.references) {
    if (!reference.sound_tag.empty()) {
      lines.push_back(strf("%s = %s%s (%s)", reference.sound_tag.c_str(), reference.tag.empty() ? "" : "sound of ",
                           reference.sound_name.c_str(), reference.sound_description.c_str()));
    }
    if (!reference.tag.empty()) {
      lines.push_back(
          strf("%s = %s (%s)", reference.tag.c_str(), reference.name.c_str(), reference.description.c_str()));
    }
  }
  return lines;
}

}  // namespace h3
