// Renders the prompts of eval.json and scores the clips.
#include "bench/eval.h"

#include <algorithm>

#include "base/error.h"
#include "base/file_map.h"
#include "store/embedded.h"

namespace h3 {
namespace {

// The file and what lies beside it: on disk, or embedded with the demo model.
class EvalFiles {
 public:
  explicit EvalFiles(const std::string& path) : path_(path) {
    const size_t slash = path.find_last_of('/');
    folder_ = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  }

  Json json() const {
    if (!path_.empty()) return Json::parse(read_file(path_), path_);
    const std::span<const std::byte> bytes = embedded("eval.json");
    return Json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "embedded eval.json");
  }

  std::shared_ptr<const Image> picture(const std::string& name) const {
    if (!path_.empty()) return std::make_shared<Image>(read_image(folder_ + name));
    return std::make_shared<Image>(read_image(embedded(name), name));
  }

 private:
  static std::span<const std::byte> embedded(const std::string& name) {
    for (const MemoryFile& file : embedded_demo()) {
      if (file.name == name) return file.bytes;
    }
    fail(Code::usage, "this build has no embedded %s, name one with --eval", name.c_str());
  }

  std::string path_, folder_;
};

std::shared_ptr<const Image> keyframe(const EvalFiles& files, const Json& prompt, const char* key) {
  const Json* const name = prompt.find(key);
  return name == nullptr ? nullptr : files.picture(name->as_string());
}

EvalRow render(Session& session, const EvalFiles& files, const EvalRules& rules, const Json& prompt,
               const Request& base, uint64_t seed, const Control& control) {
  EvalRow row;
  row.index = static_cast<int>(prompt.at("index").as_int());
  row.seed = seed;
  row.prompt = prompt.at("prompt").as_string();
  Request request = base;
  try {
    request.first_picture = keyframe(files, prompt, "first_keyframe");
    request.last_picture = keyframe(files, prompt, "last_keyframe");
  } catch (const Error& error) {
    row.skipped = error.what();  // a build without a PNG reader
    return row;
  }
  request.prompt = row.prompt;
  request.width = static_cast<int>(prompt.at("width").as_int());
  request.height = static_cast<int>(prompt.at("height").as_int());
  request.frames = static_cast<int>(prompt.at("frames").as_int());
  request.seed = Seed{seed, false};
  const Resolved resolved = session.resolve(request);
  EvalClip clip;
  clip.width = resolved.width;
  clip.height = resolved.height;
  FrameSink sink;
  sink.audio = [&](const float* samples, int64_t count) {
    clip.left.assign(samples, samples + count);
    clip.right.assign(samples + count, samples + 2 * count);
  };
  sink.frames = [&](const float* rgb, int, int frames) {
    for (int i = 0; i < frames; ++i) clip.frames.push_back(frame_image(rgb, frames, i, clip.width, clip.height).rgb);
  };
  const RunReport report = session.run(resolved, control, sink);
  row.seconds = report.seconds;
  row.run = report.evaluations, row.reused = report.reused, row.forecast = report.forecast;
  EvalExpectation expect = EvalExpectation::from_json(prompt.at("expect"));
  for (const Keyframe& shown : resolved.keyframes) (shown.last ? expect.last : expect.first) = shown.picture;
  row.score = score_clip(rules, expect, clip);
  return row;
}

std::vector<uint64_t> seeds_of(const EvalOptions& options, const Json& json) {
  if (!options.seeds.empty()) return options.seeds;
  std::vector<uint64_t> seeds;
  for (const Json& seed : json.at("seeds").items()) seeds.push_back(parse_seed(seed).value);
  return seeds;
}

}  // namespace

Json EvalResult::to_json() const {
  Json list = Json::array();
  std::map<std::string, std::pair<double, int>> by_check;
  for (const EvalRow& row : rows) {
    Json entry = Json::object({{"index", row.index}, {"seed", seed_json(row.seed)}, {"prompt", row.prompt}});
    if (!row.skipped.empty()) {
      entry.set("skipped", row.skipped);
    } else {
      Json checks = Json::object();
      for (const auto& [name, value] : row.score.checks) {
        checks.set(name, value);
        by_check[name].first += value;
        ++by_check[name].second;
      }
      entry.set("mean", row.score.mean()).set("checks", std::move(checks)).set("seconds", row.seconds);
      entry.set("run", row.run).set("reused", row.reused).set("forecast", row.forecast);
    }
    list.push(std::move(entry));
  }
  Json checks = Json::object();
  for (const auto& [name, sum] : by_check) {
    checks.set(name, Json::object({{"mean", sum.first / sum.second}, {"clips", sum.second}}));
  }
  Json json = Json::object({{"evaluations", evaluations}, {"overall", overall}});
  if (recorded) json.set("recorded", *recorded);
  return json.set("by_check", std::move(checks)).set("clips", std::move(list));
}

EvalResult run_eval(Session& session, const EvalOptions& options, const Control& control,
                    const std::function<void(const EvalRow&)>& on_row) {
  const EvalFiles files(options.file);
  const Json json = files.json();
  const EvalRules rules = EvalRules::from_json(json);
  const std::vector<uint64_t> seeds = seeds_of(options, json);
  EvalResult result;
  double total = 0;
  int prompts = 0;
  bool whole = options.prompts.empty() && options.seeds.empty();
  for (const Json& prompt : json.at("prompts").items()) {
    const int index = static_cast<int>(prompt.at("index").as_int());
    const std::vector<int>& wanted = options.prompts;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), index) == wanted.end()) continue;
    double sum = 0;
    int count = 0;
    for (const uint64_t seed : seeds) {
      EvalRow row = render(session, files, rules, prompt, options.request, seed, control);
      if (row.skipped.empty()) {
        sum += row.score.mean(), ++count;
        result.evaluations = row.run + row.reused + row.forecast;
      } else {
        whole = false;
      }
      if (on_row) on_row(row);
      result.rows.push_back(std::move(row));
    }
    if (count > 0) total += sum / count, ++prompts;
  }
  if (prompts == 0) fail(Code::usage, "no prompt of the evaluation was rendered, check --prompts");
  result.overall = total / prompts;
  const Json* const recorded = json.find("overall");
  if (recorded != nullptr && whole) {
    const Json* const value = recorded->find(strf("evals_%d", result.evaluations));
    if (value != nullptr) result.recorded = value->as_double();
  }
  return result;
}

}  // namespace h3
