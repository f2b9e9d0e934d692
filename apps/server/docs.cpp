// docs/http.md and /openapi.json, from the tables of fields and routes.
#include "apps/server/routes.h"
#include "base/error.h"
#include "pipeline/report.h"

namespace h3::server {
namespace {

std::vector<std::string> words(const char* text) {
  std::vector<std::string> out;
  std::string word;
  for (const char* c = text;; ++c) {
    if (*c != ' ' && *c != '\0') {
      word += *c;
      continue;
    }
    if (!word.empty()) out.push_back(std::move(word));
    word.clear();
    if (*c == '\0') return out;
  }
}

std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.replace(at, 1, "\\|");
  return text;
}

bool without_effect(const Field& field) { return field.apply == nullptr && *field.engine == '\0'; }

Json type_schema(FieldKind kind) {
  switch (kind) {
    case FieldKind::whole: return Json::object({{"type", "integer"}});
    case FieldKind::number: return Json::object({{"type", Json::array({"number", "string"})}});
    case FieldKind::boolean: return Json::object({{"type", "boolean"}});
    case FieldKind::seed: return Json::object({{"type", Json::array({"integer", "string", "null"})}});
    case FieldKind::media:
      return Json::object({{"description",
                            "an upload, a data URL, base64, a path below --media-root, an address with "
                            "--allow-urls, or an object with one of image_url, url, uri, b64_json, path"}});
    case FieldKind::list: return Json::object({{"type", Json::array({"array", "object", "string"})}});
    case FieldKind::object: return Json::object({{"type", Json::array({"object", "string"})}});
    case FieldKind::text:
    case FieldKind::size: break;
  }
  return Json::object({{"type", "string"}});
}

// Fields and aliases without dots; those of the containers go into the objects they belong to.
Json clip_schema() {
  Json properties = Json::object(), containers = Json::object();
  const auto add = [&](const std::string& name, const Field& field, bool alias) {
    Json schema = type_schema(field.kind);
    std::string text = without_effect(field)
                           ? std::string("Accepted: ") + field.allowed + ". Otherwise " +
                                 (field.refuse ? "refused: " : "ignored with a warning: ") + field.help + "."
                           : field.help;
    if (*field.allowed != '\0' && !without_effect(field)) text += std::string(" Allowed: ") + field.allowed + ".";
    if (alias) text = std::string("The same as ") + field.name + ".";
    if (schema.find("description") == nullptr || alias) schema.set("description", text);
    const size_t dot = name.find('.');
    if (dot == std::string::npos) {
      properties.set(name, std::move(schema));
      return;
    }
    Json inner = containers.find(name.substr(0, dot)) != nullptr ? containers.at(name.substr(0, dot)) : Json::object();
    inner.set(name.substr(dot + 1), std::move(schema));
    containers.set(name.substr(0, dot), std::move(inner));
  };
  for (const Field& field : field_table()) {
    add(field.name, field, false);
    for (const std::string& alias : words(field.aliases)) add(alias, field, true);
  }
  for (const auto& [name, inner] : containers.members()) {
    properties.set(name, Json::object({{"type", "object"}, {"properties", inner}, {"additionalProperties", false}}));
  }
  return Json::object({{"type", "object"},
                       {"properties", std::move(properties)},
                       {"required", Json::array({"prompt"})},
                       {"additionalProperties", false}});
}

std::string references_text() {
  return strf(
      "\n## References\n\n"
      "References are numbered in the order of the body, each kind on its own: the prompt speaks of `<Picture 1>`, "
      "`<Video 1>`,\n"
      "`<Audio 1>`. The sound of a clip takes an `<Audio n>` right before its clip. They are given in `conditions`, or "
      "in "
      "the\n"
      "lists `ref_images`, `ref_videos` and `ref_audios`; parts of a form may be repeated and mixed.\n\n"
      "```\n"
      "{\"task\": \"ref2va\", \"prompt\": \"<Picture 1> sings <Audio 1>\", \"conditions\": [\n"
      "  {\"type\": \"image\", \"role\": \"reference\", \"uri\": \"data:image/png;base64,...\", \"name\": \"a.png\"},\n"
      "  {\"type\": \"audio\", \"role\": \"reference\", \"uri\": \"attachment:voice\"}]}\n"
      "```\n\n"
      "`type` is `image`, `video` (without its sound), `video_audio` (with it, or with the file in `sound`) or "
      "`audio`. "
      "`uri` is\n"
      "written as every file is, or `attachment:NAME` for the file of that part of a multipart body. Limits are those "
      "of "
      "the\n"
      "release: 9 pictures, 3 clips, 3 sounds, 12 together and no sound alone; pictures and clips of 256 to 5760 "
      "pixels "
      "each way\n"
      "and 1:4 to 4:1; clips and sounds of 2 to 15 seconds, and 15 seconds of each together; a model may allow smaller "
      "ones\n"
      "(`limits.references` of `/v1/models`). A picture or a sound has at most %zu MiB; a clip, and a file that gives "
      "a\n"
      "clip its sound, %zu MiB. `--max-body` limits the whole body: %zu MiB unless it is set.\n\n"
      "`references` of a job lists what each one is: `type`, `name`, `tag`, `is` (\"64x48 -> 128x96\"), `sound_tag`, "
      "`sound_name`,\n"
      "`sound_is`, `silent`; its file is `reference_1` ... (and `reference_1_sound`) in `inputs`. The same table in "
      "words "
      "is in\n"
      "`resolved.references` of the job and its report. Tags that name nothing and references that no tag names are "
      "`warnings`;\n"
      "with `strict` they are refused. A model of one half of the release refuses requests for the other half and "
      "names "
      "the file\n"
      "that would be right; with both halves given, both kinds are served.\n",
      kMostFileBytes >> 20, kMostClipBytes >> 20, HttpLimits{}.body_bytes >> 20);
}

Json error_schema() {
  const Json text = Json::object({{"type", "string"}});
  Json fields = Json::object(
      {{"message", text}, {"type", text}, {"code", text}, {"param", text}, {"value", text}, {"allowed", text}});
  Json error = Json::object(
      {{"type", "object"}, {"properties", std::move(fields)}, {"required", Json::array({"message", "type", "code"})}});
  return Json::object({{"type", "object"}, {"properties", Json::object({{"error", std::move(error)}})}});
}

Json parameters_of(const Route& route) {
  Json list = Json::array();
  const std::string path = route.path;
  for (size_t at = path.find('{'); at != std::string::npos; at = path.find('{', at + 1)) {
    list.push(Json::object({{"name", path.substr(at + 1, path.find('}', at) - at - 1)},
                            {"in", "path"},
                            {"required", true},
                            {"schema", Json::object({{"type", "string"}})}}));
  }
  std::string rest = route.query;
  while (!rest.empty()) {
    const size_t end = std::min(rest.size(), rest.find("; "));
    const std::string one = rest.substr(0, end);
    rest.erase(0, std::min(rest.size(), end + 2));
    const size_t colon = one.find(": ");
    list.push(Json::object({{"name", one.substr(0, colon)},
                            {"in", "query"},
                            {"description", one.substr(colon + 2)},
                            {"schema", Json::object({{"type", "string"}})}}));
  }
  return list;
}

Json operation(const Route& route) {
  Json json = Json::object({{"summary", route.summary}, {"tags", Json::array({route.group})}});
  Json parameters = parameters_of(route);
  if (parameters.size() > 0) json.set("parameters", std::move(parameters));
  if (std::string(route.body) == "clip") {
    const Json schema = Json::object({{"schema", Json::object({{"$ref", "#/components/schemas/ClipRequest"}})}});
    json.set(
        "requestBody",
        Json::object({{"required", true},
                      {"content", Json::object({{"application/json", schema}, {"multipart/form-data", schema}})}}));
  } else if (*route.body != '\0') {
    json.set("requestBody", Json::object({{"description", route.body},
                                          {"content", Json::object({{"application/json", Json::object()}})}}));
  }
  Json responses = Json::object({{"200", Json::object({{"description", route.answer}})}});
  const Json error = Json::object(
      {{"description", "the error"},
       {"content",
        Json::object({{"application/json",
                       Json::object({{"schema", Json::object({{"$ref", "#/components/schemas/Error"}})}})}})}});
  std::string codes = route.errors;
  while (!codes.empty()) {
    responses.set(codes.substr(0, 3), error);
    codes.erase(0, 5);
  }
  json.set("responses", std::move(responses));
  if (route.open) json.set("security", Json::array());
  return json;
}

}  // namespace

