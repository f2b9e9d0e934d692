// The tensors of a component as a CMF file holds them (spec formats A.12): names, shapes, row orders. From whatever
// spelling the component has; rows are read when they are asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "store/model_files.h"
#include "store/weight_table.h"

namespace h3 {

enum class Keep : uint8_t {
  exact,     // f32 in every pack: statistics, tables, the maps of ClipProj, projections of the latents
  half,      // f16 unless the pack is f32: norms, biases, convolutions, the vocoder, AdaLN
  quantised  // a matrix that a pack stores in the format asked for
};

struct ExportTensor {
  std::string name;  // "dit.blocks.0.mlp.fc1.weight"
  std::vector<int64_t> dims;
  Keep keep = Keep::exact;
  std::string family;                  // "dit.mlp.fc1": what a packing policy addresses by its start
  std::function<MatrixSource()> rows;  // [dims[0], rest]; a vector is one column or one row
};

struct Exported {
  std::vector<ExportTensor> tensors;
  std::vector<std::pair<std::string, Json>> configs;  // "dit.config_json", keys sorted
};

// The shortest decimal that reads back as this f32, as configurations write it: 1e-6 rather than 9.99999997e-07.
double decimal_of(float value);

// f32 values as a matrix that owns them.
MatrixSource owned_rows(const std::string& name, std::vector<float> values, int64_t rows);

// A tensor of values that are small enough to be held.
ExportTensor export_values(const std::string& name, const std::string& family, Keep keep, std::vector<int64_t> dims,
                           std::vector<float> values);

struct TextExportOptions {
  int tap = 0;  // layers to keep
  bool vision = true;
};
Exported export_conditioner(const Component& component, const TextExportOptions& options);
Exported export_clip_proj(const Component& component);

struct VaeExportOptions {
  bool decoder = true, encoder = true;
};
Exported export_video_vae(const Component& component, const VaeExportOptions& options);
Exported export_audio_vae(const Component& component, const VaeExportOptions& options);

}  // namespace h3
