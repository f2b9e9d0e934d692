#include "model/dit/dit.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/context.h"
#include "base/error.h"
#include "model/dit/adapter.h"
#include "model/dit/session.h"
#include "ops/values.h"

namespace h3 {
namespace dit {
namespace {

class Transformer final : public Dit {
 public:
  Transformer(Ops& ops, const Component& component, const DitOptions& options, const Control& control)
      : model_{ops, read_source(component, ops.context().log), options.activation, {}, {}, {}, {}, {}, {}, {}, {}, {}} {
    Source& source = model_.source;
    source.config.layers = std::min(source.config.layers, options.layers);
    source.blocks.resize(static_cast<size_t>(source.config.layers));
    load(options, control);
  }

  std::vector<const Linear*> matmul_kinds() override {
    std::vector<const Linear*> out;
    std::set<std::tuple<Format, int64_t, int64_t>> seen;
    for (size_t i = 0; i < model_.source.blocks.size(); ++i) {
      const BlockSource& source = model_.source.blocks[i];
      const Block& block = model_.blocks.at(static_cast<int64_t>(i));
      const auto add = [&](const MatrixSource& weight, const Linear* linear) {
        if (seen.emplace(weight.format(), weight.cols, weight.rows).second) out.push_back(linear);
      };
      add(source.qkv, block.qkv.get());
      add(source.out, block.out.get());
      add(source.fc1, block.fc1.get());
      add(source.fc2, block.fc2.get());
    }
    return out;
  }

  const DitConfig& config() const override { return model_.source.config; }

  int64_t weight_bytes() const override {
    int64_t sum = model_.refiner_norm.view.bytes() + model_.final_norm.view.bytes();
    for (const auto* linear :
         {&model_.video_in, &model_.audio_in, &model_.text_in, &model_.video_out, &model_.audio_out}) {
      sum += (*linear)->bytes;
    }
    for (const Block& block : model_.refiner) sum += block.bytes();
    return sum + model_.blocks.bytes();
  }

  std::unique_ptr<DitSession> start(DitRequest request, const Control& control) override {
    const ModulationPlan plan = plan_modulation(*request.layout, request.video_times, request.audio_times,
                                                holds_values(model_.ops.device()));
    if (bank_ == nullptr || !bank_->plan.same_rows(plan)) {
      bank_.reset();  // before the new one is made: the two may not fit side by side
      bank_ = make_bank(model_.ops, model_.source, plan, model_.activation, control);
    }
    std::vector<LoadedUse> uses;
    for (const AdapterUse& use : request.adapters) {
      uses.push_back({static_cast<const LoadedAdapter*>(use.adapter.get()), use.strength});
    }
    const auto bank = adapt_bank(model_.ops, model_.source, bank_, uses, model_.activation, control);
    return start_session(model_, std::move(request), uses, plan, bank, control);
  }

  std::shared_ptr<const DitAdapter> load_adapter(const lora::Adapter& adapter, const Control& control) override {
    return std::make_shared<LoadedAdapter>(model_.ops, model_.source, adapter, model_.activation, control);
  }

 private:
  std::unique_ptr<Linear> make(const char* label, const MatrixSource& weight, const std::vector<float>& bias,
                               Compute compute) {
    LinearSpec spec;
    spec.label = label;
    spec.weight = weight;
    spec.bias = bias;
    spec.compute = compute;
    return model_.ops.make_linear(std::move(spec));
  }

  void load(const DitOptions& options, const Control& control) {
    Source& source = model_.source;
    Ops& ops = model_.ops;
    const int64_t total = source.config.layers + source.config.refiner_layers;
    model_.video_in = make("dit.video_patch_proj", source.video_in, source.video_in_bias, Compute::f32);
    model_.audio_in = make("dit.audio_patch_proj", source.audio_in, source.audio_in_bias, Compute::f32);
    model_.video_out = make("dit.final_layer.video_out", source.video_out, source.video_out_bias, Compute::f32);
    model_.audio_out = make("dit.final_layer.audio_out", source.audio_out, source.audio_out_bias, Compute::f32);
    const Compute text = options.activation == DType::f32 ? Compute::f32 : Compute::bf16;
    model_.text_in = make("dit.condition_proj", source.text_in, source.text_in_bias, text);
    const auto vector = [&](const std::vector<float>& values) {
      return upload_f32(ops.device(), values.data(), {source.config.hidden}, DType::f32, "norm weights");
    };
    model_.refiner_norm = vector(source.refiner_norm);
    model_.final_norm = vector(source.final_norm);
    for (size_t i = 0; i < source.refiner.size(); ++i) {
      control.progress("load", static_cast<int64_t>(i), total);
      const std::string label = "dit.token_refiner.blocks." + std::to_string(i);
      model_.refiner.push_back(make_block(ops, source.refiner[i], label, options.compute));
    }
    const auto make_layer = [this, compute = options.compute](int64_t i, WeightGroup* group) {
      return make_block(model_.ops, model_.source.blocks[static_cast<size_t>(i)], "dit.blocks." + std::to_string(i),
                        compute, group);
    };
    model_.blocks.load(ops, source.config.layers, options.resident_layers, make_layer,
                       [&](int64_t done) { control.progress("load", source.config.refiner_layers + done, total); });
  }

