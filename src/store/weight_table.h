// A component's tensors as constexpr rows, so that checkpoints of every size share every line.
//
//   struct BlockW { const TensorInfo *norm1, *out; };
//   enum class Dim : uint8_t { none, hidden, inner };
//   inline constexpr WeightRow<BlockW, Dim> kBlock[] = {
//       {&BlockW::norm1, "norm1.weight", {Dim::hidden}, kKeepF32},
//       {&BlockW::out, "attn.out_proj.weight", {Dim::hidden, Dim::inner}, kQuantise | kAdapterTarget},
//   };
//   static_assert(std::size(kBlock) * sizeof(const TensorInfo*) == sizeof(BlockW), "a field has no row");
//   bind_rows(binder, "blocks.0.", kBlock, block, [&](Dim dim) -> int64_t { ... });
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store/weights.h"

namespace h3 {

enum WeightFlags : uint8_t {
  kRequired = 0,
  kMayBeAbsent = 1,    // the field stays nullptr
  kKeepF32 = 2,        // norms, biases, tables: never stored below f32 by the packer
  kQuantise = 4,       // a matrix that the packer may store in a block format
  kAdapterTarget = 8,  // a LoRA may name it
};

// Dim is an enum whose value 0 means "no axis"; resolve() turns the others into sizes (-1 = any).
template <typename Owner, typename Dim>
struct WeightRow {
  const TensorInfo* Owner::*field;
  const char* name;  // behind the prefix given to bind_rows
  std::array<Dim, 5> dims;
  int flags = kRequired;
};

template <typename Owner, typename Dim, size_t kRows, typename Resolve>
void bind_rows(WeightBinder& binder, const std::string& prefix, const WeightRow<Owner, Dim> (&rows)[kRows],
               Owner& owner, const Resolve& resolve) {
  for (const WeightRow<Owner, Dim>& row : rows) {
    std::vector<int64_t> dims;
    for (const Dim dim : row.dims) {
      if (dim != Dim{}) dims.push_back(resolve(dim));
    }
    owner.*row.field = (row.flags & kMayBeAbsent) != 0 ? binder.optional(prefix + row.name, dims)
                                                       : binder.require(prefix + row.name, dims);
  }
}

}  // namespace h3
