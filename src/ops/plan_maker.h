// Plans that a back end searches for on the machine it runs on, kept as data: a later process on the same card and
// libraries takes them instead of searching. What the data says is the back end's own affair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace h3 {

// One choice: for a kind of call, as the back end spells it, with more than `above` and up to `upto` rows.
struct PlanChoice {
  std::string call;
  int64_t above = 0, upto = 0;
  std::vector<std::byte> data;
};

struct PlanChoices {
  std::vector<PlanChoice> matmuls, attentions;
};

// The candidates for one weight and number of rows, on made-up operands.
class MatmulTrial {
 public:
  virtual ~MatmulTrial() = default;
  virtual int candidates() const = 0;       // 0 is what is used without a choice
  virtual double run(int candidate) = 0;    // one call; seconds, infinite when it cannot multiply so many rows
  virtual std::vector<float> result() = 0;  // of the last call, some rows
  // What a candidate amounts to: every call that the product is made of. Bounds are left to the caller.
  virtual std::vector<PlanChoice> choices(int candidate) = 0;
};

class PlanMaker {
 public:
  virtual ~PlanMaker() = default;
  // What the choices hold for, by name: libraries, driver, card. Where one differs they are worthless.
  virtual std::vector<std::pair<std::string, std::string>> key() const = 0;
  // like: of the same weight; its candidates but the first are tried. nullptr: what the back end proposes.
  virtual std::unique_ptr<MatmulTrial> try_matmul(const Linear& weight, int64_t rows, MatmulTrial* like) = 0;
  // Of the attention calls made so far, each for the number of rows it had.
  virtual std::vector<PlanChoice> attention_plans() = 0;
  // From here on; plans made so far are made again. nullptr: as without.
  virtual void use(std::shared_ptr<const PlanChoices> choices) = 0;
};

}  // namespace h3