Json openapi_json() {
  Json paths = Json::object();
  for (const Route& route : routes()) {
    std::string method = route.method;
    for (char& c : method) c = static_cast<char>(c - 'A' + 'a');
    Json entry = paths.find(route.path) != nullptr ? paths.at(route.path) : Json::object();
    entry.set(method, operation(route));
    paths.set(route.path, std::move(entry));
  }
  Json json = Json::object({{"openapi", "3.1.0"}});
  json.set("info", Json::object({{"title", "h3 serve"}, {"version", engine_version()}}));
  json.set("paths", std::move(paths));
  json.set("components",
           Json::object(
               {{"schemas", Json::object({{"ClipRequest", clip_schema()}, {"Error", error_schema()}})},
                {"securitySchemes", Json::object({{"key", Json::object({{"type", "http"}, {"scheme", "bearer"}})}})}}));
  json.set("security", Json::array({Json::object({{"key", Json::array()}})}));
  return json;
}

std::string http_markdown() {
  std::string out =
      "# The HTTP API of h3 serve\n\n"
      "<!-- Generated by `h3 serve --markdown`; a test compares. Edit apps/server/routes.cpp and fields.cpp instead. "
      "-->\n\n"
      "`h3 serve` listens on 127.0.0.1:8317. The same description for programs is at `/openapi.json`.\n\n"
      "```\n"
      "curl -s 127.0.0.1:8317/v1/videos -d '{\"prompt\": \"a red ball bounces\", \"seconds\": 2}'\n"
      "curl -s 127.0.0.1:8317/v1/videos -F prompt='she turns her head' -F input_reference=@first.png\n"
      "curl -s 127.0.0.1:8317/v1/videos -F prompt='<Picture 1> dances like <Video 1>' -F ref_image=@a.png -F "
      "ref_video=@b.mp4\n"
      "curl -N 127.0.0.1:8317/v1/videos/ID/events\n"
      "curl -o clip.mp4 127.0.0.1:8317/v1/videos/ID/content\n"
      "```\n\n"
      "With `--api-key KEY` (or `H3_API_KEY`) every request except the page, `/ready`, `/health` and `/openapi.json` "
      "needs\n"
      "`Authorization: Bearer KEY`.\n\n"
      "An error is `{\"error\": {\"message\", \"type\", \"code\", \"param\", \"value\", \"allowed\"}}`: the message "
      "says what to\n"
      "change, `param` is the field as the client spelled it. 503 carries `Retry-After`, from measured job times.\n\n"
      "A job is on disk before its id is given, and outlives the server: after a crash waiting jobs wait, the running "
      "one\n"
      "is tried once more, and finished ones are there. With an `Idempotency-Key` header a request that is sent twice "
      "is\n"
      "one job; the same key with another request is 409.\n\n## Endpoints\n";
  std::string group;
  for (const Route& route : routes()) {
    if (group != route.group) {
      group = route.group;
      out += "\n### " + group + "\n\n| endpoint | what it does | answer | errors |\n|---|---|---|---|\n";
    }
    out += std::string("| `") + route.method + " " + route.path + "` | " + cell(route.summary);
    if (std::string(route.body) == "clip")
      out += " Body: a clip request.";
    else if (*route.body != '\0')
      out += std::string(" Body: ") + cell(route.body) + ".";
    if (*route.query != '\0') out += std::string(" Query: ") + cell(route.query) + ".";
    out += std::string(" | ") + cell(route.answer) + " | " + route.errors + " |\n";
  }
  out +=
      "\n## A clip request\n\n"
      "JSON, `multipart/form-data` or a URL-encoded form. Unknown fields are refused. Fields with a dot belong to an "
      "object\n"
      "(`target.short_edge` is `{\"target\": {\"short_edge\": 768}}`); `extra_params` may be JSON text. A field may be "
      "given\n"
      "under one of its names only. A picture, clip or sound is an upload, a data URL, base64, a path below "
      "`--media-root`, an\n"
      "address with `--allow-urls`, or an object with one of `image_url`, `video_url`, `audio_url`, `url`, `uri`, "
      "`b64_json`,\n"
      "`data` and `path`.\n\n"
      "| field | also | type | allowed | meaning |\n|---|---|---|---|---|\n";
  const auto aliases = [](const Field& field) {
    std::string text;
    for (const std::string& alias : words(field.aliases)) text += (text.empty() ? "`" : " `") + alias + "`";
    return text;
  };
  for (const Field& field : field_table()) {
    if (without_effect(field)) continue;
    out += std::string("| `") + field.name + "` | " + aliases(field) + " | " + name_of(field.kind) + " | " +
           cell(field.allowed) + " | " + cell(field.help) + " |\n";
  }
  out +=
      "\nFields of other programs that have no use here are accepted with the values that ask for nothing. Anything "
      "else is\n"
      "refused where the clip would not be what was asked for, and answered with a warning otherwise; with `strict` it "
      "is\n"
      "refused too.\n\n"
      "| field | also | accepted | otherwise | because |\n|---|---|---|---|---|\n";
  for (const Field& field : field_table()) {
    if (!without_effect(field)) continue;
    out += std::string("| `") + field.name + "` | " + aliases(field) + " | " + cell(field.allowed) + " | " +
           (field.refuse ? "refused" : "warning") + " | " + cell(field.help) + " |\n";
  }
  out += references_text();
  out +=
      "\n## A job\n\n"
      "`id`, `object` (`video`), `status` (`queued`, `in_progress`, `completed`, `failed`, `cancelled`), `progress` (0 "
      "to\n"
      "100), `stage`, `step` and `steps` (model evaluations), `stage_done` and `stage_total`, `eta_seconds`,\n"
      "`queue_position`, `wait_seconds`, `created_at`, `started_at`, `completed_at`, `expires_at` (Unix seconds), "
      "`size`,\n"
      "`width`, `height`, `num_frames`, `fps`, `seconds` (text), `seed` (text above 2^63), `num_inference_steps`, "
      "`prompt`,\n"
      "`rewritten_prompt`, `warnings`, `error` (`code`, `message`), `attempts`, `url`, `media_type`, `file_name`, "
      "`bytes`,\n"
      "`output`, `file_path`, `quality`, `inference_time_s`, `stage_durations`, `peak_memory_mb`, `evaluations`\n"
      "(`run`, `reused`, `forecast`), `inputs` (addresses of its files), `references`, `preview`, `request` (fields as "
      "given,\n"
      "by canonical name) and `resolved` (every value with where it came from).\n";
  return out;
}

}  // namespace h3::server
