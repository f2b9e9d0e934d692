#include "backends/cuda/tensor_map.h"

#include <cuda_runtime.h>

#include "backends/cuda/check.h"
#include "base/error.h"

namespace h3::cuda {
namespace {

using EncodeTiled = decltype(&::cuTensorMapEncodeTiled);

// The driver's encoder; null where the driver is too old.
EncodeTiled encode_tiled() {
  static const EncodeTiled encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(entry)
                                                                         : nullptr;
  }();
  return encode;
}

struct Card {
  int processors = 0;
  bool built_for = false;  // this build has code for compute capability 9.0, and the card is of it
};

// The card in use: a program may have several.
const Card& this_card() {
  thread_local int known = -1;  // that the answer is of
  thread_local Card card;
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "asking for the card");
  if (device == known) return card;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the card");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "asking for the card");
  check(cudaDeviceGetAttribute(&card.processors, cudaDevAttrMultiProcessorCount, device), "asking for the card");
#ifdef H3_CUDA_SM90A
  card.built_for = major == 9 && minor == 0;
#endif
  known = device;
  return card;
}

}  // namespace

int processors_of_this_card() { return this_card().processors; }

bool has_tensor_maps() { return this_card().built_for && encode_tiled() != nullptr; }

CUtensorMap tensor_map(const TiledMemory& memory, const char* what) {
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4] = {1, 1, 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  for (size_t i = 0; i < 4; ++i) sizes[i] = static_cast<cuuint64_t>(memory.sizes[i]);
  for (size_t i = 0; i < 3; ++i) {
    strides[i] = static_cast<cuuint64_t>(memory.strides[i]);
    box[i] = static_cast<cuuint32_t>(memory.box[i]);
  }
  CUtensorMap map;
  const CUresult status =
      encode_tiled()(&map, memory.type, static_cast<cuuint32_t>(memory.rank), const_cast<void*>(memory.base), sizes,
                     strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) fail(Code::device, "%s: the driver refused a tensor map (%d)", what, status);
  return map;
}

CUtensorMap head_map(const void* base, int64_t rows, int64_t row_stride, int heads, int64_t head_stride,
                     int rows_of_box, const char* what) {
  return tensor_map({.base = base,
                     .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     .sizes = {64, rows, 2, heads},
                     .strides = {row_stride * 2, 128, head_stride * 2},
                     .box = {64, rows_of_box, 2}},
                    what);
}

}  // namespace h3::cuda
