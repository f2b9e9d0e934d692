// Which strings are single tokens beside the base vocabulary, and under which ids (spec conditioner 2.2).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/text/tokenizer.h"
#include "store/model_files.h"

namespace h3 {

// Sorted by id. The released base vocabulary (151643 entries) always gets the release's own table, whatever a container
// carries; any other vocabulary is numbered by its files, and the additional special tokens are appended in list order
// from the first free id, as the reference does on load. Disagreements go to `notes`.
std::vector<AddedToken> resolve_added_tokens(const BpeModel& model, const TokenizerFiles& files, AddedSet set,
                                             std::vector<std::string>& notes);

// Names of the release's table: those of every Qwen3 model, most of them for chats, and those that H3 added for
// prompts.
std::span<const char* const> stock_tokens();
std::span<const char* const> h3_tokens();

}  // namespace h3
