// Every field that a request for a clip may have, in one table: names and aliases of the programs people come from, the
// value each takes, and what it does. Parsing, /openapi.json and docs/http.md are made from it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "apps/server/body.h"
#include "base/error.h"
#include "pipeline/request.h"

namespace h3::server {

// Where a picture, clip or sound comes from, before anything is read.
struct MediaSource {
  enum class Kind { bytes, path, url };
  Kind kind = Kind::bytes;
  std::string field;    // as the client spelled it
  std::string content;  // the decoded bytes, path or address
  std::string name;     // of the file, as the client calls it; "" = unknown
  std::shared_ptr<const FilePart> upload = nullptr;  // in place of `content`

  std::string_view bytes() const { return upload ? upload->bytes : std::string_view(content); }  // of Kind::bytes
};

// A reference picture, clip or sound.
struct ReferenceSource {
  std::optional<Reference::Kind> kind;  // none = whatever the bytes are
  MediaSource media;
  std::optional<MediaSource> sound;  // of a clip, in place of its own
  bool silent = false;               // of a clip: its own sound is left out
};

// An adapter as a request names it: by one of the names that the operator gave to files.
struct AdapterName {
  std::string field, name;  // field: as the client spelled it
  double strength = 1;
};

// A request for a clip as it was sent, understood but not yet checked against the model.
struct Draft {
  Request request;
  Json canonical = Json::object();             // what was given, by canonical name; media replaced by their kind
  std::map<std::string, std::string> spelled;  // field of Request -> name the client used
  std::vector<std::string> warnings;
  std::optional<MediaSource> first, last;
  std::vector<int64_t> frame_indices;       // of the pictures that are given by position, 0 or -1
  std::string indices_field;                // as the client spelled it
  size_t by_position = 0;                   // such pictures so far
  std::vector<ReferenceSource> references;  // in order
  // Files of a form that conditions speak of as "attachment:NAME", by the name of their part.
  std::map<std::string, std::shared_ptr<const FilePart>> attachments;
  std::set<std::string> attached;  // those that a condition has used
  std::string task;    // t2va, fl2va or ref2va; "" = follows from the pictures
  std::string format;  // ending of the clip without the dot; "" = the default
  std::string output;  // where the clip goes besides the server's own folder
  std::string model, user;
  std::optional<AdapterName> turbo;  // its name is empty when any will do
  std::vector<AdapterName> adapters;
  std::vector<double> scales;  // of lora_paths or lora_name, which come without
  bool strict = false, rewrite = false;
};

enum class FieldKind { text, whole, number, boolean, seed, size, media, list, object };

struct Field {
  const char* name;     // canonical
  const char* aliases;  // separated by blanks
  FieldKind kind;
  const char* engine;  // field of Request that it sets as it is; "" = `apply` does it
  void (*apply)(Draft& draft, const Given& given);
  // For fields without a function here: values that ask for nothing, as JSON separated by blanks. Any other value is
  // refused when `refuse` is set or the request is strict, and answered with a warning otherwise.
  const char* neutral;
  bool refuse;
  const char* allowed;
  const char* help;
};

std::span<const Field> field_table();
const char* name_of(FieldKind kind);

// Throws ApiError 400 that names the field, its value and what is allowed.
Draft draft_of(const std::vector<Given>& fields);

// An engine error in the words of this API: "frames: ..." becomes "num_frames: ..." or the alias that was used.
struct ApiError;
ApiError to_api_error(const Error& error, const std::map<std::string, std::string>& spelled);

// ApiError 400 for a name that nothing reads. what: "unknown field of a file"; allowed: the names that are read.
[[noreturn]] void refuse_unknown(const Given& given, const char* what, const std::string& allowed);

// Helpers of the apply functions.
[[noreturn]] void refuse_value(const Given& given, const std::string& allowed, const std::string& reason = "");
MediaSource media_source(const Given& given);
std::string text_of(const Given& given);
double number_of(const Given& given, const std::string& allowed);
int64_t whole_of(const Given& given, const std::string& allowed);
bool boolean_of(const Given& given);
void set_engine(Draft& draft, const Given& given, const char* engine, Json value);
bool is_nothing(const Given& given);                                 // null, "", [] or {}
std::vector<Json> list_of(const Given& given);                       // of a list its entries, else the value alone
Given entry_of(const Given& given, const Json& item, size_t index);  // named as errors call it: "ref_images[2]"
bool parse_size(const std::string& text, int& width, int& height);   // "960x544", with x, X or *

// use(entry) for every entry of a list, or for the one thing that was given instead of a list.
template <typename Use>
void for_entries(const Given& given, Use&& use) {
  if (given.file) return use(given);
  if (is_nothing(given)) return;
  size_t index = 0;
  for (const Json& item : list_of(given)) use(entry_of(given, item, index++));
}

// Keyframes and sizes (fields_shapes.cpp).
void place_keyframe(Draft& draft, const Given& given, bool last, MediaSource source);
int64_t frame_index(const Given& given, const Json& index);
void apply_size(Draft& draft, const Given& given);
void apply_resolution(Draft& draft, const Given& given);
void apply_aspect(Draft& draft, const Given& given);
void apply_target_shape(Draft& draft, const Given& given);
void apply_seconds(Draft& draft, const Given& given);
void apply_first(Draft& draft, const Given& given);
void apply_last(Draft& draft, const Given& given);
void apply_frame_indices(Draft& draft, const Given& given);
void settle_frame_indices(const Draft& draft);

// The official list of conditions, and references as other programs list them (fields_references.cpp).
void apply_conditions(Draft& draft, const Given& given);
void apply_ref_images(Draft& draft, const Given& given);
void apply_ref_videos(Draft& draft, const Given& given);
void apply_ref_video_audios(Draft& draft, const Given& given);
void apply_ref_audios(Draft& draft, const Given& given);
void apply_ref_image_size(Draft& draft, const Given& given);
void add_reference(Draft& draft, const Given& given);  // of a kind that the bytes tell

// Adapters (fields_adapters.cpp).
void apply_turbo(Draft& draft, const Given& given);
void apply_lora(Draft& draft, const Given& given);
void apply_lora_names(Draft& draft, const Given& given);
void apply_lora_scales(Draft& draft, const Given& given);
void settle_adapters(Draft& draft);

}  // namespace h3::server
