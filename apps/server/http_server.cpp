#include "apps/server/http_server.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>

#include "apps/server/connection.h"
#include "apps/server/connection_pool.h"
#include "base/error.h"

namespace h3::server {
namespace {

constexpr size_t kLongestPath = 1024;

// The request that a thread is working on; the parser's callbacks have no other way to carry it.
struct Current {
  Connection& connection;
  HttpRequest request;
  std::chrono::steady_clock::time_point start;
  bool gated = false, close = false;
  std::optional<HttpResponse> refusal;
};
thread_local Current* t_current = nullptr;

HttpRequest convert(const httplib::Request& from) {
  HttpRequest to;
  to.method = from.method;
  to.path = from.path;
  to.client = from.remote_addr;
  for (const auto& [name, value] : from.params) to.query.emplace(name, value);
  for (const auto& [name, value] : from.headers) {
    std::string lower = name;
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    to.headers.emplace(std::move(lower), value);
  }
  return to;
}

ApiError simple_error(int status, const char* code, std::string message) {
  return {status, code, std::move(message), "", "", "", 0};
}

// What the parser itself refuses.
ApiError protocol_error(int status) {
  switch (status) {
    case 408: return simple_error(408, "timeout", "the request did not arrive in time, send it faster");
    case 413: return simple_error(413, "body_too_large", "the body is larger than this server takes");
    case 414: return simple_error(414, "path_too_long", "the path is longer than 1024 characters");
    case 416: return simple_error(416, "invalid_range", "Range: it is not of the form bytes=first-last");
    case 417: return simple_error(417, "expectation_failed", "Expect: only 100-continue is known");
    default: return simple_error(status, "bad_request", "this is not a well-formed HTTP/1.1 request");
  }
}

uint64_t content_length(const HttpRequest& request, bool& valid) {
  const std::string text = request.header("content-length");
  valid = text.size() <= 18 && text.find_first_not_of("0123456789") == std::string::npos;
  return valid && !text.empty() ? std::stoull(text) : 0;
}

}  // namespace

class HttpServer::State final : public httplib::Server {
 public:
  State(const HttpLimits& limits, HttpHooks hooks) : limits_(limits), hooks_(std::move(hooks)) {
    new_task_queue = [this]() -> httplib::TaskQueue* { return new ConnectionPool(limits_.connections, busy_); };
    set_payload_max_length(limits_.body_bytes);
    set_keep_alive_timeout(static_cast<time_t>(limits_.idle_seconds));
    // Only SO_REUSEADDR: with the library's SO_REUSEPORT a second server would share the port unnoticed.
    set_socket_options([](socket_t fd) {
      const int on = 1;
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    set_expect_100_continue_handler([this](const httplib::Request& from, httplib::Response& to) {
      gate(from);
      if (!t_current->refusal) return 100;
      const int status = t_current->refusal->status;
      fill(to, std::move(*t_current->refusal));
      t_current->close = true;
      return status;
    });
    set_pre_routing_handler([this](const httplib::Request& from, httplib::Response& to) { return before(from, to); });
    const auto with_body = [this](const httplib::Request&, httplib::Response& to, const httplib::ContentReader& read) {
      after_body(to, read);
    };
    Post(".*", with_body);
    Put(".*", with_body);
    Patch(".*", with_body);
    set_error_handler([](const httplib::Request&, httplib::Response& to) {
      if (!to.body.empty() || to.content_provider_) return;
      t_current->close = true;
      to.set_content(error_response(protocol_error(to.status)).body, "application/json");
    });
    set_post_routing_handler([](const httplib::Request&, httplib::Response& to) {
      if (!t_current->close) return;
      to.headers.erase("Keep-Alive");
      to.headers.erase("Connection");
      to.set_header("Connection", "close");
    });
    set_logger([this](const httplib::Request& from, const httplib::Response& to) {
      if (!t_current->gated) t_current->request = convert(from);
      const auto time = std::chrono::steady_clock::now() - t_current->start;
      if (hooks_.log) hooks_.log(t_current->request, to.status, std::chrono::duration<double>(time).count());
    });
    set_default_headers({{"X-Content-Type-Options", "nosniff"}});
  }

  int open(const std::string& host, int port) {
    const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
    if (bound < 0) {
      fail(Code::io, "port: %d on %s is in use or not allowed, choose another one, for example --port %d", port,
           host.c_str(), port < 65000 ? port + 1 : 8317);
    }
    ::listen(svr_sock_, 511);  // the library asks for 5, which a burst of clients overruns
    return bound;
  }
  void end() {
    stopping_ = true;
    stop();
  }
  int busy() const { return busy_; }

 private:
  bool process_and_close_socket(socket_t fd) override {
    Connection connection(fd, limits_);
    for (;;) {
      if (!await_request(connection)) return true;
      Current current{connection, {}, std::chrono::steady_clock::now(), false, false, std::nullopt};
      t_current = &current;
      connection.begin_head();
      bool closed = false;
      const bool ok = process_request(connection, false, closed, [&](httplib::Request& request) { prepare(request); });
      t_current = nullptr;
      if (ok && !closed && !current.close && !stopping_) continue;
      connection.linger();
      return ok;
    }
  }

  bool await_request(Connection& connection) {
    constexpr double kSlice = 0.25;
    for (double waited = 0;; waited += kSlice) {
      const int state = connection.wait_readable(kSlice);
      if (state != 0) return state > 0 && !stopping_;
      const bool crowded = busy_ * 4 > limits_.connections * 3;
      if (stopping_ || waited >= (crowded ? 1 : limits_.idle_seconds)) return false;
    }
  }

  // Between the head of a request and everything else.
  void prepare(httplib::Request& request) {
    // Ranges, compression and form data are ours: the parser's versions cost memory or stack in proportion to what a
    // client sends.
    request.ranges.clear();
    request.headers.erase("Accept-Encoding");
    const auto type = request.headers.find("Content-Type");
    if (type != request.headers.end()) {
      request.headers.emplace("X-H3-Content-Type", type->second);
      request.headers.erase(type);
    }
    const std::string length = request.get_header_value("Content-Length");
    const bool known =
        !length.empty() && length.size() <= 18 && length.find_first_not_of("0123456789") == std::string::npos;
    t_current->connection.begin_body(known ? std::min<uint64_t>(std::stoull(length), limits_.body_bytes)
                                           : limits_.body_bytes);
  }

  void gate(const httplib::Request& from) {
    if (t_current->gated) return;
    t_current->gated = true;
    HttpRequest& request = t_current->request;
    request = convert(from);
    const auto type = request.headers.find("x-h3-content-type");
    if (type != request.headers.end()) {
      request.headers["content-type"] = type->second;
      request.headers.erase(type);
    }
    Connection& connection = t_current->connection;
    request.disconnected = [this, &connection] { return stopping_ || connection.gone(); };
    t_current->refusal = refuse(request);
  }

  std::optional<HttpResponse> refuse(HttpRequest& request) {
    if (request.path.size() > kLongestPath) return error_response(protocol_error(414));
    bool valid = false;
    const uint64_t length = content_length(request, valid);
    const bool chunked = request.headers.count("transfer-encoding") > 0;
    if (!valid || (chunked && request.headers.count("content-length") > 0)) return error_response(protocol_error(400));
    if (length > limits_.body_bytes) {
      return error_response(
          {413, "body_too_large",
           strf("the body has %llu bytes, at most %zu are allowed; send smaller pictures or start the "
                "server with a larger --max-body",
                static_cast<unsigned long long>(length), limits_.body_bytes),
           "Content-Length", std::to_string(length), strf("0 to %zu", limits_.body_bytes), 0});
    }
    return hooks_.gate ? hooks_.gate(request) : std::nullopt;
  }

  HandlerResponse before(const httplib::Request& from, httplib::Response& to) {
    gate(from);
    HttpRequest& request = t_current->request;
    const bool body = request.headers.count("transfer-encoding") > 0 ||
                      (request.headers.count("content-length") > 0 && request.header("content-length") != "0");
    if (t_current->refusal) {
      t_current->close = body;
      fill(to, std::move(*t_current->refusal));
      return HandlerResponse::Handled;
    }
    const bool reads = request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
    if (body && reads) return HandlerResponse::Unhandled;
    t_current->close = body;
    answer(to);
    return HandlerResponse::Handled;
  }

  void after_body(httplib::Response& to, const httplib::ContentReader& read) {
    std::string& body = t_current->request.body;
    bool large = false, crowded = false;
    size_t reserved = 0;
    const bool complete = read([&](const char* data, size_t bytes) {
      large = body.size() + bytes > limits_.body_bytes;
      reserved += bytes;
      crowded = (bodies_ += bytes) > limits_.all_bodies_bytes;
      if (large || crowded) return false;
      body.append(data, bytes);
      return true;
    });
    if (complete) {
      answer(to);
    } else {
      t_current->close = true;
      HttpResponse refused =
          error_response(crowded ? ApiError{503, "busy", "too many large requests at once, try again", "", "", "", 2}
                                 : protocol_error(large ? 413 : 408));
      fill(to, std::move(refused));
    }
    bodies_ -= reserved;
  }

  void answer(httplib::Response& to) { fill(to, hooks_.handle(t_current->request)); }

  void fill(httplib::Response& to, HttpResponse&& from) {
    to.status = from.status;
    for (const auto& [name, value] : from.headers) to.set_header(name, value);
    if (from.close) t_current->close = true;
    // Runs when the response is destroyed, however the transfer ended.
    const std::shared_ptr<void> end(nullptr, [done = std::move(from.on_end)](void*) {
      if (done) done();
    });
    if (from.stream) {
      Connection& connection = t_current->connection;
      to.set_chunked_content_provider(
          from.type, [end, &connection, stream = std::move(from.stream)](size_t, httplib::DataSink& sink) {
            const StreamWriter writer{[&](std::string_view text) { return sink.write(text.data(), text.size()); },
                                      [&] { return !connection.gone(); }};
            if (!stream(writer)) sink.done();
            return true;
          });
    } else if (from.file && from.file_bytes > 0) {
      const uint64_t start = from.file_offset;
      to.set_content_provider(from.file_bytes, from.type,
                              [end, start, file = from.file](size_t offset, size_t length, httplib::DataSink& sink) {
                                char piece[65536];
                                const size_t got = file->read(start + offset, piece, std::min(length, sizeof piece));
                                return got > 0 && sink.write(piece, got);
                              });
    } else {
      to.set_content(std::move(from.body), from.type);
    }
  }

  const HttpLimits limits_;
  const HttpHooks hooks_;
  std::atomic<int> busy_{0};
  std::atomic<size_t> bodies_{0};
  std::atomic<bool> stopping_{false};
};

HttpServer::HttpServer(const HttpLimits& limits, HttpHooks hooks)
    : state_(std::make_unique<State>(limits, std::move(hooks))) {
  // One descriptor per connection and some for files; what the system allows.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 8192);
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
}

HttpServer::~HttpServer() = default;
int HttpServer::bind(const std::string& host, int port) { return state_->open(host, port); }
void HttpServer::run() { state_->listen_after_bind(); }
void HttpServer::stop() { state_->end(); }
int HttpServer::connections() const { return state_->busy(); }

}  // namespace h3::server
