// From the tensors of a file to pairs that fit a model.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "model/lora/adapter.h"
#include "model/lora/names.h"
#include "store/values.h"

namespace h3::lora {
namespace {

constexpr const char* kGridName = "silu_t_emb_grid";
constexpr const char* kGridFile = "h3_silu_temb_grid.safetensors";
constexpr size_t kSampleBytes = 4096;  // of every tensor, for the id
constexpr size_t kMostProblems = 8;

std::string id_of(const TensorSource& source) {
  const std::string head = source.id();
  uint64_t hash = fnv1a64(std::as_bytes(std::span(head)));
  for (const TensorInfo& info : source.tensors()) {
    hash = fnv1a64(info.data.subspan(0, std::min(kSampleBytes, info.data.size())), hash);
  }
  return strf("%016llx", static_cast<unsigned long long>(hash));
}

// A number from the file's metadata; NaN when it has none. PEFT's settings are JSON inside one entry.
double metadata_number(const TensorSource& source, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto found = source.metadata().find(key);
    if (found == source.metadata().end()) continue;
    char* end = nullptr;
    const double value = std::strtod(found->second.c_str(), &end);
    if (end != found->second.c_str() && std::isfinite(value) && value > 0) return value;
  }
  return NAN;
}

}  // namespace

AdapterFile adapter_of(std::shared_ptr<TensorSource> source, const std::string& path) {
  AdapterFile file;
  file.path = path;
  file.source = std::move(source);
  refuse_unsupported(*file.source, path);
  for (const TensorInfo& info : file.source->tensors()) file.pairs += parse_key(info.name).piece == Piece::down;
  if (file.pairs == 0) {
    fail(Code::data, "%s: not an adapter: none of its %zu tensors is the A matrix of a low-rank pair", path.c_str(),
         file.source->tensors().size());
  }
  file.id = id_of(*file.source);
  file.recipe = recipe_of(*file.source, path);
  return file;
}

AdapterFile open_adapter(const std::string& path) { return adapter_of(open_safetensors(path), path); }

std::string Coverage::to_text() const {
  std::string text =
      strf("%lld of %lld block matrices", static_cast<long long>(matrices), static_cast<long long>(all_matrices));
  text += strf(", %lld of %lld AdaLN projections, %lld pairs in %lld tensors", static_cast<long long>(projections),
               static_cast<long long>(all_projections), static_cast<long long>(pairs), static_cast<long long>(tensors));
  text += least_rank == most_rank
              ? strf(", rank %lld", static_cast<long long>(most_rank))
              : strf(", ranks %lld to %lld", static_cast<long long>(least_rank), static_cast<long long>(most_rank));
  text += ", alpha " + alpha;
  if (!left_over.empty()) text += strf(", %zu tensors left out", left_over.size());
  return text;
}

class Adapter::Reader {
 public:
  Reader(Adapter& adapter, const TargetTable& targets, const BindOptions& options)
      : adapter_(adapter), source_(*adapter.file_.source), targets_(targets), options_(options) {}

  void run() {
    collect();
    for (auto& [module, pair] : by_module_) check_pair(module, pair);
    scales();
    report_problems();
    for (auto& [module, pair] : by_module_) {
      if (pair.target.rows > 0) adapter_.pairs_[pair.target.site].push_back(pair);
    }
    for (auto& [site, pairs] : adapter_.pairs_) {
      std::sort(pairs.begin(), pairs.end(),
                [](const Pair& a, const Pair& b) { return a.target.first_row < b.target.first_row; });
    }
    check_overlaps();
    report_problems();
    coverage();
    grid();
  }

 private:
  void problem(std::string text) { problems_.push_back(std::move(text)); }
  void left_over(const TensorInfo& info, const std::string& why) {
    if (options_.partial) {
      adapter_.coverage_.left_over.push_back(info.name);
    } else {
      problem(info.name + " " + why);
    }
  }

  void collect() {
    for (const TensorInfo& info : source_.tensors()) {
      if (info.name == kGridName) continue;
      const Key key = parse_key(info.name);
      if (key.piece == Piece::unsupported) {
        left_over(info, strf("holds %s, which is not supported", key.kind));
        continue;
      }
      if (key.piece == Piece::unknown) {
        left_over(info, "is left over: not a part of a low-rank pair");
        continue;
      }
      const Target* target = targets_.find(key.module);
      if (target == nullptr) {
        left_over(info, "is left over: the model has no such matrix");
        continue;
      }
      Pair& pair = by_module_[key.module];
      pair.module = key.module;
      pair.target = *target;
      const TensorInfo*& slot = key.piece == Piece::down ? pair.down : key.piece == Piece::up ? pair.up : pair.alpha;
      if (slot != nullptr) {
        problem(strf("%s and %s are the same matrix", slot->name.c_str(), info.name.c_str()));
      }
      slot = &info;
    }
  }

