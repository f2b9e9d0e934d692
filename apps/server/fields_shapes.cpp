// Fields with a shape of their own: canvases, lengths and keyframes.
#include <algorithm>
#include <cmath>

#include "apps/server/fields.h"
#include "apps/server/http.h"
#include "base/error.h"
#include "base/text.h"

namespace h3::server {
namespace {

void set_canvas(Draft& draft, const Given& given, int width, int height) {
  set_engine(draft, given, "width", width);
  set_engine(draft, given, "height", height);
}

std::string leaf_of(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// The first bytes of the pictures that are read, in base64 and plain.
bool starts_like_base64_picture(const std::string& text) {
  for (const char* magic : {"iVBORw0KGgo", "/9j/", "UklGR", "UDYK", "UDUK", "UDYg", "UDUg", "UDYN", "UDUN"}) {
    if (text.rfind(magic, 0) == 0) return true;
  }
  return false;
}

// "data:image/png;base64,...."
MediaSource data_url(const Given& given, const std::string& field, const std::string& text) {
  const size_t comma = text.find(',');
  const std::string head = comma == std::string::npos ? "" : lower(text.substr(5, comma - 5));
  const bool base64 = head.size() >= 7 && head.compare(head.size() - 7, 7, ";base64") == 0;
  MediaSource source{MediaSource::Kind::bytes, field, "", ""};
  if (!base64) refuse_value({given.name, Json(text.substr(0, 40)), nullptr, false}, "data:image/png;base64,...");
  if (!decode_base64(std::string_view(text).substr(comma + 1), source.content)) {
    throw ApiError{400,   "invalid_media",    field + ": the data URL is not valid base64, encode the file again",
                   field, text.substr(0, 40), "base64",
                   0};
  }
  return source;
}

MediaSource from_text(const Given& given, const std::string& field, const std::string& text) {
  const std::string start = lower(text.substr(0, 8));
  if (start.rfind("data:", 0) == 0) return data_url(given, field, text);
  if (start.rfind("http://", 0) == 0 || start.rfind("https://", 0) == 0) {
    return {MediaSource::Kind::url, field, text, leaf_of(text.substr(0, text.find_first_of("?#")))};
  }
  if (start.rfind("file://", 0) == 0) return {MediaSource::Kind::path, field, text.substr(7), leaf_of(text)};
  MediaSource source{MediaSource::Kind::bytes, field, "", ""};
  if (starts_like_base64_picture(text) || text.size() > 1024) {
    if (decode_base64(text, source.content)) return source;
    throw ApiError{400,   "invalid_media",    field + ": it is neither a path nor valid base64, encode the file again",
                   field, text.substr(0, 40), "a data URL, base64, a path below --media-root or an address",
                   0};
  }
  if (text.empty() || text.find('\0') != std::string::npos || text.find("://") != std::string::npos) {
    refuse_value(given, "a data URL, base64, a path below --media-root or an http(s) address");
  }
  return {MediaSource::Kind::path, field, text, leaf_of(text)};
}

constexpr const char* kMediaKeys = "image_url, video_url, audio_url, url, uri, b64_json, data or path";

bool is_media_key(const std::string& key) {
  for (const char* known : {"image_url", "video_url", "audio_url", "url", "uri", "b64_json", "data", "path"}) {
    if (key == known) return true;
  }
  return false;
}

// {"image_url": "..."}, {"image_url": {"url": "..."}}, {"url": ...}, {"uri": ...}, {"b64_json": ...}, {"path": ...}
MediaSource from_object(const Given& given) {
  const Json* found = nullptr;
  std::string name;
  for (const auto& [key, value] : given.value.members()) {
    if (value.is_null() || key == "type" || key == "detail") continue;
    if (!is_media_key(key)) {
      refuse_unknown({given.name + "." + key, value, nullptr, false}, "unknown field of a file", kMediaKeys);
    }
    if (found != nullptr) {
      throw ApiError{400,        "conflict", given.name + ": it has " + name + " and " + key + ", give one of them",
                     given.name, key,        std::string("one of ") + kMediaKeys,
                     0};
    }
    found = &value;
    name = key;
  }
  if (found != nullptr && found->is_object()) found = found->find("url");
  if (found == nullptr || !found->is_string()) {
    refuse_value(given, std::string("an object with one of ") + kMediaKeys);
  }
  if (name != "b64_json" && name != "data") return from_text(given, given.name, found->as_string());
  MediaSource source{MediaSource::Kind::bytes, given.name, "", ""};
  if (found->as_string().rfind("data:", 0) == 0) return data_url(given, given.name, found->as_string());
  if (!decode_base64(found->as_string(), source.content)) {
    throw ApiError{400,
                   "invalid_media",
                   given.name + ": " + name + " is not valid base64, encode the file again",
                   given.name,
                   found->as_string().substr(0, 40),
                   "base64",
                   0};
  }
  return source;
}

}  // namespace

bool parse_size(const std::string& text, int& width, int& height) {
  const size_t split = text.find_first_of("xX*");
  if (split == std::string::npos || split == 0 || split > 5 || text.size() - split > 6) return false;
  const std::string left = text.substr(0, split), right = text.substr(split + 1);
  if (right.empty() || (left + right).find_first_not_of("0123456789") != std::string::npos) return false;
  width = std::stoi(left);
  height = std::stoi(right);
  return true;
}

MediaSource media_source(const Given& given) {
  if (given.file) return {MediaSource::Kind::bytes, given.name, "", leaf_of(given.file->name), given.file};
  if (given.value.is_object()) return from_object(given);
  return from_text(given, given.name, text_of(given));
}

void place_keyframe(Draft& draft, const Given& given, bool last, MediaSource source) {
  std::optional<MediaSource>& slot = last ? draft.last : draft.first;
  if (slot) {
    const char* const what = last ? "the last frame" : "the first frame";
    throw ApiError{
        400,        "conflict", given.name + ": " + what + " is already given by " + slot->field + ", drop one",
        given.name, "",         "one picture for each of first and last frame",
        0};
  }
  draft.spelled[last ? "last_frame" : "first_frame"] = source.field;
  slot = std::move(source);
}

int64_t frame_index(const Given& given, const Json& index) {
  if (!index.is_integer() || (index.as_int() != 0 && index.as_int() != -1)) {
    throw ApiError{400,
                   "invalid_value",
                   given.name + ": frame " + index.dump().substr(0, 40) +
                       " is not possible, keyframes are the first "
                       "frame (0) or the last one (-1)",
                   given.name,
                   index.dump().substr(0, 40),
                   "0 or -1",
                   0};
  }
  return index.as_int();
}

namespace {

// vLLM-Omni's names for pictures; which frames they are is told by frame_indices, else by their order. All other names
// say it themselves.
bool is_by_position(const std::string& name) { return name == "input_reference" || name == "input_references"; }

}  // namespace

// One picture, or a list of up to two in multipart clients; references where the task says so.
void apply_first(Draft& draft, const Given& given) {
  if (draft.task == "ref2va") return add_reference(draft, given);
  if (given.value.is_array()) {
    if (given.value.size() > 2) refuse_value(given, "one or two pictures");
    for (const Json& item : given.value.items()) apply_first(draft, {given.name, item, nullptr, given.text});
    return;
  }
  bool last = false;
  if (is_by_position(given.name)) {
    const size_t at = draft.by_position++;
    const std::vector<int64_t>& indices = draft.frame_indices;
    if (!indices.empty() && at >= indices.size()) return;  // settle_frame_indices refuses the list
    last = indices.empty() ? at > 0 : indices[at] == -1;
  }
  place_keyframe(draft, given, last, media_source(given));
}

void apply_last(Draft& draft, const Given& given) { place_keyframe(draft, given, true, media_source(given)); }

namespace {

[[noreturn]] void refuse_indices(const Draft& draft, const std::string& reason) {
  Json list = Json::array();
  for (const int64_t index : draft.frame_indices) list.push(index);
  refuse_value({draft.indices_field, std::move(list), nullptr, false},
               "one for each picture of input_reference and input_references: 0 the first frame, -1 the last",
               reason);
}

}  // namespace

// Before the pictures, wherever it stands in the body.
void apply_frame_indices(Draft& draft, const Given& given) {
  if (is_nothing(given)) return;
  draft.indices_field = given.name;
  for (const Json& item : list_of(given)) {
    const bool digits = given.text && item.is_string();
    const int64_t index = frame_index(given, digits ? Json(whole_of(given, "0 or -1")) : item);
    const bool twice = std::count(draft.frame_indices.begin(), draft.frame_indices.end(), index) > 0;
    draft.frame_indices.push_back(index);
    if (twice) refuse_indices(draft, "a frame is named twice");
  }
}

void settle_frame_indices(const Draft& draft) {
  if (draft.frame_indices.empty() || draft.frame_indices.size() == draft.by_position) return;
  refuse_indices(draft, strf("%zu such pictures are given", draft.by_position));
}

void apply_size(Draft& draft, const Given& given) {
  int width = 0, height = 0;
  const std::string text = text_of(given);
  if (text == "auto") return;
  if (!parse_size(text, width, height)) refuse_value(given, "WIDTHxHEIGHT, for example 960x544");
  set_canvas(draft, given, width, height);
}

void apply_resolution(Draft& draft, const Given& given) {
  int width = 0, height = 0;
  std::string text = given.value.is_integer() ? given.value.dump() : lower(text_of(given));
  if (parse_size(text, width, height)) return set_canvas(draft, given, width, height);
  if (!text.empty() && text.back() == 'p') text.pop_back();
  if (text.empty() || text.size() > 4 || text.find_first_not_of("0123456789") != std::string::npos) {
    refuse_value(given, "a short edge such as 768p, or WIDTHxHEIGHT");
  }
  set_engine(draft, given, "short_edge", std::stoi(text));
}

void apply_aspect(Draft& draft, const Given& given) {
  const std::string text = text_of(given);
  if (text == "auto" || text == "adaptive") return;  // of the keyframe, or the model's
  set_engine(draft, given, "aspect", text);
}

void apply_target_shape(Draft& draft, const Given& given) {
  const bool ok = given.value.is_array() && given.value.size() == 2 && given.value.at(0).is_integer() &&
                  given.value.at(1).is_integer() && given.value.at(0).as_int() > 0 && given.value.at(1).as_int() > 0 &&
                  given.value.at(0).as_int() < 100'000 && given.value.at(1).as_int() < 100'000;
  if (!ok) refuse_value(given, "[height, width]");
  set_canvas(draft, given, static_cast<int>(given.value.at(1).as_int()), static_cast<int>(given.value.at(0).as_int()));
}

void apply_seconds(Draft& draft, const Given& given) {
  set_engine(draft, given, "seconds", number_of(given, "above 0, up to 60.4, for example 5"));
}

}  // namespace h3::server
