// The fields of a request and their JSON form. One table drives both directions.
#include "pipeline/request.h"

#include <cerrno>
#include <cstdlib>
#include <variant>

#include "base/error.h"
#include "base/nearest.h"

namespace h3 {
namespace {

using Adapters = std::vector<AdapterRequest>;
using Member = std::variant<std::string Request::*, std::optional<int> Request::*, std::optional<double> Request::*,
                            std::optional<bool> Request::*, std::optional<Seed> Request::*, Dumps Request::*,
                            std::vector<Reference> Request::*, Adapters Request::*>;

struct Field {
  const char* key;
  Member member;
};

// JSON key -> member. `dumps` has no entry in to_json of a resolved request: where a run is looked into does not change
// it.
const Field kFields[] = {
    {"prompt", &Request::prompt},
    {"prompt_embeds", &Request::prompt_embeds},
    {"width", &Request::width},
    {"height", &Request::height},
    {"aspect", &Request::aspect},
    {"short_edge", &Request::short_edge},
    {"frames", &Request::frames},
    {"seconds", &Request::seconds},
    {"exact", &Request::exact},
    {"steps", &Request::steps},
    {"seed", &Request::seed},
    {"first_frame", &Request::first_frame},
    {"last_frame", &Request::last_frame},
    {"fit", &Request::fit},
    {"references", &Request::references},
    {"ref_image_size", &Request::ref_image_size},
    {"ref_silent", &Request::ref_silent},
    {"strict", &Request::strict},
    {"profile", &Request::profile},
    {"sampler", &Request::sampler},
    {"scheduler", &Request::scheduler},
    {"video_shift", &Request::video_shift},
    {"audio_shift", &Request::audio_shift},
    {"stock_sampler", &Request::stock_sampler},
    {"precision", &Request::precision},
    {"vae_precision", &Request::vae_precision},
    {"preset", &Request::preset},
    {"cache", &Request::cache},
    {"policy_trace", &Request::policy_trace},
    {"attention", &Request::attention},
    {"turbo", &Request::turbo},
    {"adapters", &Request::adapters},
    {"audio", &Request::audio},
    {"quality", &Request::quality},
    {"output", &Request::output},
    {"wav", &Request::wav},
    {"frames_dir", &Request::frames_dir},
    {"dumps", &Request::dumps},
};

[[noreturn]] void wrong(const std::string& key, const Json& value, const char* expected) {
  fail(Code::usage, "%s: %s is not allowed, give %s", key.c_str(), value.dump().c_str(), expected);
}

int whole_number(const std::string& key, const Json& value) {
  if (!value.is_integer()) wrong(key, value, "a whole number");
  const int64_t number = value.as_int();
  if (number < INT32_MIN || number > INT32_MAX) wrong(key, value, "a smaller whole number");
  return static_cast<int>(number);
}

Dumps parse_dumps(const std::string& key, const Json& value) {
  if (!value.is_object()) wrong(key, value, "an object of STAGE: FILE");
  Dumps dumps;
  for (const auto& [stage, file] : value.members()) {
    if (!file.is_string()) wrong(key + "." + stage, file, "a file name");
    dumps.emplace_back(stage, file.as_string());
  }
  return dumps;
}

Reference parse_reference(const std::string& key, const Json& value) {
  if (!value.is_object()) wrong(key, value, "an object, for example {\"type\": \"image\", \"path\": \"a.png\"}");
  Reference reference;
  for (const auto& [name, entry] : value.members()) {
    const std::string where = key + "." + name;
    if (name == "silent") {
      if (!entry.is_bool()) wrong(where, entry, "true or false");
      reference.silent = entry.as_bool();
      continue;
    }
    if (!entry.is_string()) wrong(where, entry, "a string");
    const std::string& text = entry.as_string();
    if (name == "path") {
      reference.path = text;
    } else if (name == "sound") {
      reference.sound = text;
    } else if (name == "name") {
      reference.name = text;
    } else if (name == "sound_name") {
      reference.sound_name = text;
    } else if (name != "type") {
      const std::vector<std::string> known = {"type", "path", "sound", "silent", "name", "sound_name"};
      fail(Code::usage, "unknown field %s%s", where.c_str(), suggestion(name, known).c_str());
    } else if (text == "video") {
      reference.kind = Reference::Kind::video;
    } else if (text == "audio") {
      reference.kind = Reference::Kind::audio;
    } else if (text != "image") {
      wrong(where, entry, "image, video or audio");
    }
  }
  if (value.find("type") == nullptr)
    fail(Code::usage, "%s.type: it is missing, give image, video or audio", key.c_str());
  return reference;
}

std::vector<Reference> parse_references(const std::string& key, const Json& value) {
  if (!value.is_array()) wrong(key, value, "a list of objects");
  std::vector<Reference> references;
  for (const Json& entry : value.items()) {
    references.push_back(parse_reference(strf("%s[%zu]", key.c_str(), references.size()), entry));
  }
  return references;
}

// ["PATH", {"path": "PATH", "strength": 0.75}]
Adapters parse_adapters(const std::string& key, const Json& value) {
  const char* const expected = "an array of paths or of objects with path and strength";
  if (!value.is_array()) wrong(key, value, expected);
  Adapters adapters;
  for (const Json& item : value.items()) {
    AdapterRequest adapter;
    if (item.is_string()) {
      adapter.path = item.as_string();
    } else if (item.is_object()) {
      for (const auto& [name, field] : item.members()) {
        if (name == "path" && field.is_string()) {
          adapter.path = field.as_string();
        } else if (name == "strength" && field.is_number()) {
          adapter.strength = field.as_double();
        } else {
          wrong(key, item, expected);
        }
      }
    }
    if (adapter.path.empty()) wrong(key, item, expected);
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

// One overload per member type: from JSON, and back (null = unset).
struct Setter {
  Request& request;
  const std::string& key;
  const Json& value;
  void operator()(std::string Request::*member) const {
    if (!value.is_string()) wrong(key, value, "a string");
    request.*member = value.as_string();
  }
  void operator()(std::optional<int> Request::*member) const { request.*member = whole_number(key, value); }
  void operator()(std::optional<double> Request::*member) const {
    if (!value.is_number()) wrong(key, value, "a number");
    request.*member = value.as_double();
  }
  void operator()(std::optional<bool> Request::*member) const {
    if (!value.is_bool()) wrong(key, value, "true or false");
    request.*member = value.as_bool();
  }
  void operator()(std::optional<Seed> Request::*member) const { request.*member = parse_seed(value); }
  void operator()(Dumps Request::*member) const { request.*member = parse_dumps(key, value); }
  void operator()(std::vector<Reference> Request::*member) const { request.*member = parse_references(key, value); }
  void operator()(Adapters Request::*member) const { request.*member = parse_adapters(key, value); }
};

struct Getter {
  const Request& request;
  Json operator()(std::string Request::*member) const {
    return (request.*member).empty() ? Json() : Json(request.*member);
  }
  template <typename T>
  Json operator()(std::optional<T> Request::*member) const {
    return request.*member ? Json(*(request.*member)) : Json();
  }
  Json operator()(std::optional<Seed> Request::*member) const {
    if (!(request.*member)) return Json();
    return (request.*member)->random ? Json(-1) : seed_json((request.*member)->value);
  }
  Json operator()(Adapters Request::*member) const {
    if ((request.*member).empty()) return Json();
    Json array = Json::array();
    for (const AdapterRequest& adapter : request.*member) {
      array.push(Json::object({{"path", adapter.path}, {"strength", adapter.strength}}));
    }
    return array;
  }
  Json operator()(Dumps Request::*member) const {
    if ((request.*member).empty()) return Json();
    Json object = Json::object();
    for (const auto& [stage, file] : request.*member) object.set(stage, file);
    return object;
  }
  Json operator()(std::vector<Reference> Request::*member) const {
    if ((request.*member).empty()) return Json();
    Json list = Json::array();
    for (const Reference& reference : request.*member) {
      Json object = Json::object({{"type", name_of(reference.kind)}, {"path", reference.path}});
      if (!reference.sound.empty()) object.set("sound", reference.sound);
      if (reference.silent) object.set("silent", true);
      if (!reference.name.empty()) object.set("name", reference.name);
      if (!reference.sound_name.empty()) object.set("sound_name", reference.sound_name);
      list.push(std::move(object));
    }
    return list;
  }
};

}  // namespace

AdapterRequest parse_adapter(const std::string& text) {
  const size_t colon = text.find_last_of(':');
  AdapterRequest out{text, 1};
  if (colon == std::string::npos || colon == 0) return out;
  char* end = nullptr;
  const double strength = std::strtod(text.c_str() + colon + 1, &end);
  if (end == text.c_str() + colon + 1 || *end != '\0') return out;  // a colon inside the path
  return {text.substr(0, colon), strength};
}

Seed parse_seed(const Json& value) {
  const char* const allowed = "a whole number from 0 to 18446744073709551615, or -1 to draw one";
  if (value.is_null()) return {0, true};
  if (value.is_integer()) {
    const int64_t number = value.as_int();
    if (number < -1) wrong("seed", value, allowed);
    return number < 0 ? Seed{0, true} : Seed{static_cast<uint64_t>(number), false};
  }
  if (!value.is_string()) wrong("seed", value, allowed);
  const std::string& text = value.as_string();
  if (text == "-1") return {0, true};
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  errno = 0;
  const unsigned long long number = digits ? std::strtoull(text.c_str(), nullptr, 10) : 0;
  if (!digits || errno == ERANGE) wrong("seed", value, allowed);
  return {number, false};
}

Json seed_json(uint64_t seed) {
  return seed <= static_cast<uint64_t>(INT64_MAX) ? Json(static_cast<int64_t>(seed)) : Json(std::to_string(seed));
}

std::vector<std::string> request_keys() {
  std::vector<std::string> keys;
  for (const Field& field : kFields) keys.emplace_back(field.key);
  return keys;
}

void set_field(Request& request, const std::string& key, const Json& value) {
  for (const Field& field : kFields) {
    if (key == field.key) return std::visit(Setter{request, key, value}, field.member);
  }
  fail(Code::usage, "unknown field %s%s", key.c_str(), suggestion(key, request_keys()).c_str());
}

Json Request::to_json() const {
  Json object = Json::object();
  for (const Field& field : kFields) {
    Json value = std::visit(Getter{*this}, field.member);
    if (!value.is_null()) object.set(field.key, std::move(value));
  }
  return object;
}

Request Request::from_json(const Json& json) {
  if (!json.is_object()) fail(Code::usage, "a request must be a JSON object, found %s", json.dump().c_str());
  Request request;
  for (const auto& [key, value] : json.members()) set_field(request, key, value);
  return request;
}

const char* name_of(Task task) { return task == Task::ref2va ? "ref2va" : task == Task::fl2va ? "fl2va" : "t2va"; }

const char* name_of(Reference::Kind kind) {
  return kind == Reference::Kind::video ? "video" : kind == Reference::Kind::audio ? "audio" : "image";
}

std::span<const char* const> dump_stages() {
  static constexpr const char* kStages[] = {"text",     "keyframes", "noise",  "latents",
                                            "velocity", "final",     "frames", "audio"};
  return kStages;
}

Json Resolved::to_json() const {
  Json values = Json::object();
  for (const Choice& choice : choices) {
    values.set(choice.field, Json::object({{"value", choice.value}, {"from", choice.from}}));
  }
  values.set("latent_frames", latent_frames).set("latent_width", latent_width).set("latent_height", latent_height);
  values.set("audio_latents", audio_latents).set("output_frames", output_frames);
  values.set("output_samples", output_samples);
  if (prompt_tokens >= 0) values.set("prompt_tokens", prompt_tokens);
  Json table = Json::array();
  for (const std::string& line : reference_table(*this)) table.push(line);
  if (!references.empty()) values.set("references", std::move(table));
  return values;
}

}  // namespace h3
