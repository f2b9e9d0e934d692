// Quantised layers as ComfyUI writes them: the weight, its scales and a declaration are separate tensors of a
// safetensors file (spec formats C.2 to C.6).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "store/safetensors_writer.h"
#include "store/tensor_source.h"

namespace h3 {

// Makes each such layer one tensor with planes and drops the others from the list. What a layer is follows from its
// tensors; a declaration (P.comfy_quant, or the file's _quantization_metadata, which wins) adds the rotation and must
// not contradict them. Without a declaration, eight-bit floats with a scale and NVFP4 are read, and int8 is refused,
// because nothing then says whether it is rotated. Scales that are not f32 are widened into `owned`.
//
// input_scale and full_precision_matrix_mult are hints for kernels of the reference; our own choice of the arithmetic
// does not follow from files, so they are not read.
//
// Error(data) names file, tensor and offset.
void fold_quantised_layers(const std::string& path, std::vector<TensorInfo>& tensors,
                           const std::map<std::string, std::string>& metadata,
                           std::vector<std::vector<std::byte>>& owned);

// What P.comfy_quant of an NVFP4 layer holds.
inline constexpr std::string_view kNvfp4Declaration = R"({"format": "nvfp4"})";

// The tensors of such a layer in a file: P.weight (two codes a byte, the even column in the high nibble),
// P.weight_scale (e4m3, padded and swizzled), P.weight_scale_2 (f32), P.comfy_quant. rows and cols: multiples of 16.
std::vector<SafetensorsEntry> nvfp4_entries(const std::string& layer, int64_t rows, int64_t cols);

}  // namespace h3
