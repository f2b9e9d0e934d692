// From flags to the server's options.
#include "apps/h3/serve.h"

#include <cstdio>

#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "base/error.h"

#if H3_HAVE_SERVER
#include "apps/server/serve.h"
#endif

namespace h3 {

#if H3_HAVE_SERVER
namespace {

int checked(const Arguments& arguments, const char* name, int fallback, int least, int most) {
  const int value = arguments.whole(name, fallback);
  if (value < least || value > most) {
    fail(Code::usage, "--%s: %d is not allowed, give %d to %d, for example %d", name, value, least, most, fallback);
  }
  return value;
}

server::ServeOptions serve_options(const Arguments& arguments) {
  server::ServeOptions options;
  options.host = arguments.text("host", options.host);
  options.port = checked(arguments, "port", options.port, 0, 65535);
  options.api_key = arguments.text("api-key");
  options.rewriter = arguments.text("rewriter");
  options.rewriter_key = arguments.text("rewriter-key");
  options.conditioner = arguments.text("conditioner");
  options.conditioner_key = arguments.text("conditioner-key");
  options.media_root = arguments.text("media-root");
  options.output_root = arguments.text("output-root");
  options.allow_urls = arguments.on("allow-urls");
  options.allow_hosts = arguments.all("allow-host");
  options.max_streams = checked(arguments, "max-streams", options.max_streams, 1, 800);
  options.http.body_bytes = static_cast<size_t>(checked(arguments, "max-body", 64, 1, 4096)) << 20;
  options.book.data_dir = arguments.text("data-dir", "h3-data");
  options.book.max_queue = checked(arguments, "max-queue", options.book.max_queue, 1, 10000);
  options.book.keep_jobs = checked(arguments, "keep-jobs", options.book.keep_jobs, 1, 1000000);
  options.book.keep_hours = checked(arguments, "keep-hours", 168, 1, 876000);
  options.book.keep_bytes = static_cast<int64_t>(checked(arguments, "keep-gigabytes", 20, 1, 1000000)) << 30;
  options.worker.session = session_options(arguments);
  options.worker.session.models.insert(options.worker.session.models.begin(), arguments.positional.begin(),
                                       arguments.positional.end());
  options.worker.nice = checked(arguments, "nice", options.worker.nice, 0, 19);
  options.arguments = arguments.command_line;
  options.arguments.insert(options.arguments.begin() + 2, "--worker");  // h3 serve --worker ...
  return options;
}

}  // namespace

int run_serve(Arguments& arguments) { return run_serve(arguments, {}); }

int run_serve(Arguments& arguments, const server::WorkerHooks& hooks) {
  if (arguments.on("markdown")) {
    std::fputs(server::http_markdown().c_str(), stdout);
    return 0;
  }
  Terminal terminal(level_of(arguments));
  server::ServeOptions options = serve_options(arguments);
  options.worker.hooks = hooks;
  if (arguments.on("worker")) return server::run_worker(options.worker, terminal.log());
  return server::serve(options, terminal.log());
}
#else
int run_serve(Arguments&) {
  fail(Code::usage,
       "serve: this build has no server; install libcpp-httplib-dev, libsqlite3-dev and prometheus-cpp-dev and build "
       "again");
}
#endif

}  // namespace h3
