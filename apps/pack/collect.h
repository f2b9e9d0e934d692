// From components to the list of tensors that a pack will hold.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/pack/dit_pack.h"
#include "apps/pack/pack.h"

namespace h3 {

struct PackTensor {
  ExportTensor tensor;
  Format format = Format::f32;
  std::function<SharedMerge()> merge;  // what adapters add to it; empty = nothing
};

struct PackContents {
  std::vector<PackTensor> tensors;                    // sorted by name
  std::vector<std::pair<std::string, Json>> configs;  // "dit.config_json"
  int tap = 0;                                        // layers of the conditioner; 0 = none in the pack
  std::vector<std::string> notes;
  std::shared_ptr<DitPack> dit;  // what the tensors of the transformer read from
};

PackContents collect(const ModelFiles& files, const PackOptions& options, ThreadPool& pool, Log& log);

}  // namespace h3
