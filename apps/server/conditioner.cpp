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

std::string Conditioner::encode(const Json& request, const std::map<std::string, std::string>& pictures) const {
  FetchOptions options;
  options.method = "POST";
  options.type = "application/json";
  options.seconds = 120;
  options.most_bytes = size_t{1} << 30;
  if (!key_.empty()) options.headers["Authorization"] = "Bearer " + key_;
  Json body = Json::object();
  // What the text encoder depends on; the canvas and the fitting, because it sees keyframes as they are fitted.
  for (const char* key : {"prompt", "width", "height", "fit", "profile", "precision"}) {
    if (const Json* const value = request.find(key)) body.set(key, *value);
  }
  for (const auto& [field, bytes] : pictures) body.set(field, encode_base64(bytes));
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
