// The demo model in full precision: the trained repository that models/demo was packed from. It lies beside the full
// golden data, not in this repository.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace h3::testing {

inline constexpr int kFullDemoTap = 4;  // its configs do not say which hidden state the transformer reads

// Its folder; empty when H3_GOLDEN names no folder beside it.
inline std::string full_demo() {
  const char* const golden = std::getenv("H3_GOLDEN");
  if (golden == nullptr) return "";
  const std::filesystem::path path = std::filesystem::path(golden).parent_path() / "demo_model";
  return std::filesystem::exists(path / "modular_model_index.json") ? path.string() : "";
}

}  // namespace h3::testing
