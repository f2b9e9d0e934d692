// Which storage format each family of tensors gets: `--quant q4tp`, `--quant dit.mlp=q2tp,te=q4tp`.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/export.h"
#include "quant/formats.h"

namespace h3 {

struct QuantLevel {
  const char* name;
  std::optional<Format> format;  // empty: keep what the file has
};
std::string quant_level_names();  // "keep, f32, f16, ...", for messages and help

class QuantPolicy {
 public:
  // A level, and rules FAMILY=LEVEL separated by commas; the longest family that a tensor's begins with wins.
  // Error(usage) for an unknown level or family.
  static QuantPolicy parse(const std::string& text);

  // The format of a tensor of this shape; empty = as it is stored. `stored` says that it comes from a container, whose
  // tensors are kept unless the policy speaks of them.
  std::optional<Format> format_of(const ExportTensor& tensor, bool stored) const;

  std::string text() const { return text_; }
  // The level of everything without a rule of its own, "mixed" when there are rules.
  std::string summary() const;

 private:
  const QuantLevel& level_of(const std::string& family, bool stored) const;

  std::string text_;
  const QuantLevel* base_ = nullptr;  // null: not given
  std::vector<std::pair<std::string, const QuantLevel*>> rules_;
};

}  // namespace h3
