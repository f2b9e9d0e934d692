#include "pipeline/engine.h"

#include <algorithm>

#include "base/error.h"
#include "model/synthetic.h"
#include "pipeline/model_facts.h"
#include "pipeline/parts.h"

namespace h3 {

Engine::Engine(Context& context, Ops& ops, EngineOptions options)
    : context_(context),
      ops_(ops),
      options_(std::move(options)),
      files_(options_.synthetic_layers > 0 ? synthetic_release(options_.synthetic_layers, 1)
                                           : open_model_files(options_.open)),
      facts_(model_facts(files_)),
      parts_(std::make_unique<Parts>()) {}

Engine::~Engine() = default;

void Engine::release() { *parts_ = Parts(); }

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
  recipe.device = options_.device.empty() ? ops_.name() : options_.device;
  return recipe;
}

}  // namespace h3
