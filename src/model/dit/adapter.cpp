#include "model/dit/adapter.h"

#include <algorithm>

#include "base/error.h"

namespace h3::dit {
namespace {

using lora::Branch;
using lora::Site;

std::unique_ptr<Linear> make(Ops& ops, const std::string& label, const MatrixSource& weight, DType activation) {
  LinearSpec spec;
  spec.label = label;
  spec.weight = weight;
  spec.compute = activation == DType::f32 ? Compute::f32 : Compute::bf16;
  return ops.make_linear(std::move(spec));
}

LiveBranch upload(Ops& ops, const Site& site, const std::vector<Branch>& branches, int64_t split, DType activation) {
  const std::string label = "dit." + lora::name_of(site) + ".lora";
  LiveBranch live;
  MatrixSource down;
  down.name = label;
  for (const Branch& branch : branches) {
    const int64_t first_rank = down.rows;
    down.append(branch.down, 0, branch.rank());
    // AdaLN rows are read modality by modality, so each has a part of its own.
    const int64_t step = split > 0 ? split : branch.up.rows;
    for (int64_t first = 0; first < branch.up.rows; first += step) {
      LiveBranch::Part part;
      part.up = make(ops, label + "_up", rows_of(branch.up, first, step), activation);
      part.first_rank = first_rank;
      part.first_row = branch.first_row + first;
      part.scale = branch.scale;
      live.parts.push_back(std::move(part));
    }
  }
  live.down = make(ops, label + "_down", down, activation);
  live.count_filled();
  return live;
}

void use_branch(const LoadedUse& use, const Site& site, BranchUses& out) {
  if (const LiveBranch* branch = use.adapter->find(site)) out.push_back({branch, use.strength});
}

}  // namespace

LoadedAdapter::LoadedAdapter(Ops& ops, const Source& source, const lora::Adapter& adapter, DType activation,
                             const Control& control)
    : silu_grid_(adapter.silu_grid()) {
  const std::vector<Site> sites = adapter.sites();
  int64_t done = 0;
  for (const Site& site : sites) {
    control.progress("load", done++, static_cast<int64_t>(sites.size()));
    const bool adaln = site.part == Site::Part::adaln;
    const int64_t split = adaln && site.stack == Site::Stack::trunk ? 6 * source.config.hidden : 0;
    const LiveBranch& live =
        sites_.emplace(site, upload(ops, site, adapter.branches(site), split, activation)).first->second;
    if (!adaln) {
      largest_rank_ = std::max(largest_rank_, live.down->out);
      continue;
    }
    changes_adaln_ = true;
    if (live.down->in == source.config.curve_rank || source.config.time_dim > 0) continue;
    if (silu_grid_.empty() || adapter.silu_points() * live.down->in != static_cast<int64_t>(silu_grid_.size())) {
      fail(Code::data,
           "%s: %s reads the %lld-wide time embedding, which the pruned checkpoint %s does not have; put "
           "h3_silu_temb_grid.safetensors beside the adapter, or use the full checkpoint",
           adapter.file().path.c_str(), lora::name_of(site).c_str(), static_cast<long long>(live.down->in),
           source.origin.c_str());
    }
  }
}

int64_t LoadedAdapter::bytes() const {
  int64_t sum = 0;
  for (const auto& [site, branch] : sites_) sum += branch.bytes();
  return sum;
}

const LiveBranch* LoadedAdapter::find(const Site& site) const {
  const auto found = sites_.find(site);
  return found == sites_.end() ? nullptr : &found->second;
}

Tensor LoadedAdapter::adaln_input(Ops& ops, const Source& source, const LiveBranch& branch,
                                  const std::vector<float>& times, DType type) const {
  const int64_t count = static_cast<int64_t>(times.size()), width = branch.down->in;
  if (width == source.config.curve_rank && !source.curve.empty()) {
    const std::vector<float> values = curve_coordinates(source.curve, width, times);
    return upload_f32(ops.device(), values.data(), {count, width}, type, "curve coordinates");
  }
  if (source.config.time_dim == 0) {
    const std::vector<float> values = curve_coordinates(silu_grid_, width, times);
    return upload_f32(ops.device(), values.data(), {count, width}, type, "time embedding");
  }
  const Tensor embedded = embed_times(ops, source, times);
  ops.silu(embedded, embedded);
  Tensor out(ops.device(), type, {count, width}, "time embedding");
  ops.copy(embedded, out);
  ops.sync();  // the f32 embedding is freed here
  return out;
}

std::vector<BlockBranches> branches_of(const std::vector<LoadedUse>& uses, Site::Stack stack, int64_t blocks) {
  std::vector<BlockBranches> out(static_cast<size_t>(blocks));
  for (int64_t i = 0; i < blocks; ++i) {
    for (const LoadedUse& use : uses) {
      use_branch(use, {stack, i, Site::Part::qkv}, out[i].qkv);
      use_branch(use, {stack, i, Site::Part::out}, out[i].out);
      use_branch(use, {stack, i, Site::Part::fc1}, out[i].fc1);
      use_branch(use, {stack, i, Site::Part::fc2}, out[i].fc2);
    }
  }
  return out;
}

namespace {

// rows [times, 6 hidden or 2 hidden] of one modality += the parts of the branch that start at first_row.
void add_to_rows(Ops& ops, const LiveBranch& branch, float strength, const View& x, int64_t first_row,
                 const View& rows) {
  const Tensor low(ops.device(), rows.type, {x.dim[0], branch.down->out}, "adapter");
  ops.linear(*branch.down, x, low);
  for (const LiveBranch::Part& part : branch.parts) {
    if (part.first_row != first_row) continue;
    ops.linear_add(*part.up, strength * part.scale, low.view.slice(1, part.first_rank, part.up->in), rows);
  }
  ops.sync();  // `low` is freed here
}

// The inputs of a run's AdaLN branches: one per list of times and width, shared by all blocks.
class AdalnInputs {
 public:
  AdalnInputs(Ops& ops, const Source& source, const LoadedAdapter& adapter, DType type)
      : ops_(ops), source_(source), adapter_(adapter), type_(type) {}
  const View& at(int64_t list, const std::vector<float>& times, const LiveBranch& branch) {
    const auto key = std::make_pair(list, branch.down->in);
    const auto found = made_.find(key);
    if (found != made_.end()) return found->second.view;
    return made_.emplace(key, adapter_.adaln_input(ops_, source_, branch, times, type_)).first->second.view;
  }

