#include "model/text/weights.h"

#include "model/text/pixels.h"

namespace h3::text {

int64_t Lengths::operator()(Dim dim) const {
  switch (dim) {
    case Dim::none: return 0;
    case Dim::vocab: return language->vocab;
    case Dim::hidden: return language->hidden;
    case Dim::query: return language->query();
    case Dim::kv: return language->kv();
    case Dim::head: return language->head_dim;
    case Dim::ffn: return language->ffn;
    case Dim::positions: return vision->side * vision->side;
    case Dim::v_hidden: return vision->hidden;
    case Dim::v_hidden3: return 3 * vision->hidden;
    case Dim::v_ffn: return vision->ffn;
    case Dim::v_out: return vision->out;
    case Dim::merged: return kMerge * kMerge * vision->hidden;
    case Dim::norm: return norm;
    case Dim::patch_row: return kPatchRow;
    case Dim::rgb: return 3;
    case Dim::pair: return kTemporalPatch;
    case Dim::patch: return kPatch;
  }
  return 0;
}

}  // namespace h3::text
