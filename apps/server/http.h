// What an endpoint sees of HTTP: plain values, no library. http_server.h moves them over the wire.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace h3::server {

struct HttpRequest {
  std::string method, path;  // path: decoded, without the query
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;  // names in lower case; the first of each
  std::string body;
  std::string client;                // address
  std::vector<std::string> matched;  // what the {names} of the route stand for, in order
  std::string_view route;            // "/v1/videos/{id}", set by the router
  // Whether the client has closed its end; for handlers that wait.
  std::function<bool()> disconnected;

  std::string header(const std::string& lower_case_name) const {
    const auto found = headers.find(lower_case_name);
    return found == headers.end() ? std::string() : found->second;
  }
};

// An open file that is sent as a body; stays readable when its name is removed meanwhile.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path);  // Error(io)
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  uint64_t size() const { return size_; }
  size_t read(uint64_t offset, char* to, size_t bytes) const;  // 0 at the end or on an error

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
};

struct StreamWriter {
  std::function<bool(std::string_view)> write;  // false: the client is gone or too slow
  std::function<bool()> open;                   // false: the client is gone
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // Instead of body: a range of a file, or pieces that are written until `stream` returns false.
  std::shared_ptr<const OpenFile> file;
  uint64_t file_offset = 0, file_bytes = 0;
  std::function<bool(const StreamWriter&)> stream;
  std::function<void()> on_end;  // the response has been sent or given up
  bool close = false;            // end the connection, for example because the body was not read

  HttpResponse& with(std::string name, std::string value) {
    headers.emplace_back(std::move(name), std::move(value));
    return *this;
  }
};

HttpResponse json_response(const Json& json, int status = 200);
// The file, or the part of it that a Range header asks for (one range; several are answered with the whole file).
HttpResponse file_response(const HttpRequest& request, const std::string& path, const std::string& type);

// What ends a request with a status and one JSON object that names the field, its value and what is allowed.
struct ApiError {
  int status = 400;
  std::string code;     // "invalid_request", "unknown_field", "queue_full" ...
  std::string message;  // one sentence: what failed, what is allowed, one suggestion
  std::string param, value, allowed;
  int retry_after = 0;  // seconds; 0 = no header
};
HttpResponse error_response(const ApiError& error);

}  // namespace h3::server
