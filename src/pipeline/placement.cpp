#include "pipeline/placement.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "base/context.h"
#include "base/control.h"
#include "base/error.h"
#include "model/dit/dit.h"
#include "model/dit/layout.h"
#include "model/text/conditioner.h"
#include "model/text/presentation.h"
#include "model/vae/audio_vae.h"
#include "model/vae/video_vae.h"
#include "ops/counting.h"
#include "pipeline/acceleration.h"
#include "pipeline/adapters.h"
#include "pipeline/conditions.h"
#include "pipeline/stage_sink.h"
#include "pipeline/step_runner.h"
#include "sampling/schedule.h"

namespace h3 {
namespace {

constexpr int kVideoRow = 96, kAudioRow = 32;
constexpr double kGiB = 1073741824.0;

// The driver's context and the libraries' code on the card, which no allocation of ours shows.
constexpr int64_t kDriverBytes = int64_t{600} << 20;
constexpr int64_t kStagingBytes = int64_t{64} << 20;  // page-locked memory that layers travel through to a card

struct PlanName {
  PlanMode mode;
  const char* name;
};
constexpr PlanName kModes[] = {{PlanMode::automatic, "auto"},
                               {PlanMode::resident, "resident"},
                               {PlanMode::offload, "offload"},
                               {PlanMode::stream, "stream"}};

int64_t text_rows_of(const Resolved& r) {
  if (!r.request.prompt_embeds.empty()) return saved_text_rows(r.request.prompt_embeds);
  if (r.prompt_tokens >= 0) return r.prompt_tokens;
  // Without a tokenizer: about four bytes a token, labels around them, a row for every 32x32 pixels of a picture.
  int64_t rows = static_cast<int64_t>(r.request.prompt.size()) / 4 + 32;
  for (const LatentShape& shape : visual_shapes(condition_blocks(r))) {
    rows += int64_t{shape.frames} * shape.height * shape.width / 4;
  }
  return rows;
}

PackedLayout layout_of(const Resolved& r, int64_t text_rows) {
  LayoutSpec spec;
  spec.text_tags.assign(static_cast<size_t>(text_rows), 1);
  spec.blocks = condition_blocks(r);
  spec.latent_frames = r.latent_frames;
  spec.latent_height = r.latent_height;
  spec.latent_width = r.latent_width;
  spec.audio_latents = r.audio_latents;
  return build_layout(spec);
}

class PlacementPlanner {
 public:
  explicit PlacementPlanner(const PlacementInput& input)
      : in_(input), r_(input.resolved), text_rows_(text_rows_of(r_)) {
    load_adapters();
  }

  Placement plan();

 private:
  const Component* find(Role role) const {
    if (role != Role::dit) return in_.files.find(role);
    return in_.files.find_dit(r_.task == Task::ref2va ? Partition::ref2va : Partition::fl2va);
  }
  int64_t base(Compute compute) const { return in_.held + in_.ops.scratch_bytes(compute); }
  void load_adapters();
  DitOptions dit_options(int64_t layers) const;
  // Device bytes of a phase at its peak, beside `base`; 0 without the part.
  int64_t text_bytes(int64_t layers) const;
  int64_t dit_bytes(int64_t layers) const;
  struct Decoders {
    int64_t held = 0, video = 0, audio = 0;  // weights of both; each with its scratch
  };
  Decoders decoder_bytes() const;
  void fill(Placement& plan, int64_t text, int64_t dit, const Decoders& decoders) const;
  int64_t fitting(int64_t count, int64_t room, const std::function<int64_t(int64_t)>& bytes) const;
  int64_t layers_of(Role role) const;
  [[noreturn]] void refuse(const Placement& plan) const;

