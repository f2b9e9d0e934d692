// h3 generate and h3 rerun.
#include <cstdio>
#include <sstream>

#include "apps/cli/command.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "base/error.h"
#include "base/file_map.h"
#include "pipeline/plan.h"
#include "pipeline/preview.h"
#include "pipeline/session.h"

namespace h3 {
namespace {

// What other programs need and this one has no use for, accepted where it means nothing and refused where it would.
void check_foreign_flags(const Arguments& arguments) {
  if (arguments.text("mode", "vid_gen") != "vid_gen") {
    fail(Code::usage, "--mode: \"%s\" is not possible, this program makes clips: vid_gen",
         arguments.text("mode").c_str());
  }
  if (arguments.has("cfg-scale") && std::atof(arguments.text("cfg-scale").c_str()) != 1) {
    fail(Code::usage, "--cfg-scale: %s is not possible, the model is distilled and takes no guidance, drop the flag",
         arguments.text("cfg-scale").c_str());
  }
  if (!arguments.text("negative-prompt").empty()) {
    fail(Code::usage, "--negative-prompt: the model is distilled and takes no negative prompt, drop the flag");
  }
  if (arguments.whole("fps", 24) != 24) {
    fail(Code::usage, "--fps: %d is not possible, the model makes 24 frames per second, drop the flag",
         arguments.whole("fps", 24));
  }
}

void write_report(const std::string& path, const RunReport& report) {
  if (path.empty()) return;
  AtomicFile file(path);
  const std::string text = report.to_json().dump(1) + "\n";
  file.write(text.data(), text.size());
  file.commit();
}

void tell_before(Terminal& terminal, const Resolved& resolved, const Session& session) {
  for (const std::string& note : resolved.notes) terminal.message("note: " + note);
  for (const std::string& warning : resolved.warnings) terminal.log().write(LogLevel::warn, "%s", warning.c_str());
  for (const std::string& line : reference_table(resolved)) terminal.message(line);
  for (const Choice& choice : resolved.choices) {
    terminal.log().write(LogLevel::info, "%-18s %s (%s)", choice.field.c_str(), choice.value.c_str(),
                         choice.from.c_str());
  }
  terminal.log().write(LogLevel::info, "%-18s %s", "device", session.device().c_str());
}

void tell_after(Terminal& terminal, const Resolved& resolved, const RunReport& report) {
  terminal.clear();
  for (size_t i = resolved.warnings.size(); i < report.warnings.size(); ++i) {
    terminal.log().write(LogLevel::warn, "%s", report.warnings[i].c_str());
  }
  terminal.log().write(LogLevel::info, "%-18s %.2f s, peak memory %.1f MiB", "total", report.seconds,
                       static_cast<double>(report.peak_ram) / (1 << 20));
  std::string files;
  for (const std::string& file : report.files) files += (files.empty() ? "" : ", ") + file;
  std::printf("%s%s%dx%d, %d frames, seed %llu, %d evaluations, %.1f s\n", files.c_str(), files.empty() ? "" : ": ",
              resolved.width, resolved.height, resolved.output_frames, static_cast<unsigned long long>(resolved.seed),
              resolved.evaluations, report.seconds);
}

struct RenderFiles {
  std::string report, preview;
};

RunReport render(Terminal& terminal, Session& session, const Resolved& resolved, const RenderFiles& files) {
  tell_before(terminal, resolved, session);
  Control control;
  control.on_progress = [&](const Progress& progress) { terminal.progress(progress); };
  FrameSink sink;
  if (!files.preview.empty()) {
    sink.preview = [&](int, int, const Image& picture) { write_preview(files.preview, picture); };
  }
  RunReport report;
  {
    const Interruptible interruptible(control);
    report = session.run(resolved, control, sink);
  }
  write_report(files.report, report);
  tell_after(terminal, resolved, report);
  return report;
}

// Refuses now what would otherwise fail after the work.
RenderFiles checked_files(const Arguments& arguments, const Resolved& resolved) {
  RenderFiles files{arguments.text("report"), arguments.text("preview")};
  for (const std::string& path : {files.report, files.preview}) {
    if (path.empty()) continue;
    if (path == resolved.request.output) {
      fail(Code::usage, "%s is already the clip, choose another name", path.c_str());
    }
    AtomicFile probe(path);  // removes itself
  }
  return files;
}

std::string default_output(const Request& request) {
  if (!request.output.empty() || !request.wav.empty() || !request.frames_dir.empty()) return request.output;
  return default_clip_name();
}

// "clips/a.mp4" -> "clips/a-rerun.mp4"
std::string rerun_name(const std::string& clip) {
  const size_t dot = clip.find_last_of('.'), slash = clip.find_last_of('/');
  if (dot == std::string::npos || (slash != std::string::npos && dot < slash)) return clip + "-rerun";
  return clip.substr(0, dot) + "-rerun" + clip.substr(dot);
}

void check_same_inputs(const Recipe& recipe, const Resolved& resolved) {
  for (const InputFile& recorded : recipe.inputs) {
    for (const InputFile& now : resolved.inputs) {
      if (now.field == recorded.field && now.hash != recorded.hash) {
        fail(Code::data, "%s: %s is not the file this clip was made from, restore it", now.field.c_str(),
             now.path.c_str());
      }
    }
  }
}

void check_same_models(const Recipe& recipe, const std::vector<ModelId>& now) {
  for (const ModelId& recorded : recipe.model_ids) {
    bool found = false;
    for (const ModelId& model : now) found = found || (model.role == recorded.role && model.id == recorded.id);
    if (!found) {
      fail(Code::data, "model: the %s of this clip (%s, id %s) is not among the model files, give it with --model",
           recorded.role.c_str(), recorded.origin.c_str(), recorded.id.c_str());
    }
  }
}

void tell_difference(const std::string& a, const std::string& b) {
  const FileMap first(a), second(b);
  const std::span<const std::byte> x = first.bytes(), y = second.bytes();
  size_t at = 0;
  while (at < x.size() && at < y.size() && x[at] == y[at]) ++at;
  if (at == x.size() && at == y.size()) {
    std::printf("%s and %s are identical\n", a.c_str(), b.c_str());
  } else {
    std::printf("%s and %s differ from byte %zu on\n", a.c_str(), b.c_str(), at);
  }
}

SessionOptions options_with_models(const Arguments& arguments) {
  SessionOptions options = session_options(arguments);
  options.models.insert(options.models.begin(), arguments.positional.begin(), arguments.positional.end());
  return options;
}

// A kernel that no call of the clip can use was not what the user had in mind.
void check_forced(const RunPlan& plan, const Arguments& arguments) {
  for (const std::string& forced : arguments.all("force")) {
    const std::string kernel = forced.substr(forced.find('=') + 1);
    std::string reason;
    bool used = false;
    for (const ShapeUse& use : plan.shapes) {
      used = used || use.kernel.rfind(kernel, 0) == 0;
      if (!use.refusals.empty() && use.refusals[0].rfind(kernel + ", which is forced", 0) == 0)
        reason = use.refusals[0];
    }
    if (!used) {
      fail(Code::usage, "--force %s: it fits no call of this clip (%s), choose another kernel or --precision",
           forced.c_str(), reason.c_str());
    }
  }
}

// The estimate, before work starts; refused here when the memory does not suffice.
void tell_plan(Terminal& terminal, Session& session, const Resolved& resolved, const Arguments& arguments) {
  const RunPlan plan = session.plan(resolved);
  check_plan(plan, resolved);
  check_forced(plan, arguments);
  if (arguments.on("explain")) {
    std::istringstream lines(plan.to_text(true));
    for (std::string line; std::getline(lines, line);) terminal.message(line);
  }
  const MemoryPlan& memory = plan.vram.peak > 0 ? plan.vram : plan.ram;
  const std::string time = plan.seconds > 0 ? "about " + duration_text(plan.seconds) + ", " : "";
  const std::string text = time + bytes_text(memory.peak) + (plan.vram.peak > 0 ? " of VRAM" : " of RAM");
  constexpr double kWorthSaying = 5;  // seconds
  if (plan.seconds >= kWorthSaying) terminal.message("estimate: " + text);
  terminal.log().write(LogLevel::info, "%-18s %s", "estimate", text.c_str());
  if (plan.weight_error > 0) {
    terminal.message(strf("note: precision: int8 weights are off by %.2f %% (relative L2)", 100 * plan.weight_error));
  }
}

}  // namespace

int run_generate(Arguments& arguments) {
  check_foreign_flags(arguments);
  Terminal terminal(level_of(arguments));
  Request request = arguments.request();
  request.output = default_output(request);
  Session session(options_with_models(arguments), terminal.log());
  const Resolved resolved = session.resolve(request);
  const RenderFiles files = checked_files(arguments, resolved);
  tell_plan(terminal, session, resolved, arguments);
  render(terminal, session, resolved, files);
  return 0;
}

int run_plan(Arguments& arguments) {
  check_foreign_flags(arguments);
  Terminal terminal(level_of(arguments));
  Request request = arguments.request();
  request.output = default_output(request);
  Session session(options_with_models(arguments), terminal.log());
  const Resolved resolved = session.resolve(request);
  const RunPlan plan = session.plan(resolved, true);
  if (arguments.on("json")) {
    Json json = plan.to_json(), warnings = Json::array();
    for (const std::string& warning : resolved.warnings) warnings.push(warning);
    json.set("prompt_tokens", resolved.prompt_tokens < 0 ? Json() : Json(resolved.prompt_tokens));
    std::printf("%s\n", json.set("warnings", std::move(warnings)).dump(1).c_str());
  } else {
    tell_before(terminal, resolved, session);
    if (resolved.prompt_tokens >= 0) {
      std::printf("prompt     %lld tokens\n", static_cast<long long>(resolved.prompt_tokens));
    }
    std::printf("clip       %dx%d, %d frames, %d evaluations, %s\n%s", resolved.width, resolved.height, resolved.frames,
                resolved.evaluations, resolved.request.precision.c_str(),
                plan.to_text(arguments.on("explain")).c_str());
    if (arguments.on("shadow"))
      std::printf("time       not estimated: --shadow repeats everything on the slow oracle\n");
    std::fflush(stdout);
  }
  check_plan(plan, resolved);
  check_forced(plan, arguments);
  return 0;
}

int run_rerun(Arguments& arguments) {
  if (arguments.positional.size() != 1) {
    fail(Code::usage, "rerun takes one clip, found %zu: h3 rerun clip.mp4", arguments.positional.size());
  }
  Terminal terminal(level_of(arguments));
  const std::string clip = arguments.positional[0];
  const Recipe recipe = read_recipe(clip);
  Request request = recipe.request;
  const Request given = arguments.request();
  request.output = given.output.empty() ? rerun_name(clip) : given.output;
  request.dumps = given.dumps;
  if (request.output == clip) fail(Code::usage, "output: %s is the clip itself, choose another name", clip.c_str());
  SessionOptions options = session_options(arguments);
  if (options.models.empty()) {
    options.models = recipe.models;
    options.synthetic_layers = recipe.synthetic_layers;
    options.synthetic_format = recipe.synthetic_format;
  }
  if (options.tokenizer.empty()) options.tokenizer = recipe.tokenizer;
  if (options.partition.empty()) options.partition = recipe.partition;
  if (options.qkv_order.empty()) options.qkv_order = recipe.qkv_order;
  if (options.tap == 0) options.tap = recipe.tap;
  options.lora_partial = options.lora_partial || recipe.lora_partial;
  if (!arguments.has("device")) options.device = recipe.device;
  Session session(options, terminal.log());
  check_same_models(recipe, session.model_ids());
  const Resolved resolved = session.resolve(request);
  check_same_inputs(recipe, resolved);
  render(terminal, session, resolved, checked_files(arguments, resolved));
  tell_difference(clip, request.output);
  return 0;
}

}  // namespace h3
