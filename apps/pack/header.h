// The JSON header of a pack (spec formats A.10), and its tokenizer section.
#pragma once

#include <string>
#include <vector>

#include "apps/pack/collect.h"
#include "store/cmf.h"

namespace h3 {

// tokenizer.json, verbatim where there is one, else made of vocab.json and merges.txt; empty without a tokenizer.
std::string tokenizer_section(const ModelFiles& files);

// `strong`: XXH3-128 of every entry, in order; strings of one length, so that the header's length is known before.
std::string pack_header(const ModelFiles& files, const PackContents& contents, const PackOptions& options,
                        const CmfSections& sections, const std::vector<CmfEntry>& entries,
                        const std::vector<std::string>& strong);

}  // namespace h3
