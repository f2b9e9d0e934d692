// HTTP/1.1 over cpp-httplib's parser, with our own connections: deadlines for every phase, byte budgets, a pool that
// grows with the load, and a way to see that a client has gone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/server/http.h"

namespace h3::server {

struct HttpLimits {
  size_t body_bytes = size_t{64} << 20;         // of one request
  size_t all_bodies_bytes = size_t{512} << 20;  // of all requests that are being read
  int connections = 900;                        // threads; more connections are answered 503
  double header_seconds = 10;                   // from the first byte of a request to the end of its headers
  double body_seconds = 30;                     // for a small body; larger ones get body_seconds + bytes / slowest_rate
  double slowest_rate = 64 * 1024;              // bytes per second
  double idle_seconds = 30;                     // between requests of one connection; 1 when the pool is nearly full
  double write_seconds = 20;                    // without any byte taken by the client
};

struct HttpHooks {
  // Sees the head of a request before its body is read; an answer ends it there.
  std::function<std::optional<HttpResponse>(HttpRequest& head)> gate;
  std::function<HttpResponse(HttpRequest& request)> handle;
  std::function<void(const HttpRequest& request, int status, double seconds)> log;
};

class HttpServer {
 public:
  HttpServer(const HttpLimits& limits, HttpHooks hooks);
  ~HttpServer();
  // Error(usage | io) when the address cannot be used. Port 0 takes a free one. Returns the port.
  int bind(const std::string& host, int port);
  void run();   // until stop()
  void stop();  // from any thread; open streams end
  int connections() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace h3::server
