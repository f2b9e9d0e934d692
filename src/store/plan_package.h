// A file of plans that `h3 prepare` made for one card and its libraries (docs/container.md).
//
//   0   "H3PLANS\n"   8 bytes
//   8   version       u32, 1
//   12  zero          u32
//   16  JSON bytes    u64
//   24  data bytes    u64
//   32  hash64 of all that follows
//   40  JSON, then data; the file ends there
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace h3 {

struct PlanPackage {
  // Of one block, as every block of the model has them.
  struct Parameter {
    std::string name, format;
    std::vector<int64_t> dims;
    bool operator==(const Parameter&) const = default;
  };
  // For calls of this kind with more than `above` and up to `upto` rows; the data is the back end's own.
  struct Choice {
    std::string call;
    int64_t above = 0, upto = 0;
    std::vector<std::byte> data;
    bool operator==(const Choice&) const = default;
  };

  std::vector<std::pair<std::string, std::string>> key;  // what the choices hold for, by name
  std::vector<Parameter> parameters;
  std::vector<Choice> matmuls, attentions;
  Json report;  // of the preparation

  std::vector<std::byte> bytes() const;
  void write(const std::string& path) const;  // whole or not at all
  // Error(data) naming file and offset, whatever the bytes are.
  static PlanPackage parse(std::span<const std::byte> bytes, const std::string& what);
  static PlanPackage read(const std::string& path);
};

}  // namespace h3
