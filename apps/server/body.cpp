#include "apps/server/body.h"

#include <array>

#include "apps/server/http.h"
#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace h3::server {
namespace {

constexpr size_t kMostParts = 128, kPartHead = 4096, kMostBoundary = 70;  // RFC 2046 5.1.1 for the last

// Objects that only group fields; vLLM-Omni sends extra_params as JSON text.
constexpr const char* kContainers[] = {"target", "sample_params", "extra_params", "diffusers_kwargs"};

[[noreturn]] void bad(const std::string& message, const std::string& param = "") {
  throw ApiError{400, "invalid_body", message, param, "", "", 0};
}

Json parse_json(std::string_view text, const char* what) {
  try {
    return Json::parse(text, what);
  } catch (const Error& error) {
    bad(error.what());
  }
}

bool is_container(const std::string& name) {
  for (const char* container : kContainers) {
    if (name == container) return true;
  }
  return false;
}

void add(std::vector<Given>& out, const std::string& name, const Json& value, bool text) {
  if (!is_container(name)) {
    out.push_back({name, value, nullptr, text});
    return;
  }
  if (value.is_null()) return;
  const Json object = value.is_string() ? parse_json(value.as_string(), name.c_str()) : value;
  if (!object.is_object()) {
    throw ApiError{
        400, "invalid_request", name + ": it must be an object", name, value.dump().substr(0, 80), "an object", 0};
  }
  for (const auto& [key, member] : object.members()) out.push_back({name + "." + key, member, nullptr, false});
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The parameter `name` of a header value such as: form-data; name="a"; filename="b.png"
bool parameter(std::string_view header, std::string_view name, std::string& value) {
  size_t at = header.find(';');
  while (at != std::string_view::npos) {
    ++at;
    while (at < header.size() && (header[at] == ' ' || header[at] == '\t')) ++at;
    const size_t equals = header.find('=', at);
    if (equals == std::string_view::npos) return false;
    const std::string key = lower(trimmed(header.substr(at, equals - at)));
    std::string found;
    size_t next = equals + 1;
    if (next < header.size() && header[next] == '"') {
      for (++next; next < header.size() && header[next] != '"'; ++next) {
        if (header[next] == '\\' && next + 1 < header.size()) ++next;
        found += header[next];
      }
      at = header.find(';', next);
    } else {
      at = header.find(';', next);
      found = trimmed(header.substr(next, at == std::string_view::npos ? at : at - next));
    }
    if (key == name) {
      value = std::move(found);
      return true;
    }
  }
  return false;
}

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_sequence(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

Part parse_head(std::string_view head) {
  Part part;
  bool named = false;
  while (!head.empty()) {
    size_t end = head.find("\r\n");
    if (end == std::string_view::npos) end = head.size();
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(head.size(), end + 2));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) bad("multipart: a header of a part has no colon");
    const std::string name = lower(trimmed(line.substr(0, colon)));
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (name == "content-disposition") {
      named = parameter(value, "name", part.name);
      part.is_file = parameter(value, "filename", part.file_name);
    } else if (name == "content-type") {
      part.type = value;
    }
  }
  if (!named || part.name.empty() || part.name.size() > 100 || !valid_utf8(part.name)) {
    bad("multipart: a part has no name, give each one Content-Disposition: form-data; name=\"...\"");
  }
  if (!valid_utf8(part.file_name)) part.file_name.clear();
  return part;
}

// Text of a form: JSON where it reads as a number, a boolean, null, an object or an array; otherwise a string.
Json form_value(std::string_view text) {
  if (!valid_utf8(text)) bad("a field of the form is not valid UTF-8");
  const std::string_view inner = trimmed(text);
  const bool structured = !inner.empty() && (inner.front() == '{' || inner.front() == '[');
  if (!structured) return Json(text);
  try {
    return Json::parse(inner, "form");
  } catch (const Error&) {
    return Json(text);
  }
}

std::string decode_form(std::string_view text) {
  std::string out;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      out += ' ';
    } else if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<Given> parse_form(std::string_view body) {
  std::vector<Given> fields;
  while (!body.empty()) {
    const size_t end = std::min(body.size(), body.find('&'));
    const std::string_view pair = body.substr(0, end);
    body.remove_prefix(std::min(body.size(), end + 1));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.size(), pair.find('='));
    const std::string name = decode_form(pair.substr(0, equals));
    if (name.empty() || !valid_utf8(name) || fields.size() >= kMostParts) {
      bad("the body is neither JSON nor a form; send Content-Type: application/json with a JSON object");
    }
    add(fields, name, form_value(decode_form(pair.substr(std::min(pair.size(), equals + 1)))), true);
  }
  return fields;
}

