// The denoiser of a pack: adapters merged into it, and its AdaLN in the form asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/pack/pack.h"
#include "model/dit/export.h"
#include "model/lora/adapter.h"

namespace h3 {

using SharedMerge = std::shared_ptr<const lora::SiteMerge>;

class DitPack {
 public:
  DitPack(const Component& component, const PackOptions& options, ThreadPool& pool, Log& log);

  Exported exported(double video_shift, double audio_shift);
  // What adapters add to a tensor of the pack; null for most.
  SharedMerge merge_of(const std::string& name) const;
  const std::vector<std::string>& notes() const { return notes_; }
  // Adapters became part of the curves, so that every block has one of its own.
  bool branches_in_curves() const { return branches_in_curves_; }

 private:
  struct Curve;  // fitted once, projections made one block at a time

  void load_adapters();
  bool wants_curve() const;
  void make_curve(dit::DitExportOptions& wanted);
  void extend_curves(dit::DitExportOptions& wanted);
  dit::ExportAdaln curved(const Curve& state, int64_t block) const;
  void use_curves(std::shared_ptr<Curve> state, dit::DitExportOptions& wanted);
  void check_curve(const Curve& state);
  lora::Site adaln_site(int64_t block) const;
  const dit::AdalnSource& adaln(int64_t block) const;
  bool adapters_change_adaln() const;

  const Component& component_;
  const PackOptions& options_;
  ThreadPool& pool_;
  Log& log_;
  std::shared_ptr<const dit::Source> source_;
  lora::TargetTable targets_;
  std::vector<std::unique_ptr<lora::Adapter>> adapters_;
  std::vector<lora::Use> uses_;
  bool branches_in_curves_ = false;
  bool merges_adaln_ = true;  // false: the branches are part of the curves
  std::vector<std::string> notes_;
};

}  // namespace h3
