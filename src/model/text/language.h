// The language model up to the tap (spec conditioner 6).
#pragma once

#include <string>
#include <vector>

#include "model/text/conditioner.h"
#include "model/text/materials.h"
#include "model/text/presentation.h"
#include "model/text/weights.h"

namespace h3::text {

struct BoundLanguage {
  EmbedTensors embed;
  std::vector<LayerTensors> layers;  // only those below the tap
};
BoundLanguage bind_language(WeightBinder& binder, const Names& names, const LanguageDims& dims, int tap);

// Vision features that replace and follow pad rows; empty when the presentation has none.
struct Splice {
  View features;              // [1 + levels, P, hidden] T
  std::vector<int32_t> rows;  // [P] row of the presentation of each feature row
};

class LanguageModel {
 public:
  LanguageModel(const Materials& materials, const LanguageDims& dims, const BoundLanguage& bound);

  // hidden_states[layers]: the stream after the last loaded layer, before any norm. [ids, hidden] on the host
  std::vector<float> forward(const std::vector<int32_t>& ids, const std::vector<VisionRun>& runs, const Splice& splice,
                             const Control& control, const TextProbe& probe);

 private:
  struct Layer {
    Tensor input_norm, q_norm, k_norm, mlp_norm;  // f32
    Matrix qkv, out, gate_up, down;
    int64_t bytes() const;
  };
  struct LayerSource {
    std::vector<float> input_norm, q_norm, k_norm, mlp_norm;
    MatrixSource qkv, out, gate_up, down;
  };
  struct Pass;  // views of one forward

  Layer make_layer(const LayerSource& source, Compute compute, WeightGroup* group) const;
  void embed(const std::vector<int32_t>& ids, const Pass& pass) const;
  void run_layer(const Layer& layer, const Pass& pass) const;
  void rotary_tables(const std::vector<VisionRun>& runs, const Pass& pass) const;

  Ops& ops_;
  LanguageDims dims_;
  DType type_;
  MatrixSource embedding_;  // stays in the mapped file
  std::vector<LayerSource> sources_;
  LayerStack<Layer> layers_;
};

}  // namespace h3::text
