// The components of a CMF file as sources of tensors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "store/cmf.h"
#include "store/model_files.h"

namespace h3 {

struct CmfPart {
  Role role = Role::unknown;
  std::string prefix;  // in front of every tensor name; empty for the conditioner, whose tower has its own root
  std::shared_ptr<TensorSource> source;  // the tensors of this component only, configurations left out
  Json config;                           // as the loaders of the component read it
};

// One entry per component that the file holds. Error(data) for a tensor in a format that is not decoded.
std::vector<CmfPart> cmf_parts(const std::shared_ptr<const CmfFile>& file);

// What the file says about its use: shifts, and what the packer recorded; for a file with a turbo adapter inside, the
// schedule of such models (design 2).
Json cmf_defaults(const CmfFile& file);

// The partitions that a file declares, and where: its own header field, else the names of the files it was made of.
std::vector<Partition> cmf_partitions(const CmfFile& file);

// tokenizer.json and its configuration; empty when the file has none.
std::optional<TokenizerFiles> cmf_tokenizer(const CmfFile& file);

}  // namespace h3
