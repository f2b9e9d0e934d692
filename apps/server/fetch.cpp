#include "apps/server/fetch.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netdb.h>

#include <chrono>
#include <cstring>

#include "base/error.h"

namespace h3::server {
namespace {

struct Network {
  const char* prefix;
  int bits;
};

// Loopback, private, link-local, shared, documentation, benchmarking, multicast and reserved networks (RFC 6890).
constexpr Network kClosed4[] = {{"0.0.0.0", 8},      {"10.0.0.0", 8},     {"100.64.0.0", 10}, {"127.0.0.0", 8},
                                {"169.254.0.0", 16}, {"172.16.0.0", 12},  {"192.0.0.0", 24},  {"192.0.2.0", 24},
                                {"192.88.99.0", 24}, {"192.168.0.0", 16}, {"198.18.0.0", 15}, {"198.51.100.0", 24},
                                {"203.0.113.0", 24}, {"224.0.0.0", 4},    {"240.0.0.0", 4}};
constexpr Network kOpen6[] = {{"2000::", 3}};                                         // the only range that is routed
constexpr Network kClosed6[] = {{"2001:db8::", 32}, {"2002::", 16}, {"2001::", 32}};  // documentation, 6to4, Teredo

bool inside(const unsigned char* address, int family, const Network& network) {
  unsigned char prefix[16] = {};
  ::inet_pton(family, network.prefix, prefix);
  for (int bit = 0; bit < network.bits; ++bit) {
    const int mask = 0x80 >> (bit % 8);
    if ((address[bit / 8] & mask) != (prefix[bit / 8] & mask)) return false;
  }
  return true;
}

std::string resolve(const Url& url, bool public_only) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(url.host.c_str(), nullptr, &hints, &found);
  if (error != 0) fail(Code::io, "%s cannot be looked up: %s", url.host.c_str(), ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, ::freeaddrinfo);
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST] = "";
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    if (!public_only || is_public_address(text)) return text;
  }
  fail(Code::usage, "%s is not a public address, and only public ones are fetched", url.host.c_str());
}

Fetched fetch_once(const std::string& address, const FetchOptions& options, std::string& redirect) {
  const Url url = parse_url(address);
  const std::string numeric = resolve(url, options.public_only);
  const bool six = url.host.find(':') != std::string::npos;
  httplib::Client client(url.scheme + "://" + (six ? "[" + url.host + "]" : url.host) + ":" + std::to_string(url.port));
  if (!client.is_valid()) fail(Code::usage, "%s is not an address that can be fetched", address.substr(0, 200).c_str());
  client.set_hostname_addr_map({{url.host, numeric}});
  client.set_connection_timeout(std::chrono::seconds(5));
  const auto time = std::chrono::milliseconds(static_cast<int64_t>(options.seconds * 1000));
  client.set_read_timeout(time);
  client.set_write_timeout(time);
  client.set_follow_location(false);
  client.set_keep_alive(false);

  httplib::Request request;
  request.method = options.method;
  request.path = url.path;
  for (const auto& [name, value] : options.headers) request.set_header(name, value);
  if (!options.type.empty()) request.set_header("Content-Type", options.type);
  request.body = options.body;
  Fetched fetched;
  bool large = false;
  const auto deadline = std::chrono::steady_clock::now() + time;
  request.content_receiver = [&](const char* data, size_t bytes, uint64_t, uint64_t) {
    large = fetched.body.size() + bytes > options.most_bytes;
    if (large || std::chrono::steady_clock::now() > deadline) return false;
    fetched.body.append(data, bytes);
    return true;
  };
  const httplib::Result result = client.send(request);
  if (large) fail(Code::io, "%s is larger than %zu bytes", url.host.c_str(), options.most_bytes);
  if (!result) fail(Code::io, "%s cannot be reached: %s", url.host.c_str(), httplib::to_string(result.error()).c_str());
  fetched.status = result->status;
  fetched.type = result->get_header_value("Content-Type");
  if (result->status >= 300 && result->status < 400) redirect = result->get_header_value("Location");
  return fetched;
}

}  // namespace

bool is_public_address(const std::string& numeric) {
  unsigned char bytes[16];
  if (::inet_pton(AF_INET, numeric.c_str(), bytes) == 1) {
    for (const Network& network : kClosed4) {
      if (inside(bytes, AF_INET, network)) return false;
    }
    return true;
  }
  if (::inet_pton(AF_INET6, numeric.c_str(), bytes) != 1) return false;
  for (const Network& network : kClosed6) {
    if (inside(bytes, AF_INET6, network)) return false;
  }
  return inside(bytes, AF_INET6, kOpen6[0]);
}

Url parse_url(const std::string& url) {
  Url out;
  const size_t mark = url.find("://");
  out.scheme = url.substr(0, mark == std::string::npos ? 0 : mark);
  for (char& c : out.scheme) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (out.scheme != "http" && out.scheme != "https") {
    fail(Code::usage, "\"%s\" is not an http or https address", url.substr(0, 200).c_str());
  }
  for (const char c : url) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f || c == '\\') {
      fail(Code::usage, "\"%s\" has a character that addresses cannot have", url.substr(0, 200).c_str());
    }
  }
  const size_t start = mark + 3, slash = url.find_first_of("/?#", start);
  std::string host = url.substr(start, slash == std::string::npos ? slash : slash - start);
  out.path = slash == std::string::npos ? "/" : url.substr(slash);
  if (out.path[0] != '/') out.path = "/" + out.path;
  out.path = out.path.substr(0, out.path.find('#'));
  out.port = out.scheme == "https" ? 443 : 80;
  const size_t bracket = host.find(']');
  const size_t colon = host.find(':', host[0] == '[' && bracket != std::string::npos ? bracket : 0);
  if (colon != std::string::npos) {
    const std::string port = host.substr(colon + 1);
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos) host.clear();
    if (!host.empty()) out.port = std::stoi(port);
    host = host.substr(0, colon);
  }
  if (!host.empty() && host[0] == '[') host = bracket == std::string::npos ? "" : host.substr(1, bracket - 1);
  if (host.empty() || host.find('@') != std::string::npos || out.port < 1 || out.port > 65535) {
    fail(Code::usage, "\"%s\" has no usable host", url.substr(0, 200).c_str());
  }
  out.host = host;
  return out;
}

Fetched fetch(const std::string& url, const FetchOptions& options) {
  std::string next = url;
  for (int hop = 0; hop < 4; ++hop) {
    std::string redirect;
    Fetched fetched = fetch_once(next, options, redirect);
    if (redirect.empty()) return fetched;
    if (redirect[0] == '/') {
      const Url base = parse_url(next);
      redirect = next.substr(0, next.find('/', next.find("://") + 3)) + redirect;
    }
    next = redirect;
  }
  fail(Code::io, "%s redirects too often", url.substr(0, 200).c_str());
}

}  // namespace h3::server
