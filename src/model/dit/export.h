// The denoiser as CMF files hold it (spec formats A.12).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/dit/weights.h"
#include "model/export.h"

namespace h3::dit {

// What the AdaLN projections of an export are: one of these per block and one for the final layer.
struct ExportAdaln {
  MatrixSource weight;
  std::vector<float> bias;
  std::vector<float> table;  // [points, width of weight]; empty: the projections read the time embedding
};

struct DitExportOptions {
  // Replaces the projection of a block (-1: of the final layer) when it is given: a curve made by the packer, all of
  // one width and grid.
  std::function<ExportAdaln(int64_t block)> adaln;
  int64_t adaln_width = 0, adaln_points = 0;
  double video_shift = 12, audio_shift = 3;
};

// Every tensor; blocks keep their own projection and curve unless options.adaln says otherwise. The time embedder is
// there only where projections read it.
Exported export_dit(std::shared_ptr<const Source> source, const DitExportOptions& options);

// The ComfyUI spelling of an exported name ("dit.blocks.0.adaln.bias"); empty for the table of a block's curve, which
// that spelling keeps once, under the name of the final layer's.
std::string comfy_name(const std::string& exported);

}  // namespace h3::dit
