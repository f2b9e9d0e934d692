// Requests that the server makes itself.
#pragma once

#include <map>
#include <string>

namespace h3::server {

struct FetchOptions {
  std::string method = "GET";
  std::string body, type;
  std::map<std::string, std::string> headers;
  double seconds = 30;
  size_t most_bytes = size_t{32} << 20;
  // For addresses that clients give: no private, local or reserved network, also not after a redirect or through a name
  // that points there. The address that was checked is the one that is connected to.
  bool public_only = false;
};

struct Fetched {
  int status = 0;
  std::string body, type;
};

// http and https. Error(usage) for a bad address, Error(io) for everything that goes wrong on the way.
Fetched fetch(const std::string& url, const FetchOptions& options);

struct Url {
  std::string scheme, host, path;  // host without brackets
  int port = 0;
};
Url parse_url(const std::string& url);  // Error(usage)
bool is_public_address(const std::string& numeric);

}  // namespace h3::server
