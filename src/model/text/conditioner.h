// From a prompt and pictures to the rows the transformer conditions on (spec conditioner).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/control.h"
#include "model/layer_stack.h"
#include "model/text/picture.h"
#include "ops/ops.h"
#include "store/model_files.h"

namespace h3 {

struct Conditioning {
  int64_t rows = 0, width = 0;
  std::vector<float> embeds;  // [rows, width]: hidden_states[tap], before any final norm
  std::vector<int32_t> tags;  // [rows] 1 = text, 0 = vision block
  std::vector<int32_t> ids;   // [rows]
};

struct ConditionerOptions {
  Compute compute =
      Compute::f32;    // f32: f32 activations; bf16 and narrower: bf16 activations, rounded as Transformers does
  int tap = 0;         // hidden_states[tap]; 0 = what the model states, else 50 for the release
  bool vision = true;  // load the vision tower when there is one; a text-only request does not need it
  const Control* control = nullptr;      // progress and stop while loading
  int64_t resident_layers = kAllLayers;  // of the language model, that stay on the device; the others are streamed
};

class Tokenizer;
enum class AddedSet : uint8_t;  // tokenizer.h
struct Presentation;

// Sees intermediate values by name ("vis.block.3", "lm.layer.0") for parity and dumps. The view is complete on the
// device and valid during the call; `input` counts the pictures and videos (0 for lm.*).
using TextProbe = std::function<void(const char* name, int64_t index, int64_t input, const View& value)>;

class Conditioner {
 public:
  virtual ~Conditioner() = default;
  virtual bool has_vision() const = 0;  // the tower was loaded
  virtual int tap() const = 0;
  virtual int64_t width() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  // Error(usage) for an empty prompt, a literal pad token in the prompt, or media without a vision tower.
  virtual Conditioning encode(const std::string& prompt, const std::vector<PromptMedia>& media,
                              const Control& control) = 0;
  // The same from a finished presentation (model/text/presentation.h).
  virtual Conditioning run(const Presentation& presentation, const Control& control, const TextProbe& probe = {}) = 0;
};

// The added tokens of these files' text encoder.
AddedSet added_set(const ModelFiles& files);

// Error(data) listing every tensor that is missing, unexpected or mis-shaped; Error(usage) when there is no
// conditioner, no tokenizer, or nothing says which layer to tap.
std::unique_ptr<Conditioner> load_conditioner(Ops& ops, const ModelFiles& files, const ConditionerOptions& options);

}  // namespace h3
