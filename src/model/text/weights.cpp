#include "model/text/weights.h"

#include "base/error.h"
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

void check_awq(WeightBinder& binder, const std::vector<LayerTensors>& layers) {
  const auto awq = [](Info info) { return info != nullptr && !info->pre_scale.empty(); };
  Info sign = nullptr;
  for (const LayerTensors& layer : layers) {
    for (const Info info : {layer.out, layer.down}) {
      if (sign == nullptr && awq(info)) sign = info;
    }
  }
  if (sign == nullptr) return;
  for (const LayerTensors& layer : layers) {
    for (const Info info : {layer.q, layer.k, layer.v, layer.gate, layer.up, layer.out, layer.down}) {
      const bool scaled = info == layer.out || info == layer.down;
      if (info == nullptr || (info->format == sign->format && (!scaled || awq(info)))) continue;
      binder.problem(
          strf("tensor '%s' at offset %llu is %s%s, but '%s' has a pre_quant_scale: these are the norms of an "
               "AWQ encoder with another encoder's weights; take all tensors from one checkpoint",
               info->name.c_str(), static_cast<unsigned long long>(info->offset), row_of(info->format).name,
               scaled ? " without a pre_quant_scale" : "", sign->name.c_str()));
      return;
    }
  }
}

}  // namespace h3::text