  void check_pair(const std::string& module, Pair& pair) {
    if (pair.down == nullptr || pair.up == nullptr) {
      const TensorInfo& there = pair.down != nullptr ? *pair.down : pair.up != nullptr ? *pair.up : *pair.alpha;
      const bool both = pair.down == nullptr && pair.up == nullptr;
      problem(strf("the %s of %s is missing (%s is there)",
                   both                   ? "A and B"
                   : pair.down == nullptr ? "A"
                                          : "B",
                   module.c_str(), there.name.c_str()));
      return;
    }
    const auto two = [&](const TensorInfo& info) {
      if (info.dims.size() == 2 && info.dims[0] > 0 && info.dims[1] > 0) return true;
      problem(strf("%s has shape %s, a matrix is expected", info.name.c_str(), shape_text(info.dims).c_str()));
      return false;
    };
    if (!two(*pair.down) || !two(*pair.up)) return;
    for (const TensorInfo* info : {pair.down, pair.up}) {
      if (info->format == Format::f32 || info->format == Format::bf16 || info->format == Format::f16) continue;
      problem(strf("%s is stored as %s, f32, bf16 or f16 is expected", info->name.c_str(), row_of(info->format).name));
    }
    const int64_t rank = pair.down->dims[0], cols = pair.target.cols;
    const int64_t curve = targets_.config().curve_rank;
    const bool adaln = pair.target.site.part == Site::Part::adaln;
    const bool width_fits =
        cols < 0 || pair.down->dims[1] == cols || (adaln && curve > 0 && pair.down->dims[1] == curve);
    if (!width_fits) {
      problem(strf("%s has shape %s, [rank, %lld] is expected%s", pair.down->name.c_str(),
                   shape_text(pair.down->dims).c_str(), static_cast<long long>(cols),
                   pair.down->dims[0] == cols ? " (it is transposed)" : ""));
      return;
    }
    if (pair.up->dims[0] != pair.target.rows) {
      problem(strf("%s has shape %s, [%lld, rank] is expected%s", pair.up->name.c_str(),
                   shape_text(pair.up->dims).c_str(), static_cast<long long>(pair.target.rows),
                   pair.up->dims[1] == pair.target.rows ? " (it is transposed)" : ""));
    } else if (pair.up->dims[1] != rank) {
      problem(strf("%s has rank %lld, but %s has %lld", pair.up->name.c_str(), static_cast<long long>(pair.up->dims[1]),
                   pair.down->name.c_str(), static_cast<long long>(rank)));
    }
    if (pair.alpha == nullptr) return;
    int64_t count = 1;
    for (const int64_t d : pair.alpha->dims) count *= d;
    if (count != 1) {
      problem(strf("%s has shape %s, one number is expected", pair.alpha->name.c_str(),
                   shape_text(pair.alpha->dims).c_str()));
    }
  }

  // alpha / rank: from the tensors, else the metadata, else the recipe of a file in the trainer's spelling, else 1.
  void scales() {
    if (!problems_.empty()) return;
    Coverage& coverage = adapter_.coverage_;
    const double alpha = metadata_number(source_, {"training_alpha", "lora_alpha", "ss_network_alpha", "alpha"});
    const double trained_rank = metadata_number(source_, {"training_rank"});
    const std::optional<Recipe>& recipe = adapter_.file_.recipe;
    int64_t with = 0, native = 0, all = 0;
    for (const auto& [module, pair] : by_module_) {
      ++all;
      with += pair.alpha != nullptr;
      native +=
          module.find("transformer_blocks") != std::string::npos || module.find("refiner_blocks") != std::string::npos;
    }
    if (with > 0 && with < all) {
      for (const auto& [module, pair] : by_module_) {
        if (pair.alpha == nullptr) problem("the alpha of " + module + " is missing (other pairs have one)");
      }
      return;
    }
    for (auto& [module, pair] : by_module_) {
      const double rank = static_cast<double>(pair.down->dims[0]);
      if (pair.alpha != nullptr) {
        const float value = values_of(*pair.alpha).at(0);
        pair.scale = value / static_cast<float>(rank);
        if (!std::isfinite(value) || value <= 0) problem(strf("%s is %g", pair.alpha->name.c_str(), value));
      } else if (std::isfinite(alpha)) {
        // A fused pair stacks the ranks of its parts; the metadata speak of one part.
        pair.scale = static_cast<float>(alpha / (std::isfinite(trained_rank) ? trained_rank : rank));
      } else if (recipe && native == all) {
        pair.scale = static_cast<float>(recipe->native_scale);
      }
    }
    if (with > 0) {
      coverage.alpha = "from the file";
    } else if (std::isfinite(alpha)) {
      coverage.alpha = "from the metadata";
    } else if (recipe && native == all && all > 0) {
      coverage.alpha = strf("alpha / rank = %g, of the %s recipe", recipe->native_scale, recipe->name.c_str());
      adapter_.notes_.push_back(strf("%s: the file holds no alpha; using alpha / rank = %g of the %s recipe",
                                     adapter_.file_.path.c_str(), recipe->native_scale, recipe->name.c_str()));
    } else {
      coverage.alpha = "none given: alpha = rank";
      adapter_.notes_.push_back(adapter_.file_.path + ": the file holds no alpha; using alpha = rank");
    }
  }

