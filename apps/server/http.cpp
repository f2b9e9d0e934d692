#include "apps/server/http.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace h3::server {

OpenFile::OpenFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat info {};
  if (fd_ < 0 || ::fstat(fd_, &info) != 0) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    fail(Code::io, "cannot read %s: %s", path.c_str(), std::strerror(error));
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

OpenFile::~OpenFile() { ::close(fd_); }

size_t OpenFile::read(uint64_t offset, char* to, size_t bytes) const {
  for (;;) {
    const ssize_t got = ::pread(fd_, to, bytes, static_cast<off_t>(offset));
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) return 0;
  }
}

HttpResponse json_response(const Json& json, int status) {
  HttpResponse response;
  response.status = status;
  response.body = json.dump() + "\n";
  return response;
}

namespace {

bool parse_number(std::string_view text, uint64_t& value) {
  if (text.empty() || text.size() > 18) return false;
  value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return true;
}

enum class RangeKind { none, part, unsatisfiable };

// RFC 9110 14.1.2: "bytes=first-[last]" or "bytes=-suffix". Anything else is ignored, as the RFC wants.
RangeKind parse_range(std::string_view header, uint64_t size, uint64_t& first, uint64_t& count) {
  constexpr std::string_view kUnit = "bytes=";
  if (header.substr(0, kUnit.size()) != kUnit) return RangeKind::none;
  header.remove_prefix(kUnit.size());
  const size_t dash = header.find('-');
  if (dash == std::string_view::npos) return RangeKind::none;
  const std::string_view left = header.substr(0, dash), right = header.substr(dash + 1);
  uint64_t last = 0;
  if (left.empty()) {
    if (!parse_number(right, last)) return RangeKind::none;
    if (last == 0 || size == 0) return RangeKind::unsatisfiable;
    count = last < size ? last : size;
    first = size - count;
    return RangeKind::part;
  }
  if (!parse_number(left, first) || (!right.empty() && !parse_number(right, last))) return RangeKind::none;
  if (!right.empty() && last < first) return RangeKind::none;
  if (first >= size) return RangeKind::unsatisfiable;
  if (right.empty() || last >= size) last = size - 1;
  count = last - first + 1;
  return RangeKind::part;
}

}  // namespace

HttpResponse file_response(const HttpRequest& request, const std::string& path, const std::string& type) {
  HttpResponse response;
  response.type = type;
  response.file = std::make_shared<const OpenFile>(path);
  response.file_bytes = response.file->size();
  response.with("Accept-Ranges", "bytes");
  const std::string range = request.header("range");
  if (range.empty()) return response;
  const uint64_t size = response.file->size();
  uint64_t first = 0, count = 0;
  switch (parse_range(range, size, first, count)) {
    case RangeKind::none: return response;
    case RangeKind::unsatisfiable: {
      HttpResponse refused = error_response(
          {416, "invalid_range",
           strf("Range: \"%.60s\" lies outside the file, which has %llu bytes", range.c_str(),
                static_cast<unsigned long long>(size)),
           "Range", range.substr(0, 60), strf("0 to %llu", static_cast<unsigned long long>(size == 0 ? 0 : size - 1))});
      refused.with("Content-Range", strf("bytes */%llu", static_cast<unsigned long long>(size)));
      return refused;
    }
    case RangeKind::part: break;
  }
  response.status = 206;
  response.file_offset = first;
  response.file_bytes = count;
  response.with("Content-Range",
                strf("bytes %llu-%llu/%llu", static_cast<unsigned long long>(first),
                     static_cast<unsigned long long>(first + count - 1), static_cast<unsigned long long>(size)));
  return response;
}

HttpResponse error_response(const ApiError& error) {
  const char* type = "invalid_request_error";
  if (error.status == 401 || error.status == 403) type = "authentication_error";
  if (error.status == 404) type = "not_found_error";
  if (error.status == 429 || error.status == 503) type = "overloaded_error";
  if (error.status == 500) type = "server_error";
  Json body = Json::object({{"message", error.message}, {"type", type}, {"code", error.code}});
  if (!error.param.empty()) body.set("param", error.param);
  if (!error.value.empty()) body.set("value", error.value);
  if (!error.allowed.empty()) body.set("allowed", error.allowed);
  HttpResponse response = json_response(Json::object({{"error", std::move(body)}}), error.status);
  if (error.retry_after > 0) response.with("Retry-After", std::to_string(error.retry_after));
  return response;
}

}  // namespace h3::server
