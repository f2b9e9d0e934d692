#include "bench/peer_onednn.h"

#if defined(H3_HAVE_ONEDNN)

#include <dnnl.hpp>

#include <cstring>

namespace h3 {
namespace {

class OneDnnMatmul final : public PeerMatmul {
 public:
  OneDnnMatmul(int64_t rows, int64_t in, int64_t out, bool integer)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Type = dnnl::memory::data_type;
    using Tag = dnnl::memory::format_tag;
    const Type operand = integer ? Type::s8 : Type::bf16, result = integer ? Type::s32 : Type::bf16;
    const dnnl::memory::desc x({rows, in}, operand, Tag::ab), w({in, out}, operand, Tag::any),
        y({rows, out}, result, Tag::ab);
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(x, w, y), engine_);
    matmul_ = dnnl::matmul(plan);
    for (const dnnl::memory::desc& desc : {plan.src_desc(), plan.weights_desc(), plan.dst_desc()}) {
      memory_.emplace_back(desc, engine_);
      std::memset(memory_.back().get_data_handle(), 0x3c, desc.get_size());
    }
  }

  void run() override {
    matmul_.execute(stream_, {{DNNL_ARG_SRC, memory_[0]}, {DNNL_ARG_WEIGHTS, memory_[1]}, {DNNL_ARG_DST, memory_[2]}});
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::vector<dnnl::memory> memory_;
};

}  // namespace

std::unique_ptr<PeerMatmul> make_onednn_matmul(int64_t rows, int64_t in, int64_t out, bool integer) {
  try {
    return std::make_unique<OneDnnMatmul>(rows, in, out, integer);
  } catch (const dnnl::error&) {  // no kernel of this type for this processor
    return nullptr;
  }
}

}  // namespace h3

#else

namespace h3 {

std::unique_ptr<PeerMatmul> make_onednn_matmul(int64_t, int64_t, int64_t, bool) { return nullptr; }

}  // namespace h3

#endif
