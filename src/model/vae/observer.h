// How dumps and parity see the inside of an autoencoder.
#pragma once

#include <functional>
#include <string>

#include "tensor/tensor.h"

namespace h3 {

// Called with an intermediate result; the view is on the device and valid during the call. Empty = nobody looks.
using StageObserver = std::function<void(const std::string& stage, const View& value)>;

}  // namespace h3
