#include "pipeline/plan.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "pipeline/engine.h"
#include "pipeline/rates.h"

namespace h3 {
namespace {

int64_t field_of(const char* path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name, 0) == 0) return std::atoll(line.c_str() + name.size()) * 1024;
  }
  return 0;
}

// MemAvailable, or less where a control group allows less.
int64_t available_ram() {
  int64_t bytes = field_of("/proc/meminfo", "MemAvailable:");
  std::ifstream most("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
  int64_t limit = 0, now = 0;
  if (most >> limit && used >> now && limit > now) bytes = bytes == 0 ? limit - now : std::min(bytes, limit - now);
  return bytes;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

struct Output {
  int64_t disk = 0, encoder = 0;  // bytes written; bytes an encoder holds
};

// Raw video and pictures exactly, codecs by what they come to at the default quality. x264 and libvpx look 40 frames
// ahead and keep references besides.
Output output_of(const Resolved& r) {
  Output out;
  const Request& request = r.request;
  const int64_t pixels = int64_t{r.width} * r.height, frames = r.output_frames;
  const int64_t sound = 4 * r.output_samples;  // 16-bit stereo
  if (request.output.ends_with(".y4m")) {
    out.disk += pixels * frames * 3 / 2 + sound;
  } else if (!request.output.empty()) {
    out.disk += pixels * frames / 20 + sound / 4;
    out.encoder = pixels * 3 / 2 * 60;
  }
  if (!request.frames_dir.empty()) out.disk += pixels * frames * 2;
  if (!request.wav.empty()) out.disk += sound;
  return out;
}

// Samples, noise, velocities and frames that wait on the host, beside what the operations hold.
int64_t host_values(const Resolved& r) {
  const int64_t video = int64_t{24} * r.latent_frames * r.latent_height * r.latent_width, audio = 64 * r.audio_latents;
  constexpr int64_t kStaging = 32 << 20;  // of finished frames
  return 4 * (6 * (video + audio) + 4 * 2 * r.output_samples) +
         std::min(kStaging, int64_t{12} * r.width * r.height * r.frames);
}

MemoryPlan memory_of(const Booking& booking, int64_t base, int64_t extra) {
  MemoryPlan plan;
  int64_t held = 0, working = 0;
  std::string heaviest;
  for (const StageBooking& stage : booking.stages) {
    if (stage.stage.rfind("load ", 0) == 0) {
      plan.parts.push_back({stage.stage.substr(5), std::max<int64_t>(stage.held - held, 0)});
    } else if (stage.peak - stage.weights > working) {
      working = stage.peak - stage.weights;
      heaviest = stage.stage;
    }
    if (stage.peak > plan.peak) {
      plan.peak = stage.peak;
      plan.peak_stage = stage.stage;
    }
    held = stage.held;
  }
  if (working > 0) plan.parts.push_back({"working memory of " + heaviest, working});
  if (base > 0) plan.parts.push_back({"program", base});
  if (extra > 0) plan.parts.push_back({"frames, sound and encoder", extra});
  plan.peak += base + extra;
  return plan;
}

// What the placement of the run (placement.h) will hold, phase by phase.
MemoryPlan card_memory(Engine& engine, const Resolved& resolved, int64_t limit) {
  const Placement placement = engine.placement(resolved);
  MemoryPlan plan;
  plan.peak = placement.peak;
  plan.available = limit > 0 ? limit : placement.available;
  plan.limited = limit > 0;
  for (const PlacementPhase& phase : placement.phases) {
    plan.parts.push_back({phase.name, phase.bytes});
    if (phase.bytes == placement.peak) plan.peak_stage = phase.name;
  }
  if (placement.adapters > 0) plan.parts.push_back({"adapters, within denoise", placement.adapters});
  return plan;
}

Json to_json(const MemoryPlan& memory) {
  Json parts = Json::array();
  for (const PlanPart& part : memory.parts) {
    parts.push(Json::object({{"name", part.name}, {"bytes", part.bytes}}));
  }
  Json json = Json::object({{"peak_bytes", memory.peak}, {"peak_stage", memory.peak_stage}});
  json.set("available_bytes", memory.available).set("fits", memory.fits());
  return json.set("parts", std::move(parts));
}

std::string memory_text(const char* name, const MemoryPlan& memory) {
  std::string text =
      strf("%-10s %s at its peak, during \"%s\"", name, bytes_text(memory.peak).c_str(), memory.peak_stage.c_str());
  if (memory.available > 0) {
    text += strf("; %s %s: %s", bytes_text(memory.available).c_str(), memory.limited ? "asked" : "available",
                 memory.fits() ? "fits" : "does not fit");
  }
  text += "\n";
  for (const PlanPart& part : memory.parts) {
    text += strf("           %-34s %12s\n", part.name.c_str(), bytes_text(part.bytes).c_str());
  }
  return text;
}

struct Rehearsal {
  std::unique_ptr<DryOps> dry;
  std::vector<StageTime> stages;  // each is the next of the booking's, whose first is before all of them
};

// The run on operations that stand for those of `device` and only count. What the model's code does itself (reading
// weights, tokens) it does, and its own time counts; values in proportion to the clip are not made
// (ops/values.h).
Rehearsal rehearse(Engine& engine, const std::string& device, const Resolved& resolved) {
  Log silent;
  Context context{engine.context().pool, silent};
  Rehearsal out;
  out.dry = make_dry_ops(context, dry_rules(device, context));
  Engine counted(engine, context, *out.dry);
  Resolved quiet = resolved;
  for (std::string* path : {&quiet.request.output, &quiet.request.wav, &quiet.request.frames_dir}) path->clear();
  quiet.request.dumps.clear();
  RunHooks hooks;
  hooks.dry = true;
  hooks.on_stage = [&](const char* stage) { out.dry->begin_stage(stage); };
  out.stages = counted.run(quiet, Control(), hooks).stages;
  H3_ASSERT(out.dry->booking().stages.size() == out.stages.size() + 1);
  return out;
}

// All but the memory of a card and the seconds.
RunPlan plan_of(const Booking& booking, const Resolved& resolved, bool host, int64_t base) {
  RunPlan plan;
  const Output output = output_of(resolved);
  const int64_t extra = host_values(resolved) + output.encoder;
  if (host) {
    plan.ram = memory_of(booking, base, extra);
  } else {
    plan.ram = {{{"program", base}, {"frames, sound and encoder", extra}}, "run", base + extra, 0, false};
  }
  plan.disk = output.disk;
  struct statvfs disk {};
  if (output.disk > 0 && ::statvfs(folder_of(resolved.request.output).c_str(), &disk) == 0) {
    plan.disk_free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  }
  plan.shapes = booking.shapes;
  std::stable_sort(plan.shapes.begin(), plan.shapes.end(),
                   [](const ShapeUse& a, const ShapeUse& b) { return a.flop > b.flop; });
  return plan;
}

void add_seconds(const Rehearsal& rehearsal, const Rates& rates, RunPlan& plan) {
  const std::vector<StageBooking>& booked = rehearsal.dry->booking().stages;
  for (size_t i = 0; i < rehearsal.stages.size(); ++i) {
    const StageTime& own = rehearsal.stages[i];
    const WorkByKind& work = booked[i + 1].work;
    const double seconds = knows_all(rates, work) ? own.seconds + seconds_of(work, rates) : -1;
    plan.seconds = plan.seconds < 0 || seconds < 0 ? -1 : plan.seconds + seconds;
    plan.stages.push_back({own.stage, seconds});
  }
}

}  // namespace

RunPlan plan_run(Engine& engine, const Resolved& resolved, const PlanOptions& options) {
  Ops& real = engine.ops();
  const bool host = real.device().is_host();
  const int64_t base = anonymous_bytes();
  const Rehearsal rehearsal = rehearse(engine, real.name(), resolved);
  const Booking& booking = rehearsal.dry->booking();
  RunPlan plan = plan_of(booking, resolved, host, base);
  plan.device = real.name();
  plan.ram.limited = options.ram_limit > 0;
  plan.ram.available = options.ram_limit > 0 ? options.ram_limit : ram_for(base);
  if (!host) {
    plan.vram = card_memory(engine, resolved, options.vram_limit);
    const int64_t streamed = engine.placement(resolved).host_bytes;
    plan.ram.peak += streamed;
    if (streamed > 0) plan.ram.parts.push_back({"copies of streamed weights, staging", streamed});
  }
  for (const auto& [kind, sample] : booking.samples) {
    if (kind.ends_with(" int8") && !kind.starts_with(kPackCodes))
      plan.weight_error = std::max(plan.weight_error, int8_weight_error(sample));
  }
  // The oracle beside a run is slow in its own way.
  const bool shadowed = plan.device.rfind("shadow(", 0) == 0;
  if (options.time && !shadowed) add_seconds(rehearsal, measure_rates(real, booking, options.fresh_rates), plan);
  return plan;
}

RunPlan plan_elsewhere(Engine& engine, const Resolved& resolved, const PlanMachine& machine) {
  const Rehearsal rehearsal = rehearse(engine, machine.device, resolved);
  const Booking& booking = rehearsal.dry->booking();
  const bool host = rehearsal.dry->device().is_host();
  RunPlan plan = plan_of(booking, resolved, host, machine.program);
  plan.device = machine.device;
  plan.ram.available = machine.ram;
  if (!host) {
    plan.vram = memory_of(booking, 0, 0);
    plan.vram.available = machine.vram;
  }
  add_seconds(rehearsal, rates_from_json(machine.rates), plan);
  return plan;
}

Json measured_rates(Engine& engine, const Resolved& resolved) {
  const Rehearsal rehearsal = rehearse(engine, engine.ops().name(), resolved);
  return rates_json(measure_rates(engine.ops(), rehearsal.dry->booking(), false));
}

int64_t ram_for(int64_t held) {
  const int64_t free_now = available_ram();
  return free_now > 0 ? free_now + held : 0;
}

void check_plan(const RunPlan& plan, const Resolved& resolved) {
  const struct {
    const char* name;
    const char* flag;
    const MemoryPlan& memory;
  } rows[] = {{"RAM", "--ram", plan.ram}, {"VRAM", "--vram", plan.vram}};
  for (const auto& row : rows) {
    if (row.memory.fits()) continue;
    const PlanPart* largest = nullptr;
    for (const PlanPart& part : row.memory.parts) {
      if (largest == nullptr || part.bytes > largest->bytes) largest = &part;
    }
    const bool f32 = resolved.request.precision == "f32";
    fail(Code::memory, "this clip needs %s of %s during \"%s\" and %s is %s; the largest part is the %s (%s). %s",
         bytes_text(row.memory.peak).c_str(), row.name, row.memory.peak_stage.c_str(),
         bytes_text(row.memory.available).c_str(), row.memory.limited ? row.flag : "available",
         largest == nullptr ? "clip" : largest->name.c_str(),
         bytes_text(largest == nullptr ? 0 : largest->bytes).c_str(),
         f32 ? "Try --precision bf16, or a smaller or shorter clip" : "Ask for a smaller or shorter clip");
  }
}

Json RunPlan::to_json() const {
  Json json = Json::object({{"device", device}, {"ram", h3::to_json(ram)}});
  if (vram.peak > 0) json.set("vram", h3::to_json(vram));
  json.set("disk_bytes", disk).set("disk_free_bytes", disk_free).set("seconds", seconds);
  if (weight_error > 0) json.set("int8_weight_error", weight_error);
  Json times = Json::array(), uses = Json::array();
  for (const PlanStage& stage : stages) {
    times.push(Json::object({{"stage", stage.stage}, {"seconds", stage.seconds}}));
  }
  for (const ShapeUse& use : shapes) {
    Json refused = Json::array();
    for (const std::string& reason : use.refusals) refused.push(reason);
    uses.push(Json::object({{"op", use.op},
                            {"first", use.label},
                            {"shape", use.shape},
                            {"kernel", use.kernel},
                            {"calls", use.calls},
                            {"tflop", use.flop / 1e12},
                            {"refused", std::move(refused)}}));
  }
  return json.set("stages", std::move(times)).set("shapes", std::move(uses));
}

std::string RunPlan::to_text(bool explain) const {
  std::string text = memory_text("RAM", ram);
  if (vram.peak > 0) text += memory_text("VRAM", vram);
  if (disk > 0) text += strf("disk       about %s, %s free\n", bytes_text(disk).c_str(), bytes_text(disk_free).c_str());
  if (seconds > 0) {
    text += strf("time       about %s on %s\n", duration_text(seconds).c_str(), device.c_str());
    for (const PlanStage& stage : stages) {
      if (stage.seconds >= 0.005 * seconds) {
        text += strf("           %-34s %12s\n", stage.stage.c_str(), duration_text(stage.seconds).c_str());
      }
    }
  }
  if (weight_error > 0) text += strf("int8       weights off by %.2f %% (relative L2)\n", 100 * weight_error);
  text += "kernels\n";
  for (const ShapeUse& use : shapes) {
    text += strf("  %-10s %-36s %-14s x%-6.0f %9.4f TFLOP  %s\n", use.op.c_str(), use.shape.c_str(), use.kernel.c_str(),
                 use.calls, use.flop / 1e12, use.label.c_str());
    if (!explain) continue;
    for (const std::string& reason : use.refusals) text += "             not " + reason + "\n";
  }
  return text;
}

std::string bytes_text(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (value >= 1073741824.0) return strf("%.2f GiB", value / 1073741824.0);
  return strf("%.1f MiB", value / 1048576.0);
}

std::string duration_text(double seconds) {
  if (seconds < 10) return strf("%.1f s", seconds);
  if (seconds < 100) return strf("%.0f s", seconds);
  const long long whole = std::llround(seconds);
  if (whole < 3600) return strf("%lld min %lld s", whole / 60, whole % 60);
  return strf("%lld h %lld min", whole / 3600, whole % 3600 / 60);
}

void check_ram(int64_t limit) {
  const int64_t held = limit > 0 ? anonymous_bytes() : 0;
  if (held <= limit) return;
  fail(Code::memory,
       "out of memory: %s of RAM are held and --ram is %s; raise it, or ask for a smaller or shorter clip",
       bytes_text(held).c_str(), bytes_text(limit).c_str());
}

int64_t anonymous_bytes(int pid) {
  const std::string who = pid > 0 ? std::to_string(pid) : "self";
  return field_of(("/proc/" + who + "/status").c_str(), "RssAnon:");
}

}  // namespace h3
