// Looking at a prompt while it is written.
#include "apps/server/body.h"
#include "apps/server/routes.h"
#include "base/error.h"
#include "pipeline/prompt_lint.h"
#include "pipeline/references.h"

namespace h3::server {
namespace {

constexpr const char* kFields = "prompt, seconds, num_frames, size, keyframes, pictures, videos or audios";

struct Asked {
  std::string prompt;
  double seconds = 0;
  int width = 0, height = 0, keyframes = 0;
  TagCounts references;
};

int number_up_to(const Given& given, int most) {
  const std::string allowed = strf("a whole number from 0 to %d", most);
  const int64_t value = whole_of(given, allowed);
  if (value < 0 || value > most) refuse_value(given, allowed);
  return static_cast<int>(value);
}

void read_size(const Given& given, Asked& asked) {
  int width = 0, height = 0;
  const auto side = [](int value) { return value >= kMinSide && value <= kMaxSide; };
  if (!parse_size(text_of(given), width, height) || !side(width) || !side(height)) {
    refuse_value(given, strf("WIDTHxHEIGHT of %d to %d", kMinSide, kMaxSide));
  }
  asked.width = width;
  asked.height = height;
}

Asked read(const ModelFacts& facts, const HttpRequest& request) {
  const int most = facts.references.total;
  Asked asked;
  asked.width = facts.width;
  asked.height = facts.height;
  asked.seconds = facts.frames / 24.0;
  for (const Given& given : parse_body(request.header("content-type"), request.body)) {
    if (given.name == "prompt") {
      asked.prompt = text_of(given);
    } else if (given.name == "seconds") {
      asked.seconds = number_of(given, "seconds, for example 5");
      if (!(asked.seconds > 0 && asked.seconds <= kMaxFrames / 24.0)) {
        refuse_value(given, strf("more than 0 and at most %.0f", kMaxFrames / 24.0));
      }
    } else if (given.name == "num_frames") {
      asked.seconds = number_up_to(given, kMaxFrames) / 24.0;
    } else if (given.name == "size") {
      read_size(given, asked);
    } else if (given.name == "keyframes") {
      asked.keyframes = number_up_to(given, 2);
    } else if (given.name == "pictures") {
      asked.references.pictures = number_up_to(given, most);
    } else if (given.name == "videos") {
      asked.references.videos = number_up_to(given, most);
    } else if (given.name == "audios") {
      asked.references.sounds = number_up_to(given, most);
    } else {
      refuse_unknown(given, "unknown field", kFields);
    }
  }
  return asked;
}

}  // namespace

HttpResponse lint_prompt(App& app, const HttpRequest& request) {
  const Asked asked = read(app.facts, request);
  PromptScene scene;
  scene.seconds = asked.seconds;
  for (int i = 0; i < asked.keyframes; ++i) {
    scene.media.push_back({PromptMedia::Kind::image, {{asked.width, asked.height, {}}}, false});
  }
  PromptLint lint;
  try {
    lint = app.facts.linter->lint(asked.prompt, scene);
  } catch (const Error& error) {
    if (error.code() != Code::usage) throw;
    throw ApiError{400, "invalid_value", std::string("prompt: ") + error.what(), "prompt", "", "", 0};
  }
  TagCounts counts = asked.references;
  counts.pictures += asked.keyframes;
  size_t errors = 0;
  while (errors < lint.hints.size() && lint.hints[errors].level == PromptHint::Level::error) ++errors;
  for (const std::string& doubt : unknown_tags(asked.prompt, counts)) {
    lint.hints.insert(lint.hints.begin() + static_cast<std::ptrdiff_t>(errors++),
                      {PromptHint::Level::warning, "unknown_tag", doubt, ""});
  }
  Json json = Json::object({{"object", "prompt.lint"}, {"clip_seconds", asked.seconds}});
  const Json found = lint.to_json();
  for (const auto& [name, value] : found.members()) json.set(name, value);
  return json_response(json);
}

}  // namespace h3::server