 private:
  Ops& ops_;
  const Source& source_;
  const LoadedAdapter& adapter_;
  DType type_;
  std::map<std::pair<int64_t, int64_t>, Tensor> made_;
};

Tensor copy_of(Ops& ops, const Tensor& from) {
  Tensor out(ops.device(), from.view.type, {from.view.dim[0], from.view.dim[1]}, "AdaLN rows");
  ops.copy(from, out);
  return out;
}

}  // namespace

std::shared_ptr<const ModulationBank> adapt_bank(Ops& ops, const Source& source,
                                                 const std::shared_ptr<const ModulationBank>& bank,
                                                 const std::vector<LoadedUse>& uses, DType type,
                                                 const Control& control) {
  const bool any =
      std::any_of(uses.begin(), uses.end(), [](const LoadedUse& use) { return use.adapter->changes_adaln(); });
  if (!any) return bank;
  auto out = std::make_shared<ModulationBank>();
  out->plan = bank->plan;
  for (const Tensor& rows : bank->blocks) out->blocks.push_back(copy_of(ops, rows));
  out->final_rows = copy_of(ops, bank->final_rows);
  for (const LoadedUse& use : uses) {
    AdalnInputs inputs(ops, source, *use.adapter, type);
    for (size_t i = 0; i < out->blocks.size(); ++i) {
      control.check();
      const Site site{Site::Stack::trunk, static_cast<int64_t>(i), Site::Part::adaln};
      const LiveBranch* branch = use.adapter->find(site);
      if (branch == nullptr) continue;
      int64_t begin = 0;
      for (int64_t tag = 0; tag < 3; ++tag) {
        const std::vector<float>& times = bank->plan.times[static_cast<size_t>(tag)];
        const int64_t count = static_cast<int64_t>(times.size());
        if (count == 0) continue;
        add_to_rows(ops, *branch, use.strength, inputs.at(tag, times, *branch), tag * 6 * source.config.hidden,
                    out->blocks[i].view.slice(0, begin, count));
        begin += count;
      }
    }
    const LiveBranch* branch = use.adapter->find({Site::Stack::head, 0, Site::Part::adaln});
    if (branch == nullptr) continue;
    add_to_rows(ops, *branch, use.strength, inputs.at(3, bank->plan.final_times, *branch), 0, out->final_rows);
  }
  ops.sync();
  return out;
}

}  // namespace h3::dit
