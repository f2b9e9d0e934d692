// Ctrl-C and SIGTERM ask the work at hand to stop, so that it can take its unfinished files with it.
#pragma once

#include "base/control.h"

namespace h3 {

// While one of these exists, the first signal requests a stop from `control`; a second one ends the process at once.
// One at a time.
class Interruptible {
 public:
  explicit Interruptible(Control& control);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

}  // namespace h3
