// Adapter files (LoRA): y = base(x) + strength * (alpha / rank) * B (A x) for a set of matrices of the denoiser
// (spec formats E). Every spelling in circulation becomes the same branches, value for value.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/lora/recipe.h"
#include "model/lora/targets.h"
#include "quant/matrix.h"
#include "store/tensor_source.h"

namespace h3::lora {

// One product added to rows of a matrix. Where a file fuses independent branches (q, k and v with zeros between them),
// they are taken apart: the zeros cost memory and time.
struct Branch {
  StoredMatrix down;      // A [rank, in]
  MatrixSource up;        // B [rows, rank], rows in the order of the forward
  int64_t first_row = 0;  // the branch adds to rows [first_row, first_row + rows) of the site
  float scale = 1;        // alpha / rank
  int64_t rank() const { return down.rows; }
};

// What a file covers of a model.
struct Coverage {
  int64_t tensors = 0;                           // of the file, all of them accounted for
  int64_t pairs = 0;                             // of A and B
  int64_t matrices = 0, all_matrices = 0;        // of the blocks
  int64_t projections = 0, all_projections = 0;  // AdaLN
  int64_t least_rank = 0, most_rank = 0;
  std::string alpha;                   // "from the file", "none given: alpha = rank"
  std::vector<std::string> left_over;  // with `partial` only: tensors that fit nothing
  std::string to_text() const;         // one line
};

// A file, before it is held against a model: headers only.
struct AdapterFile {
  std::string path, id;  // id: hash of the header and of samples of every tensor
  std::shared_ptr<TensorSource> source;
  std::optional<Recipe> recipe;  // of a distilled adapter
  int64_t pairs = 0;
};

// Error(data) for files that are no adapter, and for those that refuse_unsupported names.
AdapterFile open_adapter(const std::string& path);
AdapterFile adapter_of(std::shared_ptr<TensorSource> source, const std::string& path);

struct BindOptions {
  bool partial = false;  // tensors that fit nothing are left out and counted instead of refused
};

class Adapter {
 public:
  // Holds the file against the model: Error(data) that names every tensor that is missing, left over or of the wrong
  // shape, and the one to expect.
  Adapter(AdapterFile file, const TargetTable& targets, const BindOptions& options);

  const AdapterFile& file() const { return file_; }
  const Coverage& coverage() const { return coverage_; }
  const std::vector<std::string>& notes() const { return notes_; }  // what the user should know: assumed alpha
  std::vector<Site> sites() const;
  // The branches of a site in order of first_row; empty when the file does not touch it. Copies the parts of fused
  // matrices, so that callers ask for one site after the other.
  std::vector<Branch> branches(const Site& site) const;

  // silu(time embedding) over t in [0, 1], [points, time_dim], when the file or its neighbour
  // h3_silu_temb_grid.safetensors carries it: what AdaLN branches read on a pruned base (spec formats E.2).
  const std::vector<float>& silu_grid() const { return silu_grid_; }
  int64_t silu_points() const { return silu_points_; }

 private:
  struct Pair {
    const TensorInfo *down = nullptr, *up = nullptr, *alpha = nullptr;
    std::string module;
    Target target;
    float scale = 1;
  };
  class Reader;

  StoredMatrix matrix(const TensorInfo& info) const;
  void append_branches(const Pair& pair, std::vector<Branch>& out) const;

  AdapterFile file_;
  Coverage coverage_;
  std::vector<std::string> notes_;
  std::map<Site, std::vector<Pair>> pairs_;
  std::vector<float> silu_grid_;
  int64_t silu_points_ = 0, inner_ = 0, ffn_ = 0;
};

// One adapter in use.
struct Use {
  const Adapter* adapter = nullptr;
  float strength = 1;
};

// Merges adapters into the weights of one site, for packers, which stream weights row by row:
// W += strength * (alpha / rank) * B A, in f32, adapter after adapter.
class SiteMerge {
 public:
  SiteMerge(const std::vector<Use>& uses, const Site& site);
  bool empty() const { return branches_.empty(); }
  // rows [count, in] f32 are rows [first, first + count) of the site in the order of the forward.
  void add(int64_t first, int64_t count, float* rows) const;

 private:
  struct Part {
    std::vector<float> down;  // [rank, in]
    MatrixSource up;
    int64_t first_row, rank, in;
    float scale;  // with the strength
  };
  std::vector<Part> branches_;
};

}  // namespace h3::lora
