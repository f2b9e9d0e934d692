// The body of a request as a flat list of fields, whatever way it was sent: JSON, multipart/form-data or a URL-encoded
// form.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace h3::server {

struct FilePart {
  std::string name, type;  // as the client calls it; never used as a path
  std::string_view bytes;  // of the body that was parsed, which outlives it: no clip is copied on its way to the disk
};

struct Given {
  std::string name;  // members of known containers are dotted: "target.short_edge"
  Json value;        // null when `file` is set
  std::shared_ptr<const FilePart> file;
  bool text = false;  // came from a form, where numbers are text too
};

// Throws ApiError 400 or 415.
std::vector<Given> parse_body(const std::string& content_type, std::string_view body);

// multipart/form-data (RFC 7578). Throws ApiError 400.
struct Part {
  std::string name, file_name, type;
  bool is_file = false;
  std::string_view bytes;  // of the body
};
std::vector<Part> parse_multipart(const std::string& content_type, std::string_view body);

// Standard or URL-safe alphabet, padding optional, line breaks skipped. False when it is something else.
bool decode_base64(std::string_view text, std::string& bytes);
std::string encode_base64(std::string_view bytes);

}  // namespace h3::server