  const PlacementInput& in_;
  const Resolved& r_;
  int64_t text_rows_;
  mutable int64_t text_host_ = 0, dit_host_ = 0;  // of the last text_bytes and dit_bytes
  Control control_;
  // The adapters of the request beside a transformer of their own, counted once.
  std::unique_ptr<CountingOps> adapter_ops_;
  std::unique_ptr<Dit> adapter_dit_;
  std::vector<AdapterUse> adapters_;
  int64_t adapter_bytes_ = 0;
};

DitOptions PlacementPlanner::dit_options(int64_t layers) const {
  DitOptions options;
  options.compute = r_.compute;
  options.activation = r_.compute == Compute::f32 ? DType::f32 : DType::bf16;
  options.resident_layers = layers;
  return options;
}

void PlacementPlanner::load_adapters() {
  const std::vector<AdapterChoice>& choices = acceleration_of(r_).adapters;
  const Component* component = find(Role::dit);
  if (choices.empty() || component == nullptr) return;
  adapter_ops_ = make_counting(in_.ops);
  adapter_dit_ = load_dit(*adapter_ops_, *component, dit_options(kAllLayers), control_);
  const int64_t before = adapter_ops_->device().allocated_bytes();
  AdapterShelf shelf;
  shelf.read(choices, adapter_dit_->config(), in_.lora_partial);
  adapters_ = shelf.load(*adapter_dit_, choices, control_);
  adapter_bytes_ = adapter_ops_->device().allocated_bytes() - before;
}

int64_t PlacementPlanner::text_bytes(int64_t layers) const {
  if (!r_.request.prompt_embeds.empty() || find(Role::conditioner) == nullptr) return 0;
  const std::unique_ptr<CountingOps> counting = make_counting(in_.ops);
  ConditionerOptions options;
  options.compute = r_.compute;
  options.tap = in_.tap;
  options.vision = has_visual_conditions(r_);
  options.resident_layers = layers;
  const std::unique_ptr<Conditioner> conditioner = load_conditioner(*counting, in_.files, options);
  Presentation presentation;
  presentation.ids.assign(static_cast<size_t>(text_rows_), 0);
  presentation.tags.assign(static_cast<size_t>(text_rows_), 1);
  conditioner->run(presentation, control_);
  text_host_ = counting->host_bytes();
  return counting->device().peak_bytes();
}

int64_t PlacementPlanner::dit_bytes(int64_t layers) const {
  const Component* component = find(Role::dit);
  if (component == nullptr) return 0;
  const std::unique_ptr<CountingOps> counting = make_counting(in_.ops);
  const std::unique_ptr<Dit> dit = load_dit(*counting, *component, dit_options(layers), control_);
  const PackedLayout layout = layout_of(r_, text_rows_);
  const Schedule schedule = make_schedule(r_.scheduler, {r_.evaluations, r_.video_shift, r_.audio_shift});
  DitRequest request;
  request.layout = &layout;
  request.text.resize(static_cast<size_t>(layout.text_count() * dit->config().text_dim));
  request.condition_video.resize(static_cast<size_t>(layout.condition_video_rows * kVideoRow));
  request.condition_audio.resize(static_cast<size_t>(layout.condition_audio_rows * kAudioRow));
  request.video_times = schedule.video.time;
  request.audio_times = schedule.audio.time;
  request.adapters = adapters_;
  request.attention = acceleration_of(r_).attention;
  const std::unique_ptr<DitSession> session = dit->start(std::move(request), control_);
  const PolicyShape shape = policy_shape(layout, dit->config(), session->residual().type, schedule.evaluations());
  const std::unique_ptr<StepPolicy> policy =
      make_policy(*counting, acceleration_of(r_).policy, shape, schedule);  // what it keeps between evaluations
  // Latents and velocities, and what the samplers keep of them.
  Device& device = counting->device();
  const int64_t values = layout.target_video_rows() * kVideoRow + layout.target_audio_rows() * kAudioRow;
  const Tensor streams(device, DType::f32, {4 * values}, "latents");
  dit_host_ = counting->host_bytes();
  const AttentionOptions& attention = acceleration_of(r_).attention;
  const int64_t heads = dit->config().heads, head_dim = dit->config().head_dim;
  int64_t scratch = attention.sparse && layout.rows >= attention.minimum
                        ? in_.ops.sparse_attention_bytes(layout.rows, heads, head_dim, session->residual().type)
                        : 0;
  if (attention.math == AttentionMath::eight_bit) {  // the same scratch, in turns
    scratch = std::max(scratch, in_.ops.eight_bit_bytes(layout.rows, heads, head_dim));
  }
  return device.peak_bytes() + adapter_bytes_ + scratch;
}

int64_t values_of(const Component& component) {
  int64_t sum = 0;
  for (const TensorInfo& tensor : component.source->tensors()) {
    int64_t count = 1;
    for (const int64_t dim : tensor.dims) count *= dim;
    sum += count;
  }
  return sum;
}

PlacementPlanner::Decoders PlacementPlanner::decoder_bytes() const {
  Decoders out;
  if (const Component* component = find(Role::video_vae)) {
    const std::unique_ptr<CountingOps> counting = make_counting(in_.ops);
    VideoVaeOptions options;
    set_precision(options, r_.vae_compute);
    options.encoder = false;
    const std::unique_ptr<VideoVae> vae = load_video_vae(*counting, *component, options);
    out.held = counting->device().allocated_bytes();
    out.video = out.held + vae->decode_bytes(r_.latent_frames, r_.latent_height, r_.latent_width);
  }
  if (const Component* component = find(Role::audio_vae);
      component != nullptr && (r_.request.audio.value_or(true) || has_sound_conditions(r_))) {
    const int64_t weights = 4 * values_of(*component);  // convolutions are f32 (spec vae 10)
    out.audio = out.held + weights;
    out.held += weights;
  }
  return out;
}

int64_t PlacementPlanner::layers_of(Role role) const {
  const Component* component = find(role);
  if (component == nullptr) return 0;
  if (role == Role::dit) return inspect_dit(*component, in_.ops.context().log).config.layers;
  ConditionerOptions options;
  options.compute = r_.compute;
  options.tap = in_.tap;
  options.vision = false;
  const std::unique_ptr<CountingOps> counting = make_counting(in_.ops);
  return load_conditioner(*counting, in_.files, options)->tap();
}

// The most layers that may stay so that bytes(layers) <= room; -1 when even none of them fits.
int64_t PlacementPlanner::fitting(int64_t count, int64_t room, const std::function<int64_t(int64_t)>& bytes) const {
  if (bytes(kAllLayers) <= room) return kAllLayers;
  int64_t low = 0, high = count - 3;  // of `count` layers two travel at least (model/layer_stack.h)
  if (high < 0 || bytes(0) > room) return -1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (bytes(middle) <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

void PlacementPlanner::fill(Placement& plan, int64_t text, int64_t dit, const Decoders& decoders) const {
  const int64_t beside = plan.decoders_first ? decoders.held : 0;
  plan.adapters = adapter_bytes_;
  plan.phases.clear();
  if (text > 0) plan.phases.push_back({"encode text", base(r_.compute) + text});
  if (dit > 0) plan.phases.push_back({"denoise", base(r_.compute) + dit + beside});
  if (decoders.audio > 0) plan.phases.push_back({"decode audio", base(Compute::f32) + decoders.audio});
  if (decoders.video > 0) plan.phases.push_back({"decode video", base(r_.vae_compute) + decoders.video});
  if (plan.keep) {  // all of it at once, each with its scratch
    for (PlacementPhase& phase : plan.phases) phase.bytes = base(r_.compute) + text + dit + decoders.video;
  }
  plan.peak = 0;
  for (const PlacementPhase& phase : plan.phases) plan.peak = std::max(plan.peak, phase.bytes);
}

void PlacementPlanner::refuse(const Placement& plan) const {
  std::string parts;
  for (const PlacementPhase& phase : plan.phases) {
    parts +=
        strf("%s%s %.2f GiB", parts.empty() ? "" : ", ", phase.name.c_str(), static_cast<double>(phase.bytes) / kGiB);
  }
  const bool host = in_.ops.device().is_host();
  fail(Code::memory, "the plan %s needs %.2f GiB, %.2f GiB are available on %s (%s); %s", name_of(plan.mode),
       static_cast<double>(plan.peak) / kGiB, static_cast<double>(plan.available) / kGiB, in_.ops.name(), parts.c_str(),
       plan.mode == PlanMode::stream ? "ask for a smaller or shorter clip, or weights of fewer bits"
       : host                        ? "raise --ram or use --plan auto"
                                     : "raise --vram or use --plan auto");
}

Placement PlacementPlanner::plan() {
  Placement plan;
  Device& device = in_.ops.device();
  const int64_t cap = device.is_host() ? in_.budget.ram : in_.budget.vram;
  plan.available = usable_bytes(device, in_.budget);
  const bool unlimited = cap <= 0 && (device.is_host() || device.free_bytes() == 0);  // it does not say
  const int64_t room = unlimited ? INT64_MAX : plan.available;
  const Decoders decoders = decoder_bytes();
  const int64_t text = text_bytes(kAllLayers), dit = dit_bytes(kAllLayers);
  const PlanMode asked = in_.budget.mode;

  const auto attempt = [&](PlanMode mode, bool decoders_first, bool keep) {
    plan.mode = mode;
    plan.decoders_first = decoders_first;
    plan.keep = keep;
    fill(plan, text, dit, decoders);
    plan.spare = room == INT64_MAX ? room : room - plan.peak;
    return plan.spare >= 0;
  };
  if (asked == PlanMode::automatic || asked == PlanMode::resident) {
    if (in_.keep && attempt(PlanMode::resident, true, true)) return plan;
    if (attempt(PlanMode::resident, true, false)) return plan;
    if (asked == PlanMode::resident) refuse(plan);
  }
  if (asked != PlanMode::stream) {
    if (attempt(PlanMode::offload, false, false)) return plan;
    if (asked == PlanMode::offload) refuse(plan);
  }
  plan.mode = PlanMode::stream;
  plan.decoders_first = plan.keep = false;
  const int64_t each = room == INT64_MAX ? room : room - base(r_.compute);
  const auto stay = [&](Role role, const std::function<int64_t(int64_t)>& bytes) {
    if (cap <= 0) return bytes(0) <= each ? int64_t{0} : int64_t{-1};  // asked for, with nothing to fill
    return fitting(layers_of(role), each, bytes);
  };
  plan.text_layers = text > 0 ? stay(Role::conditioner, [&](int64_t n) { return text_bytes(n); }) : kAllLayers;
  plan.dit_layers = dit > 0 ? stay(Role::dit, [&](int64_t n) { return dit_bytes(n); }) : kAllLayers;
  const bool fits = plan.text_layers >= 0 && plan.dit_layers >= 0;
  plan.text_layers = std::max<int64_t>(plan.text_layers, 0);
  plan.dit_layers = std::max<int64_t>(plan.dit_layers, 0);
  fill(plan, text > 0 ? text_bytes(plan.text_layers) : 0, dit > 0 ? dit_bytes(plan.dit_layers) : 0, decoders);
  if (!fits || plan.peak > room) refuse(plan);
  if (!device.is_host()) plan.host_bytes = kStagingBytes + std::max(text_host_, dit_host_);
  return plan;
}

}  // namespace

int64_t cap_of_allocations(const MemoryBudget& budget) {
  return budget.vram > 0 ? std::max<int64_t>(budget.vram - kDriverBytes, 1) : 0;
}

int64_t usable_bytes(const Device& device, const MemoryBudget& budget) {
  const int64_t cap = device.is_host() ? budget.ram : cap_of_allocations(budget);
  return cap > 0 ? cap : device.free_bytes() + device.allocated_bytes();
}

const char* name_of(PlanMode mode) {
  for (const PlanName& row : kModes) {
    if (row.mode == mode) return row.name;
  }
  return "";
}

PlanMode parse_plan_mode(const std::string& text) {
  for (const PlanName& row : kModes) {
    if (text == row.name) return row.mode;
  }
  fail(Code::usage, "plan: \"%s\" is not known, give auto, resident, offload or stream", text.c_str());
}

int64_t parse_memory(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit = end;
  for (char& c : unit) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  double factor = 0;
  for (const char* spelled : {"", "B"}) {
    if (unit == spelled) factor = 1;
  }
  double power = 1;
  for (const char letter : {'K', 'M', 'G', 'T'}) {
    power *= 1024;
    for (const char* rest : {"", "B", "IB"}) {
      if (unit == letter + std::string(rest)) factor = power;
    }
  }
  const double bytes = number * factor;
  if (end == text.c_str() || factor == 0 || !(bytes >= 1048576) || !(bytes < 1e15)) {
    fail(Code::usage, "%s: \"%s\" is not an amount of memory, give at least 1M, for example 12G", flag.c_str(),
         text.c_str());
  }
  return static_cast<int64_t>(bytes);
}

Json Placement::to_json() const {
  Json list = Json::array();
  for (const PlacementPhase& phase : phases) list.push(Json::object({{"phase", phase.name}, {"bytes", phase.bytes}}));
  Json json = Json::object({{"mode", name_of(mode)}, {"peak_bytes", peak}, {"available_bytes", available}});
  json.set("decoders_first", decoders_first).set("kept", keep).set("host_bytes", host_bytes);
  if (adapters > 0) json.set("adapters_bytes", adapters);
  if (text_layers != kAllLayers) json.set("text_layers_resident", text_layers);
  if (dit_layers != kAllLayers) json.set("transformer_layers_resident", dit_layers);
  return json.set("phases", std::move(list));
}

Placement plan_placement(const PlacementInput& input) { return PlacementPlanner(input).plan(); }

}  // namespace h3
