#include "pipeline/engine.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/dit/dit.h"
#include "model/synthetic.h"
#include "pipeline/conditions.h"
#include "pipeline/model_facts.h"
#include "pipeline/parts.h"
#include "pipeline/plan.h"
#include "pipeline/prepare.h"
#include "pipeline/stage_sink.h"

namespace h3 {
namespace {

Format format_of(const std::string& synthetic) {
  if (synthetic.empty()) return Format::noise;
  if (synthetic == "q4tp") return Format::q4tp;
  if (synthetic == "fp8") return Format::f8_e4m3;
  fail(Code::usage, "synthetic_format: \"%s\" is not known, give q4tp or fp8, or leave it out for bf16",
       synthetic.c_str());
}

}  // namespace

Engine::Engine(Context& context, Ops& ops, EngineOptions options)
    : context_(context),
      ops_(ops),
      options_(std::move(options)),
      files_(options_.synthetic_layers > 0
                 ? synthetic_release(options_.synthetic_layers, 1, format_of(options_.synthetic_format),
                                     SyntheticEncoder::release, options_.open.tokenizer)
                 : open_model_files(options_.open)),
      facts_(model_facts(files_)),
      parts_(std::make_unique<Parts>()),
      held_(ops.device().allocated_bytes()) {
  Device& device = ops_.device();
  device.set_cap(device.is_host() ? options_.budget.ram : cap_of_allocations(options_.budget));
  device.set_host_cap(0);
  if (options_.ram_limit > 0) {  // what the program holds already, and what is not allocated here, has its share
    const int64_t left = std::max<int64_t>(options_.ram_limit - anonymous_bytes(), 1);
    if (device.is_host()) {
      device.set_cap(device.allocated_bytes() + left);
    } else {
      device.set_host_cap(device.host_bytes() + left);
    }
  }
  if (!options_.prepared.empty()) plans_ = PlanPackage::read(options_.prepared);
  facts_.fp8 = facts_.fp8 && !device.is_host();
  if (const Component* const dit = files_.find(Role::dit)) {
    Log quiet;
    facts_.eight_bit_refused = ops_.refuses_eight_bit(inspect_dit(*dit, quiet).config.head_dim);
  }
  facts_.multiplies_fp8 = ops_.multiplies_float8();
  facts_.nvfp4_refused = ops_.refuses_nvfp4();
  facts_.turbo_files = options_.turbo_files;
  facts_.lora_partial = options_.lora_partial;
}

Engine::Engine(const Engine& other, Context& context, Ops& ops)
    : context_(context),
      ops_(ops),
      options_(other.options_),
      files_(other.files_),
      facts_(other.facts_),
      parts_(std::make_unique<Parts>()) {
  options_.budget = {};
  options_.ram_limit = 0;
}

Engine::~Engine() = default;

void Engine::release() { *parts_ = Parts(); }

Placement Engine::placement(const Resolved& r) {
  Placement plan;
  plan.keep = options_.keep;
  if (ops_.device().is_host() && !options_.budget.given()) return plan;
  const Acceleration& cheaper = acceleration_of(r);
  std::string adapters = policy_text(cheaper.policy) + " " + attention_text(cheaper.attention);
  for (const AdapterChoice& adapter : cheaper.adapters) adapters += " " + adapter.id;
  const int64_t tokens = r.prompt_tokens >= 0 ? r.prompt_tokens : static_cast<int64_t>(r.request.prompt.size());
  // Not the file of saved embeddings, which is another one for each job of a remote encoder.
  const int64_t saved = r.request.prompt_embeds.empty() ? -1 : saved_text_rows(r.request.prompt_embeds);
  int64_t conditions = 0;  // values of their latents
  for (const LayoutBlock& block : condition_blocks(r)) {
    conditions += int64_t{block.latent_frames} * block.latent_height * block.latent_width + block.audio_latents;
  }
  const std::string key =
      strf("%dx%dx%d e%d c%d v%d k%zu r%zu:%lld a%d s%lld p%lld %s", r.width, r.height, r.frames, r.evaluations,
           static_cast<int>(r.compute), static_cast<int>(r.vae_compute), r.keyframes.size(), r.references.size(),
           static_cast<long long>(conditions), static_cast<int>(r.request.audio.value_or(true)),
           static_cast<long long>(saved), static_cast<long long>(tokens), adapters.c_str());
  if (const auto found = placements_.find(key); found != placements_.end()) return found->second;
  plan = plan_placement({.ops = ops_,
                         .files = files_,
                         .resolved = r,
                         .tap = options_.tap,
                         .budget = options_.budget,
                         .keep = options_.keep,
                         .lora_partial = facts_.lora_partial,
                         .held = held_});
  placements_.emplace(key, plan);
  return plan;
}

const Component& Engine::transformer(const Resolved& resolved) const {
  const Partition partition = resolved.task == Task::ref2va ? Partition::ref2va : Partition::fl2va;
  const Component* const found = files_.find_dit(partition);
  if (found == nullptr) fail(Code::usage, "model: the files have no %s", name_of(Role::dit));
  return *found;
}

const Component& Engine::any_transformer() const {
  const Component* const found = files_.find(Role::dit);
  if (found == nullptr) fail(Code::usage, "model: the files have no %s", name_of(Role::dit));
  return *found;
}

void Engine::use_plans(const Component& dit, Compute compute) {
  const auto now = std::make_pair(static_cast<const TensorSource*>(dit.source.get()), compute);
  if (!plans_ || planned_ == now) return;
  planned_ = {};
  adopt_plans(ops_, ops_.plan_maker(), *plans_, options_.prepared, compute, dit);
  planned_ = now;  // plans that are refused are refused again
}

Recipe Engine::recipe(const Resolved& resolved) const {
  Recipe recipe;
  recipe.request = resolved.request;
  recipe.inputs = resolved.inputs;
  recipe.models = options_.open.paths;
  recipe.tokenizer = options_.open.tokenizer;
  if (options_.open.partition) recipe.partition = name_of(*options_.open.partition);
  if (options_.open.qkv_order) recipe.qkv_order = name_of(*options_.open.qkv_order);
  for (const Component& component : files_.components) {
    if (component.role == Role::unknown) continue;
    const ModelId id{name_of(component.role), component.source->id(), component.origin};
    // One transformer may serve both partitions of a repository.
    const bool known = std::any_of(recipe.model_ids.begin(), recipe.model_ids.end(),
                                   [&](const ModelId& other) { return other.role == id.role && other.id == id.id; });
    if (!known) recipe.model_ids.push_back(id);
  }
  recipe.tap = options_.tap;
  recipe.synthetic_layers = options_.synthetic_layers;
  recipe.lora_partial = options_.lora_partial;
  recipe.synthetic_format = options_.synthetic_format;
  recipe.device = options_.device.empty() ? ops_.name() : options_.device;
  return recipe;
}

}  // namespace h3
