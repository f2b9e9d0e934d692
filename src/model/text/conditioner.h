// From a prompt and pictures to the rows the transformer conditions on (conditioner.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/control.h"
#include "ops/ops.h"
#include "store/model_files.h"

namespace h3 {

// 8-bit RGB, interleaved, row-major.
struct Picture {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
};

// One entry of the presentation, in request order.
struct PromptMedia {
  enum class Kind : uint8_t { image, video, audio } kind = Kind::image;
  std::vector<Picture> frames;  // image: one; video: every frame at 24 fps; audio: none
  bool has_sound = false;       // video: consumes an <Audio j> label first
};

struct Conditioning {
  int64_t rows = 0, width = 0;
  std::vector<float> embeds;      // [rows, width]
  std::vector<int32_t> tags;      // [rows] 1 = text, 0 = vision block
  std::vector<int32_t> ids;       // [rows]
};

struct ConditionerOptions {
  Compute compute = Compute::f32;
  int tap = 0;                    // hidden_states[tap]; 0 = from the model (config key, else 50 for the release)
};

class Tokenizer;

class Conditioner {
 public:
  virtual ~Conditioner() = default;
  virtual bool has_vision() const = 0;
  virtual int tap() const = 0;
  virtual int64_t width() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  // Error(usage) for an empty prompt, a literal pad token in the prompt, or media without a vision tower.
  virtual Conditioning encode(const std::string& prompt, const std::vector<PromptMedia>& media, const Control& control) = 0;
};

std::unique_ptr<Conditioner> load_conditioner(Ops& ops, const ModelFiles& files, const ConditionerOptions& options);

}  // namespace h3
