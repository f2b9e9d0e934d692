// oneDNN's matmul on the shapes of the model, as a yardstick.
#pragma once

#include <cstdint>
#include <memory>

namespace h3 {

class PeerMatmul {
 public:
  virtual ~PeerMatmul() = default;
  virtual void run() = 0;  // one product, finished on return
};

// y [rows, out] = x [rows, in] W^T with weights in the library's own order: bf16 to bf16, or int8 to int32 (without
// the quantisation of x and the scales, which ours includes). Null when this build has no oneDNN or it has no kernel.
std::unique_ptr<PeerMatmul> make_onednn_matmul(int64_t rows, int64_t in, int64_t out, bool integer);

}  // namespace h3
