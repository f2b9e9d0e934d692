// Adapters on the device: branches beside the linears, never merged, so that choosing another one touches no weight.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/dit/adaln.h"
#include "model/dit/block.h"
#include "model/dit/dit.h"
#include "model/lora/adapter.h"

namespace h3::dit {

class LoadedAdapter final : public DitAdapter {
 public:
  // Branches compute in the type of the activations, from the activations themselves. Error(data) when AdaLN branches
  // need the time embedding and neither the checkpoint nor the adapter has it.
  LoadedAdapter(Ops& ops, const Source& source, const lora::Adapter& adapter, DType activation, const Control& control);
  int64_t bytes() const override;
  const LiveBranch* find(const lora::Site& site) const;
  int64_t largest_rank() const { return largest_rank_; }  // of a linear's stacked branches, AdaLN left out
  bool changes_adaln() const { return changes_adaln_; }

  // What AdaLN branches read at these times: silu(time embedding) [times, width] T, or the curve's coordinates.
  Tensor adaln_input(Ops& ops, const Source& source, const LiveBranch& branch, const std::vector<float>& times,
                     DType type) const;

 private:
  std::map<lora::Site, LiveBranch> sites_;
  std::vector<float> silu_grid_;  // [points, time width], or empty
  int64_t largest_rank_ = 0;
  bool changes_adaln_ = false;
};

struct LoadedUse {
  const LoadedAdapter* adapter = nullptr;
  float strength = 1;
};

// Branches per block, in the order of the uses.
std::vector<BlockBranches> branches_of(const std::vector<LoadedUse>& uses, lora::Site::Stack stack, int64_t blocks);

// The bank with every AdaLN branch added to its rows; the same bank when no adapter has one.
std::shared_ptr<const ModulationBank> adapt_bank(Ops& ops, const Source& source,
                                                 const std::shared_ptr<const ModulationBank>& bank,
                                                 const std::vector<LoadedUse>& uses, DType type,
                                                 const Control& control);

}  // namespace h3::dit
