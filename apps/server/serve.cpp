#include "apps/server/serve.h"

#include <pthread.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

#include "apps/server/app.h"
#include "apps/server/paths.h"
#include "apps/server/routes.h"
#include "base/error.h"

namespace h3::server {
namespace {

bool same_text(const std::string& a, const std::string& b) {
  // Takes the same time wherever they differ: the key must not be guessed letter by letter.
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ (i < b.size() ? b[i] : 0));
  }
  return difference == 0;
}

std::string host_of(const std::string& header) {
  if (!header.empty() && header[0] == '[') return header.substr(0, header.find(']') + 1);
  return header.substr(0, header.find(':'));
}

bool is_numeric_host(const std::string& host) {
  return !host.empty() && (host[0] == '[' || host.find_first_not_of("0123456789.") == std::string::npos);
}

// A page elsewhere on the web can make a browser talk to this server. It cannot forge Host and Origin, though: a name
// that was rebound to this address gives itself away by the first, another site by the second.
std::optional<HttpResponse> check_site(const ServeOptions& options, const HttpRequest& request) {
  const std::string host = host_of(request.header("host")), origin = request.header("origin");
  bool known = host == "localhost" || host == options.host || is_numeric_host(host) || !options.api_key.empty();
  for (const std::string& name : options.allow_hosts) known = known || host == name;
  if (!known) {
    return error_response({403, "host_not_allowed",
                           "Host: \"" + host.substr(0, 80) +
                               "\" is not a name of this server; start it with "
                               "--allow-host " +
                               host.substr(0, 80) + " if it is",
                           "Host", host.substr(0, 80), "an address, localhost or an --allow-host", 0});
  }
  const size_t mark = origin.find("://");
  if (origin.empty() || (mark != std::string::npos && origin.substr(mark + 3) == request.header("host")))
    return std::nullopt;
  return error_response({403, "origin_not_allowed", "Origin: \"" + origin.substr(0, 80) + "\" is another site",
                         "Origin", origin.substr(0, 80), "this server's own page, or no Origin", 0});
}

std::optional<HttpResponse> check_key(const ServeOptions& options, const HttpRequest& request) {
  if (options.api_key.empty()) return std::nullopt;
  std::string given = request.header("x-api-key");
  const std::string bearer = request.header("authorization");
  if (bearer.size() > 7 && (bearer.rfind("Bearer ", 0) == 0 || bearer.rfind("bearer ", 0) == 0))
    given = bearer.substr(7);
  if (same_text(given, options.api_key)) return std::nullopt;
  HttpResponse response = error_response(
      {401, "invalid_api_key",
       given.empty() ? "Authorization: a key is needed, send Bearer KEY" : "Authorization: the key is not known",
       "Authorization", "", "Bearer KEY", 0});
  response.with("WWW-Authenticate", "Bearer");
  return response;
}

class Service {
 public:
  explicit Service(App& app) : app_(app) {}

  std::optional<HttpResponse> gate(HttpRequest& request) {
    if (std::optional<HttpResponse> refused = check_site(app_.options, request)) return refused;
    std::string allowed;
    const Route* const route = find_route(request, allowed);
    if (route == nullptr && !allowed.empty()) {
      HttpResponse response = request.method == "OPTIONS"
                                  ? HttpResponse{.status = 204}
                                  : error_response({405, "method_not_allowed",
                                                    request.method + " is not possible on " +
                                                        request.path.substr(0, 100) + ", use " + allowed,
                                                    "method", request.method, allowed, 0});
      return response.with("Allow", allowed);
    }
    if (route == nullptr) {
      return error_response({404, "not_found",
                             "there is nothing at " + request.path.substr(0, 100) + "; see /openapi.json", "path",
                             request.path.substr(0, 100), "the paths in /openapi.json", 0});
    }
    if (route->open) return std::nullopt;
    return check_key(app_.options, request);
  }

