// Fields that give references: the official list of conditions, and the lists that other programs send. References are
// numbered in the order in which the body has them, as on the command line.
#include "apps/server/fields.h"
#include "apps/server/http.h"

namespace h3::server {
namespace {

using Kind = Reference::Kind;

void add(Draft& draft, std::optional<Kind> kind, MediaSource media) {
  draft.references.push_back({kind, std::move(media), std::nullopt, false});
}

void add_all(Draft& draft, const Given& given, std::optional<Kind> kind) {
  for_entries(given, [&](const Given& entry) { add(draft, kind, media_source(entry)); });
}

// A clip is a file like any other, or {"video": file, "audio": file, "silent": true} as other programs write it.
void add_clip(Draft& draft, const Given& given) {
  static constexpr const char* kKeys = "video, audio, silent";
  const bool wrapped =
      given.value.is_object() && (given.value.find("video") != nullptr || given.value.find("frames") != nullptr ||
                                  given.value.find("frames_b64") != nullptr);
  if (!wrapped) return add(draft, Kind::video, media_source(given));
  ReferenceSource clip;
  clip.kind = Kind::video;
  for (const auto& [key, value] : given.value.members()) {
    const Given inner{given.name + "." + key, value, nullptr, false};
    if (key == "frames" || key == "frames_b64") {
      refuse_value({inner.name, Json("a list of pictures"), nullptr, false}, "video with the file of the clip");
    }
    if (value.is_null()) continue;
    if (key == "video") {
      clip.media = media_source(inner);
    } else if (key == "audio") {
      clip.sound = media_source(inner);
    } else if (key == "silent") {
      clip.silent = boolean_of(inner);
    } else {
      refuse_unknown(inner, "unknown field of a clip", kKeys);
    }
  }
  if (clip.media.field.empty()) refuse_value(given, "an object with video, the file of the clip");
  draft.references.push_back(std::move(clip));
}

// The clip that a sound belongs to has none yet.
void give_sound(ReferenceSource& clip, const Given& given) {
  if (clip.sound) {
    throw ApiError{400,        "conflict", given.name + ": the clip of " + clip.media.field + " already has a sound",
                   given.name, "",         "one sound for each clip",
                   0};
  }
  clip.sound = media_source(given);
}

MediaSource attached(Draft& draft, const Given& given, const std::string& name) {
  const auto found = draft.attachments.find(name);
  if (found != draft.attachments.end()) {
    draft.attached.insert(name);
    MediaSource source = media_source({given.name, {}, found->second, true});
    if (source.name.empty()) source.name = name;
    return source;
  }
  std::string names;
  for (const auto& [part, file] : draft.attachments) names += (names.empty() ? "" : ", ") + part;
  refuse_value(given, names.empty() ? "the name of a file in a multipart/form-data body" : names,
               "there is no such part");
}

// The words of the official examples. `sound`, `silent` and `name` are ours.
struct Condition {
  std::string type, role, name;
  std::optional<MediaSource> media, sound;
  Json frame_index;
  bool silent = false;
};

MediaSource condition_media(Draft& draft, const Given& given) {
  static constexpr std::string_view kAttachment = "attachment:";
  const std::string text = given.value.is_string() ? given.value.as_string() : "";
  if (text.rfind(kAttachment, 0) == 0) return attached(draft, given, text.substr(kAttachment.size()));
  return media_source(given);
}

std::string word_of(const Given& given) {
  if (!given.value.is_string()) refuse_value(given, "text");
  return given.value.as_string();
}

Condition read_condition(Draft& draft, const Given& given) {
  if (!given.value.is_object()) refuse_value(given, "an object with type, uri and role");
  Condition condition;
  for (const auto& [key, value] : given.value.members()) {
    const Given inner{given.name + "." + key, value, nullptr, false};
    if (value.is_null()) continue;
    if (key == "type") {
      condition.type = word_of(inner);
    } else if (key == "role") {
      condition.role = word_of(inner);
    } else if (key == "name") {
      condition.name = word_of(inner);
    } else if (key == "uri") {
      condition.media = condition_media(draft, inner);
    } else if (key == "sound") {
      condition.sound = condition_media(draft, inner);
    } else if (key == "silent") {
      condition.silent = boolean_of(inner);
    } else if (key == "frame_index") {
      condition.frame_index = value;
    } else if (key == "start_time_seconds") {
      if (number_of(inner, "0") != 0) refuse_value(inner, "0", "files are used from their start, cut it first");
    } else {
      refuse_unknown(inner, "unknown field of a condition",
                     "type, uri, role, name, frame_index, start_time_seconds, sound, silent");
    }
  }
  if (!condition.media) {
    throw ApiError{400,
                   "invalid_value",
                   given.name + ".uri: it is missing",
                   given.name + ".uri",
                   "",
                   "a data URL, base64, attachment:PART, a path below --media-root or an http(s) address",
                   0};
  }
  if (!condition.name.empty()) condition.media->name = condition.name;
  return condition;
}

int64_t keyframe_index(const Given& given, const Json& index) {
  return frame_index({given.name + ".frame_index", index, nullptr, false}, index);
}

[[noreturn]] void refuse_role(const Given& given, const Condition& condition) {
  throw ApiError{400,
                 "unsupported",
                 given.name + ".role: type \"" + condition.type.substr(0, 20) + "\" in the role \"" +
                     condition.role.substr(0, 20) + "\" is not possible",
                 given.name + ".role",
                 condition.role.substr(0, 20),
                 "keyframe (image) or reference (image, video, video_audio, audio)",
                 0};
}

void apply_condition(Draft& draft, const Given& given) {
  Condition condition = read_condition(draft, given);
  const std::string& type = condition.type;
  const bool clip = type == "video" || type == "video_audio";
  if (type != "image" && type != "audio" && !clip) {
    const Json* const value = given.value.find("type");
    refuse_value({given.name + ".type", value != nullptr ? *value : Json(), nullptr, false},
                 "image, video, video_audio, audio");
  }
  if (!clip && (condition.sound || condition.silent)) {
    const char* const key = condition.sound ? ".sound" : ".silent";
    refuse_value({given.name + key, Json(type), nullptr, false}, "type video or video_audio",
                 "only a clip has a sound to choose");
  }
  const bool keyframe =
      condition.role.empty() ? type == "image" && draft.task != "ref2va" : condition.role == "keyframe";
  if (keyframe) {
    if (type != "image") refuse_role(given, condition);
    const bool last =
        condition.frame_index.is_null() ? draft.first.has_value() : keyframe_index(given, condition.frame_index) == -1;
    const Given uri{given.name + ".uri", {}, nullptr, false};
    return place_keyframe(draft, uri, last, *std::move(condition.media));
  }
  if (!condition.role.empty() && condition.role != "reference") refuse_role(given, condition);
  if (!condition.frame_index.is_null()) {
    refuse_value({given.name + ".frame_index", condition.frame_index, nullptr, false}, "left out for a reference",
                 "only keyframes have a place in the clip");
  }
  ReferenceSource source;
  source.kind = type == "image" ? Kind::image : type == "audio" ? Kind::audio : Kind::video;
  source.media = *std::move(condition.media);
  source.sound = std::move(condition.sound);
  // In the official API a video brings its sound only as video_audio.
  source.silent = condition.silent || (type == "video" && !source.sound);
  draft.references.push_back(std::move(source));
}

}  // namespace

void apply_conditions(Draft& draft, const Given& given) {
  if (!given.value.is_array()) refuse_value(given, "a list of objects with type, uri and role");
  for_entries(given, [&](const Given& entry) { apply_condition(draft, entry); });
}

void apply_ref_images(Draft& draft, const Given& given) { add_all(draft, given, Kind::image); }
void apply_ref_audios(Draft& draft, const Given& given) { add_all(draft, given, Kind::audio); }

void apply_ref_videos(Draft& draft, const Given& given) {
  for_entries(given, [&](const Given& entry) { add_clip(draft, entry); });
}

void apply_ref_video_audios(Draft& draft, const Given& given) {
  if (is_nothing(given)) return;
  std::vector<ReferenceSource*> clips;
  for (ReferenceSource& reference : draft.references) {
    if (reference.kind == Kind::video) clips.push_back(&reference);
  }
  const bool list = given.value.is_array();
  if (clips.empty() || (list && given.value.size() > clips.size())) {
    refuse_value(
        given.file ? given
                   : Given{given.name, Json(list ? strf("%zu sounds", given.value.size()) : "a sound"), nullptr, false},
        "after ref_videos, one for each clip or null", strf("%zu clips are given before it", clips.size()));
  }
  if (!list) return give_sound(*clips.back(), given);
  for (size_t i = 0; i < given.value.size(); ++i) {
    const Given entry = entry_of(given, given.value.at(i), i);
    if (!is_nothing(entry)) give_sound(*clips[i], entry);
  }
}

void apply_ref_image_size(Draft& draft, const Given& given) {
  const std::string text = text_of(given);
  if (text.empty()) return;
  set_engine(draft, given, "ref_image_size", text == "diffusers" ? "official" : text);
}

void add_reference(Draft& draft, const Given& given) { add_all(draft, given, std::nullopt); }

}  // namespace h3::server
