#include "apps/server/rewriter.h"

#include "apps/server/fetch.h"
#include "base/error.h"
#include "base/json.h"

namespace h3::server {
namespace {

// The form the model was trained on (docs/prompts in the manual has examples).
constexpr const char* kInstruction =
    "You rewrite prompts for a model that makes short videos with sound. Answer with the rewritten prompt only, in "
    "this "
    "form:\n"
    "integrated_multimodal_description: [Shot 1] what is seen, who does what, camera and light, in the order it "
    "happens, "
    "with what is heard at each moment; spoken words inside <d> and </d>. Start a new [Shot n] at every cut.\n"
    "overall_soundscape: the background sounds.\n"
    "non_diegetic_music: the music that nobody in the scene plays, or none.\n"
    "Keep every fact, name and quoted word of the user. Keep tags such as <Picture 1> as they are. Add only what a "
    "camera "
    "or a microphone would notice. Use the language of the user.";

}  // namespace

Rewriter::Rewriter(const std::string& url, const std::string& key) : url_(url), key_(key) {
  if (url_.empty()) return;
  parse_url(url_);
  while (url_.back() == '/') url_.pop_back();
  const auto ends = [&](const std::string& end) {
    return url_.size() >= end.size() && url_.compare(url_.size() - end.size(), end.size(), end) == 0;
  };
  if (ends("/chat/completions")) return;
  url_ += ends("/v1") ? "/chat/completions" : "/v1/chat/completions";
}

std::string Rewriter::rewrite(const std::string& prompt) const {
  if (!enabled()) fail(Code::io, "this server was started without a rewriter");
  FetchOptions options;
  options.method = "POST";
  options.type = "application/json";
  options.seconds = 60;
  options.most_bytes = size_t{1} << 20;
  if (!key_.empty()) options.headers["Authorization"] = "Bearer " + key_;
  Json messages = Json::array();
  messages.push(Json::object({{"role", "system"}, {"content", kInstruction}}));
  messages.push(Json::object({{"role", "user"}, {"content", prompt}}));
  options.body = Json::object({{"model", "default"}, {"messages", std::move(messages)}, {"temperature", 0.0}}).dump();
  const Fetched reply = fetch(url_, options);
  if (reply.status != 200) fail(Code::io, "the rewriter answered %d", reply.status);
  try {
    const Json json = Json::parse(reply.body, "the rewriter's answer");
    const std::string text = json.at("choices").at(size_t{0}).at("message").at("content").as_string();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos || text.size() > 32'768) {
      fail(Code::io, "the rewriter answered with %zu characters", text.size());
    }
    return text;
  } catch (const Error& error) {
    fail(Code::io, "the rewriter's answer cannot be used: %s", error.what());
  }
}

}  // namespace h3::server
