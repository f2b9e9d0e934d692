// Lets another h3 serve encode prompts, so that this one needs no text encoder: a server with a small card, or several
// that share one encoder.
#pragma once

#include <map>
#include <string>

#include "base/json.h"

namespace h3::server {

class Conditioner {
 public:
  // "" = off; otherwise the address of the other server. Error(usage) when it is not an address.
  Conditioner(const std::string& url, const std::string& key);
  bool enabled() const { return !url_.empty(); }
  // The embeddings of a resolved request, as the file that Request::prompt_embeds names. `inputs`: names of Job::inputs
  // ("first_frame", "reference_1") -> bytes of the file. Error(io) when the other server fails or answers something
  // else.
  std::string encode(const Json& request, const std::map<std::string, std::string>& inputs) const;

 private:
  std::string url_, key_;
};

}  // namespace h3::server
