// How adapter files name things (spec formats E.3): a prefix, a module path and a suffix.
#pragma once

#include <cstdint>
#include <string>

namespace h3::lora {

enum class Piece : uint8_t {
  down,         // A [rank, in]
  up,           // B [out, rank]
  alpha,        // scalar
  gate,         // of a trained-sparse attention
  unsupported,  // full deltas, replacements, DoRA, LoKr, LoHa, OFT, a middle matrix
  unknown
};

struct Key {
  std::string module;  // without prefix; of kohya files with underscores for dots
  Piece piece = Piece::unknown;
  const char* kind = "";  // of unsupported pieces, in words
};

Key parse_key(const std::string& name);

}  // namespace h3::lora
