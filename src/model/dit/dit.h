// The denoiser (spec dit 2). One Dit per loaded transformer; one DitSession per request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/control.h"
#include "base/log.h"
#include "model/dit/config.h"
#include "model/dit/layout.h"
#include "model/layer_stack.h"
#include "ops/ops.h"
#include "store/model_files.h"

namespace h3 {

// Activations are f32 or bf16; bf16 rounds where the reference does (spec dit 2.8). Input and output projections, the
// time embedding and the curve stay f32 whatever is chosen; a full AdaLN and the text projection compute in bf16 at
// least.
struct DitOptions {
  Compute compute = Compute::f32;  // of the blocks' matmuls
  DType activation = DType::f32;
  int64_t resident_layers = kAllLayers;  // blocks that stay on the device; the others are streamed
  int64_t layers = kAllLayers;           // only the first so many, to try plans
};

namespace lora {
class Adapter;
}

// An adapter on the device, made by Dit::load_adapter for that transformer.
class DitAdapter {
 public:
  virtual ~DitAdapter() = default;
  virtual int64_t bytes() const = 0;  // on the device
};

struct AdapterUse {
  std::shared_ptr<const DitAdapter> adapter;
  float strength = 1;
};

// How the trunk attends; the refiner's attention is dense and exact. Block-sparse (spec acceleration 5.4): text,
// conditions and sound stay exact, as keys and as queries.
struct AttentionOptions {
  AttentionMath math = AttentionMath::exact;  // of calls that are not sparse
  bool sparse = false;                        // where the fields below say
  float tau = 1;
  int dense_steps = 10;     // first evaluations that stay dense, by index
  int dense_blocks = 2;     // first blocks that stay dense
  int64_t minimum = 24576;  // rows of the sequence from which it is used
};

// What became of it.
struct SparseReport {
  int64_t sparse = 0, dense = 0;  // attention calls of the trunk
  double density = 0;             // of exact blocks in the first sparse call, the band and the exact keys included
  std::string reason;             // why there was no sparse call; empty when there was one
};

struct DitRequest {
  const PackedLayout* layout = nullptr;         // outlives the session
  std::vector<float> text;                      // [Nt, text_dim]
  std::vector<float> condition_video;           // [rows, video_row] noised and patchified, in packed order
  std::vector<float> condition_audio;           // [rows, audio_row]
  std::vector<float> video_times, audio_times;  // one per evaluation
  // Live adapters: y = base(x) + strength * (alpha / rank) * B (A x), in this order. None: the bytes of a process that
  // never loaded one.
  std::vector<AdapterUse> adapters;
  AttentionOptions attention;
  // Above 0: so many blocks at a time are recorded once they have run and repeated in later evaluations (Ops::record).
  int64_t record_blocks = 0;
  // Sees every intermediate value by name, as they are computed; empty in normal runs.
  std::function<void(const char* name, const View& value)> probe;
};

// All state of one request: refined text, embedded conditions, rotation tables, modulation rows of every time of the
// schedule, row numbers of every evaluation, workspace. After start() nothing is allocated and the host is not read.
//
// An evaluation is embed, blocks 0 .. layers(), head. Between calls a step policy may look at residual(), replace it,
// or leave blocks out; where the calls are cut does not change a bit.
class DitSession {
 public:
  virtual ~DitSession() = default;
  // residual() = rows entering block 0. video_rows [Nv, video_row] and audio_rows [Na, audio_row], f32: target rows
  // only.
  virtual void embed(int evaluation, const View& video_rows, const View& audio_rows) = 0;
  // residual() = rows leaving block last - 1, of the evaluation embedded last.
  virtual void blocks(int64_t first, int64_t last) = 0;
  // Velocities of the target rows, f32, shaped as the inputs of embed.
  virtual void head(const View& video_velocity, const View& audio_velocity) = 0;
  // The input of block 0's attention for the rows in residual(): its norm with this evaluation's shift and scale.
  // Valid until blocks() or head().
  virtual View modulated_input() = 0;
  virtual SparseReport sparse_report() = 0;
  virtual int64_t sparse_calls() const = 0;  // attention calls of the trunk so far that were sparse
  virtual const View& residual() const = 0;  // [S, hidden] T, contiguous
  virtual int64_t layers() const = 0;
  virtual int64_t bytes() const = 0;  // of the workspace

  void evaluate(int evaluation, const View& video_rows, const View& audio_rows, const View& video_velocity,
                const View& audio_velocity) {
    embed(evaluation, video_rows, audio_rows);
    blocks(0, layers());
    head(video_velocity, audio_velocity);
  }
};

class Dit {
 public:
  virtual ~Dit() = default;
  virtual const DitConfig& config() const = 0;
  virtual int64_t weight_bytes() const = 0;  // held on the device
  // Matmuls of the blocks, one of every kind: storage format, inputs and outputs.
  virtual std::vector<const Linear*> matmul_kinds() = 0;
  // `control` and the layout outlive the session. Refines the text and computes the modulation rows; those are kept for
  // the next request with the same times.
  // Puts an adapter beside the weights, which stay as they are. It must not outlive the transformer.
  virtual std::shared_ptr<const DitAdapter> load_adapter(const lora::Adapter& adapter, const Control& control) = 0;
  virtual std::unique_ptr<DitSession> start(DitRequest request, const Control& control) = 0;
};

std::unique_ptr<Dit> load_dit(Ops& ops, const Component& component, const DitOptions& options, const Control& control);

// What the weights amount to, without loading them. Values, not bytes: what they take depends on the compute type.
struct DitInspection {
  DitConfig config;
  int64_t block_values = 0, block_stored_bytes = 0;  // matmuls of the blocks, which follow DitOptions::compute
  int64_t adaln_values = 0, adaln_stored_bytes = 0;  // read once per schedule, never resident
  int64_t other_values = 0;                          // input and output projections, norms
};
DitInspection inspect_dit(const Component& component, Log& log);

// A tensor that every block of the trunk has; formats that differ between blocks are joined by "|".
struct DitParameter {
  std::string name, format;
  std::vector<int64_t> dims;
};
// Error(data) naming block and tensor where one has others than block 0.
std::vector<DitParameter> dit_block_parameters(const Component& component, Log& log);

// What a session will hold on the device, before it is started.
struct DitMemory {
  int64_t workspace = 0;   // activations, tables, row numbers
  int64_t modulation = 0;  // at most; shared by sessions with the same times
};
DitMemory dit_session_memory(const DitConfig& config, const PackedLayout& layout, int evaluations, DType activation,
                             int64_t adapter_rank = 0);

}  // namespace h3