  Model model_;
  std::shared_ptr<const ModulationBank> bank_;  // of the last schedule
};

}  // namespace
}  // namespace dit

std::unique_ptr<Dit> load_dit(Ops& ops, const Component& component, const DitOptions& options, const Control& control) {
  if (options.activation != DType::f32 && options.activation != DType::bf16) {
    fail(Code::usage, "the denoiser's activations are f32 or bf16, not %s: they leave the range of f16",
         name_of(options.activation));
  }
  return std::make_unique<dit::Transformer>(ops, component, options, control);
}

DitInspection inspect_dit(const Component& component, Log& log) {
  const dit::Source source = dit::read_source(component, log);
  DitInspection out;
  out.config = source.config;
  const auto count = [](const MatrixSource& matrix) { return matrix.rows * matrix.cols; };
  const auto add_adaln = [&](const dit::AdalnSource& adaln) {
    if (adaln.weight.parts.empty()) return;
    out.adaln_values += count(adaln.weight);
    out.adaln_stored_bytes += adaln.weight.stored_bytes();
  };
  for (const auto* stack : {&source.blocks, &source.refiner}) {
    for (const dit::BlockSource& block : *stack) {
      for (const MatrixSource* matrix : {&block.qkv, &block.out, &block.fc1, &block.fc2}) {
        out.block_values += count(*matrix);
        out.block_stored_bytes += matrix->stored_bytes();
      }
      out.other_values += 2 * (source.config.hidden + source.config.head_dim);
      add_adaln(block.adaln);
    }
  }
  add_adaln(source.final_adaln);
  for (const MatrixSource* matrix :
       {&source.video_in, &source.audio_in, &source.text_in, &source.video_out, &source.audio_out}) {
    out.other_values += count(*matrix) + matrix->rows;
  }
  out.other_values += 2 * source.config.hidden;
  return out;
}

std::vector<DitParameter> dit_block_parameters(const Component& component, Log& log) {
  const dit::Source source = dit::read_source(component, log);
  std::vector<DitParameter> out;
  for (const dit::BlockParameter& parameter : dit::parameters_of(source.blocks.front())) {
    out.push_back({parameter.name, row_of(parameter.format).name, parameter.dims});
  }
  const auto refuse = [&](size_t block, const std::string& name, const char* problem) {
    fail(Code::data, "%s: block %zu %s %s; one set of plans cannot serve all blocks", component.origin.c_str(), block,
         problem, name.c_str());
  };
  for (size_t i = 1; i < source.blocks.size(); ++i) {
    const std::vector<dit::BlockParameter> here = dit::parameters_of(source.blocks[i]);
    for (const dit::BlockParameter& parameter : here) {
      const auto found =
          std::find_if(out.begin(), out.end(), [&](const DitParameter& p) { return p.name == parameter.name; });
      if (found == out.end()) refuse(i, parameter.name, "has, unlike block 0,");
      if (found->dims != parameter.dims) refuse(i, parameter.name, "has another shape than block 0 of");
      const std::string format = row_of(parameter.format).name;
      if (("|" + found->format + "|").find("|" + format + "|") == std::string::npos) found->format += "|" + format;
    }
    for (const DitParameter& parameter : out) {
      const bool has =
          std::any_of(here.begin(), here.end(), [&](const dit::BlockParameter& p) { return p.name == parameter.name; });
      if (!has) refuse(i, parameter.name, "lacks");
    }
  }
  return out;
}

DitMemory dit_session_memory(const DitConfig& config, const PackedLayout& layout, int evaluations, DType activation,
                             int64_t adapter_rank) {
  DitMemory memory;
  memory.workspace = plan_workspace(dit::session_slots(config, layout, evaluations, activation, adapter_rank)).bytes;
  // Text and target video at t_v, target sound at t_a, conditions at a time of their own (spec dit 3.3).
  const int64_t rows = 3 * int64_t{evaluations} + 2;
  memory.modulation = dit::bank_bytes(config, rows, 2 * int64_t{evaluations}, activation);
  return memory;
}

}  // namespace h3
