#include "model/lora/names.h"

namespace h3::lora {
namespace {

// The longest first: each is tried in turn, and again for wrappers inside wrappers.
constexpr const char* kPrefixes[] = {
    "model.diffusion_model.", "base_model.model.", "diffusion_model.", "transformer.", "lora_unet_", "model.", "dit."};

struct Suffix {
  const char* text;
  Piece piece;
  const char* kind;
};
constexpr Suffix kSuffixes[] = {
    {".lora_A.default.weight", Piece::down, ""},
    {".lora_B.default.weight", Piece::up, ""},
    {".lora_A.weight", Piece::down, ""},
    {".lora_B.weight", Piece::up, ""},
    {".lora_down.weight", Piece::down, ""},
    {".lora_up.weight", Piece::up, ""},
    {".lora.down.weight", Piece::down, ""},
    {".lora.up.weight", Piece::up, ""},
    {"_lora.down.weight", Piece::down, ""},
    {"_lora.up.weight", Piece::up, ""},
    {".lora_A", Piece::down, ""},
    {".lora_B", Piece::up, ""},
    {".alpha", Piece::alpha, ""},
    {".diff", Piece::unsupported, "a full difference"},
    {".diff_b", Piece::unsupported, "a difference of a bias"},
    {".set_weight", Piece::unsupported, "a replacement of the weight"},
    {".dora_scale", Piece::unsupported, "DoRA"},
    {".lora_mid.weight", Piece::unsupported, "a middle matrix"},
};

// Families that are told by a part of the name.
struct Family {
  const char* part;
  Piece piece;
  const char* kind;
};
constexpr Family kFamilies[] = {
    {".to_gate_compress", Piece::gate, ""},
    {".lokr_", Piece::unsupported, "LoKr"},
    {".hada_", Piece::unsupported, "LoHa"},
    {".oft_", Piece::unsupported, "OFT"},
};

}  // namespace

Key parse_key(const std::string& name) {
  std::string rest = name;
  for (int pass = 0; pass < 2; ++pass) {
    for (const char* prefix : kPrefixes) {
      if (!rest.starts_with(prefix)) continue;
      rest = rest.substr(std::string(prefix).size());
      break;
    }
  }
  for (const Family& family : kFamilies) {
    const size_t at = rest.find(family.part);
    if (at != std::string::npos) return {rest.substr(0, at), family.piece, family.kind};
  }
  for (const Suffix& suffix : kSuffixes) {
    if (!rest.ends_with(suffix.text)) continue;
    return {rest.substr(0, rest.size() - std::string(suffix.text).size()), suffix.piece, suffix.kind};
  }
  return {rest, Piece::unknown, ""};
}

}  // namespace h3::lora
