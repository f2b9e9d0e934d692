// What --precision and --vae-precision call an arithmetic.
#pragma once

#include <initializer_list>
#include <string>

#include "ops/ops.h"

namespace h3 {

const char* precision_name(Compute compute);  // as name_of, but "fp8" for packed: of weights that are stored in fp8
// Error(usage) with the field unless `name` is that of one of `allowed`. With `nvfp4` that is a name too: of packed,
// for weights that are stored in nvfp4.
Compute parse_precision(const char* field, const std::string& name, std::initializer_list<Compute> allowed,
                        bool nvfp4 = false);

}  // namespace h3
