#include "apps/server/conditioner.h"

#include "apps/server/body.h"
#include "apps/server/fetch.h"
#include "base/error.h"

namespace h3::server {

Conditioner::Conditioner(const std::string& url, const std::string& key) : url_(url), key_(key) {
  if (url_.empty()) return;
  parse_url(url_);
  while (url_.back() == '/') url_.pop_back();
  url_ += "/v1/videos/embeddings";
}

namespace {

// The references of a request in the words of its API, with their files in it.
Json conditions_of(const Json& references, const std::map<std::string, std::string>& inputs) {
  const auto uri = [&](const std::string& field) {
    return "data:application/octet-stream;base64," + encode_base64(inputs.at(field));
  };
  Json list = Json::array();
  for (size_t i = 0; i < references.size(); ++i) {
    const Json& reference = references.at(i);
    const std::string& type = reference.at("type").as_string();
    const bool silent = reference.find("silent") != nullptr;
    const std::string field = strf("reference_%zu", i + 1);
    Json item = Json::object({{"type", type == "video" && !silent ? "video_audio" : type}, {"role", "reference"}});
    item.set("uri", uri(field)).set("name", reference.at("name"));
    if (reference.find("sound") != nullptr) item.set("sound", uri(field + "_sound"));
    list.push(std::move(item));
  }
  return list;
}

}  // namespace

std::string Conditioner::encode(const Json& request, const std::map<std::string, std::string>& inputs) const {
  FetchOptions options;
  options.method = "POST";
  options.type = "application/json";
  options.seconds = 120;
  options.most_bytes = size_t{1} << 30;
  if (!key_.empty()) options.headers["Authorization"] = "Bearer " + key_;
  Json body = Json::object();
  // What the text encoder depends on; the canvas, the fitting and the length, because it sees keyframes as they are
  // fitted and no more of a reference than the clip is long.
  for (const char* key : {"prompt", "width", "height", "frames", "fit", "ref_image_size", "profile", "precision"}) {
    if (const Json* const value = request.find(key)) body.set(key, *value);
  }
  if (const Json* const references = request.find("references")) {
    body.set("conditions", conditions_of(*references, inputs));
  } else {
    for (const auto& [field, bytes] : inputs) body.set(field, encode_base64(bytes));
  }
  options.body = body.dump();
  Fetched reply = fetch(url_, options);
  if (reply.status == 200) return std::move(reply.body);
  std::string reason = strf("it answered %d", reply.status);
  try {
    reason = Json::parse(reply.body, "answer").at("error").at("message").as_string().substr(0, 300);
  } catch (const Error&) {  // not our kind of answer
  }
  fail(Code::io, "%s", reason.c_str());
}

}  // namespace h3::server
