#include "apps/pack/dit_pack.h"

#include <algorithm>

#include "apps/pack/time_curve.h"
#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"

namespace h3 {
namespace {

constexpr int64_t kCheckStride = 256;  // rows of a projection that --check-adaln looks at

// "dit.blocks.3.attn.qkv_proj.weight" -> "blocks.3.attn.qkv_proj", as adapters name it.
std::string module_of(const std::string& name) {
  constexpr std::string_view kPrefix = "dit.", kSuffix = ".weight", kAdaln = ".adaln";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return "";
  std::string module = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  if (module.ends_with(kAdaln)) module += "_proj.linear";
  return module;
}

}  // namespace

// The last projection made is kept: its weight, bias and table are written one after the other.
struct DitPack::Curve {
  TimeCurve fitted;         // points 0: the base has curves already
  std::vector<float> silu;  // what was fitted
  BranchTarget branches;
  int64_t at = -2;
  dit::ExportAdaln made;
};

DitPack::DitPack(const Component& component, const PackOptions& options, ThreadPool& pool, Log& log)
    : component_(component),
      options_(options),
      pool_(pool),
      log_(log),
      source_(std::make_shared<const dit::Source>(dit::read_source(component, log))),
      targets_(source_->config) {
  load_adapters();
}

void DitPack::load_adapters() {
  for (const auto& [path, strength] : options_.adapters) {
    adapters_.push_back(
        std::make_unique<lora::Adapter>(lora::open_adapter(path), targets_, lora::BindOptions{.partial = false}));
    uses_.push_back({adapters_.back().get(), strength});
    notes_.push_back(path + ": " + adapters_.back()->coverage().to_text());
    for (const std::string& note : adapters_.back()->notes()) notes_.push_back(path + ": " + note);
  }
}

lora::Site DitPack::adaln_site(int64_t block) const {
  lora::Site site;
  site.stack = block < 0 ? lora::Site::Stack::head : lora::Site::Stack::trunk;
  site.block = std::max<int64_t>(block, 0);
  site.part = lora::Site::Part::adaln;
  return site;
}

const dit::AdalnSource& DitPack::adaln(int64_t block) const {
  return block < 0 ? source_->final_adaln : source_->blocks[static_cast<size_t>(block)].adaln;
}

bool DitPack::adapters_change_adaln() const {
  for (const auto& adapter : adapters_) {
    for (const lora::Site& site : adapter->sites()) {
      if (site.part == lora::Site::Part::adaln) return true;
    }
  }
  return false;
}

bool DitPack::wants_curve() const {
  const bool has_curve = !source_->curve.empty() || !source_->final_adaln.table.empty();
  if (has_curve) {
    if (options_.adaln == AdalnForm::full) {
      fail(Code::usage, "--adaln full: %s has curves already; the full projections are in the unpruned checkpoint",
           component_.origin.c_str());
    }
    return false;
  }
  const bool stored = component_.spelling == Spelling::cmf;
  if (stored && options_.adaln == AdalnForm::curve) {
    fail(Code::usage, "--adaln curve: tensors of a CMF are kept as they are; pack %s again from its loose files",
         component_.origin.c_str());
  }
  if (options_.adaln != AdalnForm::automatic) return options_.adaln == AdalnForm::curve;
  ExportTensor sample;
  sample.keep = Keep::half;
  sample.family = "dit.adaln";
  const std::optional<Format> format = options_.policy.format_of(sample, stored);
  return !stored && format && *format != Format::f32 && curve_fit_available();
}

// A full base: rank 8, and what adapters add to the projections beside it, which no fit rounds.
void DitPack::make_curve(dit::DitExportOptions& wanted) {
  Context context{pool_, log_};
  const std::unique_ptr<Ops> ops = make_backend("cpu", context);
  auto state = std::make_shared<Curve>();
  state->silu = silu_grid(*ops, *source_, kCurvePoints);
  state->fitted = fit_time_curve(state->silu, kCurvePoints, kCurveRank);
  state->branches.silu = &state->silu;
  use_curves(state, wanted);
}

// A pruned base keeps its coordinates and gains those of the branches.
void DitPack::extend_curves(dit::DitExportOptions& wanted) { use_curves(std::make_shared<Curve>(), wanted); }

dit::ExportAdaln DitPack::curved(const Curve& state, int64_t block) const {
  const dit::AdalnSource& own = adaln(block);
  dit::ExportAdaln base;
  if (state.fitted.points > 0) {
    base = behind_curve(own, lora::SiteMerge({}, adaln_site(block)), state.fitted, pool_);
  } else {
    base = {own.weight, own.bias, own.table.empty() ? source_->curve : own.table};
  }
  return adapters_change_adaln() ? with_branches(base, uses_, adaln_site(block), state.branches) : base;
}

// All projections get the width of the widest: an adapter may leave some alone, or have ranks that differ.
void DitPack::use_curves(std::shared_ptr<Curve> state, dit::DitExportOptions& wanted) {
  for (int64_t block = -1; block < static_cast<int64_t>(source_->blocks.size()); ++block) {
    const int64_t own = state->fitted.points > 0 ? state->fitted.rank : adaln(block).weight.cols;
    const int64_t width = branched_width(own, uses_, adaln_site(block), state->branches);
    state->branches.width = std::max(state->branches.width, width);
  }
  if (options_.check_adaln && state->fitted.points > 0) check_curve(*state);
  state->made = curved(*state, -1);
  state->at = -1;
  wanted.adaln_width = state->made.weight.cols;
  wanted.adaln_points = static_cast<int64_t>(state->made.table.size()) / wanted.adaln_width;
  wanted.adaln = [this, state](int64_t block) {
    if (state->at != block) {
      state->made = curved(*state, block);
      state->at = block;
    }
    return state->made;
  };
  if (adapters_change_adaln()) {
    notes_.push_back(strf("AdaLN: curves of rank %lld, adapters inside", static_cast<long long>(wanted.adaln_width)));
    branches_in_curves_ = true;
  }
  merges_adaln_ = false;  // the branches are part of the curves
}

void DitPack::check_curve(const Curve& state) {
  std::string line = "AdaLN: centred spectrum";
  for (size_t i = 0; i < std::min<size_t>(12, state.fitted.spectrum.size()); ++i) {
    line += strf(" %.3e", state.fitted.spectrum[i]);
  }
  notes_.push_back(line);
  CurveError worst;
  for (int64_t block = -1; block < static_cast<int64_t>(source_->blocks.size()); ++block) {
    const lora::SiteMerge merge(uses_, adaln_site(block));
    const CurveError error = curve_error(adaln(block), merge, curved(state, block), state.silu, kCheckStride, pool_);
    if (error.rms >= worst.rms) worst = error;
  }
  notes_.push_back(strf("AdaLN: rank %lld, worst projection: max error %.3e, rms %.3e on a signal of rms %.3f",
                        static_cast<long long>(state.branches.width), worst.max_abs, worst.rms, worst.signal));
}

Exported DitPack::exported(double video_shift, double audio_shift) {
  dit::DitExportOptions wanted;
  wanted.video_shift = video_shift;
  wanted.audio_shift = audio_shift;
  const bool pruned = !source_->curve.empty() || !source_->final_adaln.table.empty();
  if (wants_curve()) {
    make_curve(wanted);
  } else if (pruned && adapters_change_adaln()) {
    if (component_.spelling == Spelling::cmf) {
      fail(Code::usage, "%s: its AdaLN curves cannot take another adapter; pack again from the loose files",
           component_.origin.c_str());
    }
    extend_curves(wanted);
  }
  if (options_.check_adaln && (pruned || !wanted.adaln)) {
    notes_.push_back(strf("AdaLN: nothing to check: %s",
                          pruned ? "the transformer came with its curves" : "the projections are kept as they are"));
  }
  return dit::export_dit(source_, wanted);
}

SharedMerge DitPack::merge_of(const std::string& name) const {
  if (uses_.empty()) return nullptr;
  const lora::Target* target = targets_.find(module_of(name));
  if (target == nullptr || (target->site.part == lora::Site::Part::adaln && !merges_adaln_)) return nullptr;
  auto merge = std::make_shared<const lora::SiteMerge>(uses_, target->site);
  return merge->empty() ? nullptr : merge;
}

}  // namespace h3
