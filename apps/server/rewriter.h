// Lets an OpenAI-compatible language model turn a short prompt into the structured one that the video model was trained
// on. Off unless the operator names an endpoint.
#pragma once

#include <string>

namespace h3::server {

class Rewriter {
 public:
  // "" = off; otherwise the endpoint, with or without /v1/chat/completions. Error(usage) when it is not an address.
  Rewriter(const std::string& url, const std::string& key);
  bool enabled() const { return !url_.empty(); }
  std::string rewrite(const std::string& prompt) const;  // Error(io) when the endpoint fails or answers nonsense

 private:
  std::string url_, key_;
};

}  // namespace h3::server