  void check_overlaps() {
    for (const auto& [site, pairs] : adapter_.pairs_) {
      for (size_t i = 1; i < pairs.size(); ++i) {
        if (pairs[i].target.first_row < pairs[i - 1].target.first_row + pairs[i - 1].target.rows) {
          problem(strf("%s and %s change the same rows of %s", pairs[i - 1].module.c_str(), pairs[i].module.c_str(),
                       name_of(site).c_str()));
        }
      }
    }
  }

  void coverage() {
    Coverage& coverage = adapter_.coverage_;
    coverage.tensors = static_cast<int64_t>(source_.tensors().size());
    coverage.pairs = static_cast<int64_t>(by_module_.size());
    coverage.all_matrices = targets_.matrices();
    coverage.all_projections = targets_.projections();
    for (const auto& [site, pairs] : adapter_.pairs_) {
      ++(site.part == Site::Part::adaln ? coverage.projections : coverage.matrices);
      for (const Pair& pair : pairs) {
        const int64_t rank = pair.down->dims[0];
        coverage.least_rank = coverage.least_rank == 0 ? rank : std::min(coverage.least_rank, rank);
        coverage.most_rank = std::max(coverage.most_rank, rank);
      }
    }
    if (adapter_.pairs_.empty()) fail(Code::data, "%s: no tensor fits the model", adapter_.file_.path.c_str());
  }

  // AdaLN branches on a pruned base need silu(time embedding), which only the full checkpoint can compute.
  void grid() {
    if (adapter_.coverage_.projections == 0) return;
    const std::filesystem::path beside = std::filesystem::path(adapter_.file_.path).parent_path() / kGridFile;
    std::unique_ptr<TensorSource> neighbour;
    const TensorInfo* found = source_.find(kGridName);
    if (found == nullptr && std::filesystem::exists(beside)) {
      neighbour = open_safetensors(beside.string());
      found = neighbour->find(kGridName);
    }
    if (found == nullptr) return;
    if (found->dims.size() != 2 || found->dims[0] < 2) {
      fail(Code::data, "%s: %s has shape %s, [points, width] is expected", found->file.c_str(), kGridName,
           shape_text(found->dims).c_str());
    }
    adapter_.silu_points_ = found->dims[0];
    adapter_.silu_grid_ = values_of(*found);
  }

  void report_problems() const {
    if (problems_.empty()) return;
    std::string text;
    for (size_t i = 0; i < std::min(problems_.size(), kMostProblems); ++i) text += (i > 0 ? "; " : "") + problems_[i];
    if (problems_.size() > kMostProblems) text += strf("; and %zu more", problems_.size() - kMostProblems);
    fail(Code::data, "%s: %s (--lora-partial leaves out what fits nothing)", adapter_.file_.path.c_str(), text.c_str());
  }

  Adapter& adapter_;
  const TensorSource& source_;
  const TargetTable& targets_;
  const BindOptions& options_;
  std::map<std::string, Pair> by_module_;
  std::vector<std::string> problems_;
};

Adapter::Adapter(AdapterFile file, const TargetTable& targets, const BindOptions& options)
    : file_(std::move(file)), inner_(targets.config().inner()), ffn_(targets.config().ffn) {
  Reader(*this, targets, options).run();
}

}  // namespace h3::lora
