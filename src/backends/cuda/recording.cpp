// Recorded calls: a CUDA graph.
#include <utility>
#include <vector>

#include "backends/cuda/backend.h"
#include "backends/cuda/check.h"

namespace h3::cuda {
namespace {

class GraphRecording final : public Recording {
 public:
  GraphRecording(cudaStream_t stream, cudaGraph_t graph, std::vector<std::shared_ptr<Buffer>> scratch)
      : stream_(stream), scratch_(std::move(scratch)) {
    const cudaError_t status = cudaGraphInstantiate(&ready_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "preparing recorded calls");
  }
  ~GraphRecording() override { cudaGraphExecDestroy(ready_); }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;

  void replay() override { check(cudaGraphLaunch(ready_, stream_), "recorded calls"); }

 private:
  cudaStream_t stream_;
  std::vector<std::shared_ptr<Buffer>> scratch_;  // of the recorded calls; later ones may be given larger
  cudaGraphExec_t ready_ = nullptr;
};

}  // namespace

std::unique_ptr<Recording> CudaOps::record(const std::function<void()>& calls) {
  check(cudaStreamBeginCapture(owner_.stream, cudaStreamCaptureModeThreadLocal), "recording calls");
  cudaGraph_t graph = nullptr;
  try {
    calls();
  } catch (...) {
    cudaStreamEndCapture(owner_.stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(owner_.stream, &graph), "recording calls");
  return std::make_unique<GraphRecording>(owner_.stream, graph, std::vector(std::begin(scratch_), std::end(scratch_)));
}

}  // namespace h3::cuda
