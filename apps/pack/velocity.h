// How far the velocities of a packed transformer lie from those of the one it was made of.
#pragma once

#include "base/control.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "store/model_files.h"

namespace h3 {

struct VelocityError {
  double video = 0, audio = 0;  // relative L2 over three times of a small clip of noise
};

// Both are loaded in f32, so this is for models that fit the memory twice.
VelocityError velocity_error(const Component& given, const Component& packed, ThreadPool& pool, Log& log,
                             const Control& control);

}  // namespace h3