  HttpResponse handle(HttpRequest& request) {
    std::string allowed;
    const Route* const route = find_route(request, allowed);
    try {
      return route->handler(app_, request);
    } catch (const ApiError& error) {
      return error_response(error);
    } catch (const Error& error) {
      app_.log.write(LogLevel::error, "%s %s: %s", request.method.c_str(), request.path.c_str(), error.what());
      const bool usage = error.code() == Code::usage;
      return error_response(
          {usage ? 400 : 503, usage ? "invalid_request" : "unavailable", error.what(), "", "", "", usage ? 0 : 10});
    } catch (const std::bad_alloc&) {
      return error_response(
          {503, "out_of_memory", "the server is out of memory, try a smaller request", "", "", "", 10});
    } catch (const std::exception& error) {
      app_.log.write(LogLevel::error, "%s %s: %s", request.method.c_str(), request.path.c_str(), error.what());
      return error_response({500, "internal", error.what(), "", "", "", 0});
    }
  }

  void log(const HttpRequest& request, int status, double seconds) {
    app_.metrics.request(request.route.empty() ? "other" : std::string(request.route),
                         request.route.empty() ? "" : request.method, status, seconds);
    app_.log.write(LogLevel::debug, "%s %s %s %d %.1f ms", request.client.c_str(), request.method.c_str(),
                   request.path.c_str(), status, seconds * 1000);
  }

 private:
  App& app_;
};

// Waits for a signal, or for the server to end on its own.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);  // before any other thread exists: they inherit it
    std::signal(SIGPIPE, SIG_IGN);
  }
  void start(HttpServer& http) {
    thread_ = std::thread([this, &http] {
      int signal = 0;
      sigwait(&set_, &signal);
      http.stop();
    });
  }
  void stop() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }

 private:
  sigset_t set_;
  std::thread thread_;
};

std::string absolute(const std::string& path) {
  make_folders(path);
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), std::free);
  if (!resolved) fail(Code::usage, "data-dir: %s is not a folder", path.c_str());
  return resolved.get();
}

}  // namespace

App::App(const ServeOptions& serve_options, Log& server_log)
    : options(serve_options),
      log(server_log),
      facts(read_facts(options.worker.session)),
      media(options.media_root),
      outputs(options.output_root),
      rewriter(options.rewriter, options.rewriter_key),
      conditioner(options.conditioner, options.conditioner_key),
      book(options.book, estimator, log),
      dispatcher({options.arguments, 300, facts.conditioner && facts.tokenizer}, book,
                 {outputs, rewriter, conditioner, estimator, metrics}, log),
      forecast(planners(options.worker.session)) {}

int serve(const ServeOptions& given, Log& log) {
  Signals signals;
  ServeOptions options = given;
  options.book.data_dir = absolute(given.book.data_dir);
  App app(options, log);
  Service service(app);
  HttpServer http(options.http, {[&](HttpRequest& request) { return service.gate(request); },
                                 [&](HttpRequest& request) { return service.handle(request); },
                                 [&](const HttpRequest& request, int status, double seconds) {
                                   service.log(request, status, seconds);
                                 }});
  app.connections = [&] { return http.connections(); };
  const int port = http.bind(options.host, options.port);
  std::string hopeless;
  app.dispatcher.on_hopeless = [&](const std::string& message) {
    hopeless = message;
    http.stop();
  };
  const bool six = options.host.find(':') != std::string::npos;
  std::printf("h3 serve: http://%s%s%s:%d/ with %s, jobs in %s\n", six ? "[" : "", options.host.c_str(), six ? "]" : "",
              port, app.facts.name.c_str(), options.book.data_dir.c_str());
  std::fflush(stdout);
  const bool local = options.host == "localhost" || options.host.rfind("127.", 0) == 0 || options.host == "::1";
  if (!local && options.api_key.empty()) {
    log.write(LogLevel::warn, "anybody who reaches %s can use this server, give it an --api-key", options.host.c_str());
  }
  signals.start(http);
  app.dispatcher.start();
  http.run();
  app.dispatcher.stop();
  signals.stop();
  if (!hopeless.empty()) fail(Code::usage, "%s", hopeless.c_str());
  return 0;
}

}  // namespace h3::server
