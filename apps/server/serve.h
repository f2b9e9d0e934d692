// h3 serve: an HTTP API and a page around one hot model.
#pragma once

#include <string>
#include <vector>

#include "apps/server/http_server.h"
#include "apps/server/job_book.h"
#include "apps/server/worker.h"

namespace h3::server {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 8317;  // 0 = any free one
  std::string api_key, rewriter, rewriter_key, conditioner, conditioner_key;
  std::string media_root, output_root;
  bool allow_urls = false;
  std::vector<std::string> allow_hosts;  // names clients may use in Host beside the address
  int max_streams = 64;
  HttpLimits http;
  BookOptions book;
  WorkerOptions worker;
  std::vector<std::string> arguments;  // of this process, to start the worker with
};

// Runs until SIGINT or SIGTERM. Returns the exit code.
int serve(const ServeOptions& options, Log& log);

std::string http_markdown();  // docs/http.md
Json openapi_json();

}  // namespace h3::server