std::vector<Given> parse_json_body(std::string_view body) {
  const Json json = parse_json(body, "the body");
  if (!json.is_object()) bad("the body must be a JSON object, for example {\"prompt\": \"a red ball bounces\"}");
  std::vector<Given> fields;
  for (const auto& [name, value] : json.members()) add(fields, name, value, false);
  return fields;
}

}  // namespace

std::vector<Part> parse_multipart(const std::string& content_type, std::string_view body) {
  std::string boundary;
  if (!parameter(content_type, "boundary", boundary) || boundary.empty() || boundary.size() > kMostBoundary) {
    bad("Content-Type: multipart/form-data needs a boundary of 1 to 70 characters");
  }
  const std::string mark = "\r\n--" + boundary;
  std::vector<Part> parts;
  // The first boundary may open the body without a line break before it.
  const bool opens = body.substr(0, mark.size() - 2) == std::string_view(mark).substr(2);
  size_t at = opens ? 0 : body.find(mark);
  if (at == std::string_view::npos) bad("multipart: the boundary does not appear in the body");
  at += opens ? mark.size() - 2 : mark.size();
  for (;;) {
    if (body.substr(at, 2) == "--") return parts;
    if (body.substr(at, 2) != "\r\n") bad("multipart: a boundary is not followed by a line break");
    at += 2;
    const size_t blank = body.substr(at, 2) == "\r\n" ? at : body.find("\r\n\r\n", at);
    if (blank == std::string_view::npos || blank - at > kPartHead) bad("multipart: the headers of a part do not end");
    Part part = parse_head(body.substr(at, blank - at));
    const size_t start = blank == at ? at + 2 : blank + 4;
    const size_t end = body.find(mark, start);
    if (end == std::string_view::npos) bad("multipart: part \"" + part.name + "\" is cut off", part.name);
    part.bytes = body.substr(start, end - start);
    parts.push_back(std::move(part));
    if (parts.size() > kMostParts) bad("multipart: more than 128 parts");
    at = end + mark.size();
  }
}

std::vector<Given> parse_body(const std::string& content_type, std::string_view body) {
  const std::string type = lower(trimmed(std::string_view(content_type).substr(0, content_type.find(';'))));
  if (type == "multipart/form-data") {
    std::vector<Given> fields;
    for (const Part& part : parse_multipart(content_type, body)) {
      if (part.is_file) {
        auto file = std::make_shared<FilePart>(FilePart{part.file_name, part.type, part.bytes});
        fields.push_back({part.name, {}, std::move(file), true});
      } else {
        add(fields, part.name, form_value(part.bytes), true);
      }
    }
    return fields;
  }
  const size_t first = body.find_first_not_of(" \t\r\n");
  // curl -d sends JSON as a form unless it is told otherwise.
  const bool looks_json = first != std::string_view::npos && body[first] == '{';
  const bool form = type == "application/x-www-form-urlencoded";
  if (type == "application/json" || type.empty() || (form && looks_json)) {
    if (first == std::string_view::npos) bad("the body is empty, send a JSON object with at least a prompt");
    return parse_json_body(body);
  }
  if (form) return parse_form(body);
  throw ApiError{
      415,
      "unsupported_media_type",
      "Content-Type: \"" + type.substr(0, 60) + "\" is not possible, send application/json or multipart/form-data",
      "Content-Type",
      type.substr(0, 60),
      "application/json, multipart/form-data, "
      "application/x-www-form-urlencoded",
      0};
}

bool decode_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  bytes.reserve(text.size() / 4 * 3);
  uint32_t group = 0;
  int held = 0;
  size_t padding = 0, symbols = 0;
  for (const char c : text) {
    if (c == '\n' || c == '\r' || c == ' ') continue;
    if (c == '=') {
      if (++padding > 2) return false;
      continue;
    }
    if (padding > 0) return false;
    int value = -1;
    if (c >= 'A' && c <= 'Z') value = c - 'A';
    if (c >= 'a' && c <= 'z') value = c - 'a' + 26;
    if (c >= '0' && c <= '9') value = c - '0' + 52;
    if (c == '+' || c == '-') value = 62;
    if (c == '/' || c == '_') value = 63;
    if (value < 0) return false;
    ++symbols;
    group = group << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes += static_cast<char>(group >> held & 0xff);
    }
  }
  return symbols > 0 && symbols % 4 != 1 && (padding == 0 || (symbols + padding) % 4 == 0);
}

std::string encode_base64(std::string_view bytes) {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += i + j <= bytes.size() ? kAlphabet[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

}  // namespace h3::server
