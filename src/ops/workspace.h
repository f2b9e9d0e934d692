// Planned scratch memory: a table of slots with lifetimes becomes offsets in one slab per request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace h3 {

// A slot lives from call number first to last (inclusive) of the forward that owns the table; slots whose lifetimes do
// not overlap may share bytes.
struct Slot {
  const char* name;
  DType type;
  std::vector<int64_t> dims;
  int first = 0, last = 0;
};

struct WorkspacePlan {
  std::vector<Slot> slots;
  std::vector<int64_t> offsets;  // bytes, 256-aligned
  int64_t bytes = 0;             // size of the slab
};

// First-fit by decreasing size over the interval graph; a pure function of the table.
WorkspacePlan plan_workspace(std::vector<Slot> slots);

class Workspace {
 public:
  Workspace() = default;
  Workspace(Device& device, WorkspacePlan plan, const char* what);
  View operator[](const char* name) const;  // asserts that the slot exists
  int64_t bytes() const { return plan_.bytes; }
  // Debug builds: call number `call` comes next (each number is entered, or none). Checks the guard bytes behind the
  // slots whose life has ended and fills them with NaN. Going back to a number repeats the calls from there (layers):
  // slots alive at it keep their values; going back to the lowest number begins another forward. Release builds:
  // nothing.
  void enter(int call);

 private:
  WorkspacePlan plan_;
  Buffer slab_;
  std::vector<uint8_t> live_;  // debug builds: [slots]
  int last_call_ = -1;
};

}  // namespace h3
