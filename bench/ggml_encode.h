// GGML blocks from weights, to measure what the formats lose. Every block is rounded to nearest between its extremes;
// the tools that publish files search for better scales, so their files lose a little less.
#pragma once

#include "quant/encode.h"

namespace h3 {

bool has_ggml_encoder(Format format);  // Q8_0, Q4_0, Q4_K, Q6_K

// The weights of a matrix [rows, cols], cols a multiple of the block.
EncodedMatrix encode_ggml(Format format, const RowReader& source, const std::string& tensor);

}  // namespace h3
