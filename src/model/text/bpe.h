// The byte-level BPE model: tokens as bytes, merges by rank (spec conditioner 2.1, 2.3).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/model_files.h"

namespace h3 {

struct BpeModel {
  struct Merge {
    int32_t rank, id;
  };
  std::vector<std::string> tokens;             // raw bytes of every base token, by id
  std::array<int32_t, 256> byte_ids{};         // id of each single byte
  std::unordered_map<uint64_t, Merge> merges;  // key: left id << 32 | right id

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  // Appends the ids of one piece: merges the adjacent pair of lowest rank, leftmost on ties, until none has a rank.
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;
};

// From tokenizer.json, else vocab.json + merges.txt, else merges.txt alone. Error(data) naming the file when it is not
// a byte-level BPE of the Qwen2 kind.
BpeModel load_bpe(const TokenizerFiles& files);

}  // namespace h3
