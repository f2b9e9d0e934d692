// Every endpoint, in one table: dispatch, /openapi.json and docs/http.md are made from it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "apps/server/app.h"

namespace h3::server {

struct Route {
  const char* method;
  const char* path;  // "/v1/videos/{id}"
  const char* group;
  HttpResponse (*handler)(App& app, const HttpRequest& request);
  bool open;            // answered without the key
  const char* body;     // "clip": fields.h; otherwise JSON fields in words, "" = none
  const char* query;    // parameters in words, separated by "; "
  const char* answer;   // what a 2xx answer is
  const char* summary;  // one sentence
  const char* errors;   // "400, 404"
};

std::span<const Route> routes();

// The route of a request, with request.matched and request.route set; nullptr and the methods that the path has
// otherwise ("" when there is no such path).
const Route* find_route(HttpRequest& request, std::string& allowed);

// endpoints/*.cpp
HttpResponse create_video(App& app, const HttpRequest& request);
HttpResponse create_video_sync(App& app, const HttpRequest& request);
HttpResponse create_embeddings(App& app, const HttpRequest& request);
HttpResponse estimate_video(App& app, const HttpRequest& request);
HttpResponse lint_prompt(App& app, const HttpRequest& request);
HttpResponse list_videos(App& app, const HttpRequest& request);
HttpResponse get_video(App& app, const HttpRequest& request);
HttpResponse get_content(App& app, const HttpRequest& request);
HttpResponse get_events(App& app, const HttpRequest& request);
HttpResponse get_preview(App& app, const HttpRequest& request);
HttpResponse get_report(App& app, const HttpRequest& request);
HttpResponse get_input(App& app, const HttpRequest& request);
HttpResponse cancel_video(App& app, const HttpRequest& request);
HttpResponse move_video(App& app, const HttpRequest& request);
HttpResponse delete_video(App& app, const HttpRequest& request);
HttpResponse generate(App& app, const HttpRequest& request);
HttpResponse get_ready(App& app, const HttpRequest& request);
HttpResponse get_health(App& app, const HttpRequest& request);
HttpResponse get_metrics(App& app, const HttpRequest& request);
HttpResponse get_models(App& app, const HttpRequest& request);
HttpResponse get_openapi(App& app, const HttpRequest& request);
HttpResponse get_page(App& app, const HttpRequest& request);

}  // namespace h3::server
