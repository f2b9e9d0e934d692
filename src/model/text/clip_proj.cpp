#include "model/text/clip_proj.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace h3::text {
namespace {

// W is stored for x . W; linears take [out, in].
MatrixSource transposed(const std::vector<float>& values, int64_t in, int64_t out) {
  auto turned = std::make_shared<std::vector<float>>(values.size());
  for (int64_t i = 0; i < in; ++i) {
    for (int64_t o = 0; o < out; ++o) (*turned)[o * in + i] = values[i * out + o];
  }
  StoredMatrix matrix;
  matrix.format = Format::f32;
  matrix.rows = out;
  matrix.cols = in;
  matrix.data = std::as_bytes(std::span(*turned));
  matrix.keep_alive = turned;
  MatrixSource source;
  source.name = "te.proj.W";
  source.append(matrix, 0, out);
  return source;
}

int64_t length_of(const WeightBinder& binder, const char* name) {
  const TensorInfo* info = binder.find(name);
  return info != nullptr && info->dims.size() == 1 ? info->dims[0] : -1;
}

}  // namespace

BoundClipProj bind_clip_proj(const Component& component) {
  WeightBinder binder(component);
  BoundClipProj bound;
  bound.in = length_of(binder, "mean_in");
  bound.out = length_of(binder, "mean_out");
  bind_rows(binder, "", kClipProj, bound.tensors,
            [&](ClipProjDim dim) { return dim == ClipProjDim::in ? bound.in : bound.out; });
  int64_t width = bound.in;
  for (int i = 0; binder.has(strf("mlp.%d.weight", i)); i += 2) {
    const std::string name = strf("mlp.%d", i);
    const bool last = !binder.has(strf("mlp.%d.weight", i + 2));
    ClipProjLayer layer;
    layer.weight = binder.require(name + ".weight", {last ? bound.out : -1, width});
    if (layer.weight == nullptr) break;
    width = layer.weight->dims[0];
    layer.bias = binder.optional(name + ".bias", {width});
    bound.mlp.push_back(layer);
  }
  if (bound.tensors.matrix == nullptr && bound.mlp.empty()) binder.problem("neither W nor mlp.0.weight is there");
  binder.finish();
  return bound;
}

void check_clip_proj_width(const Component& component, int64_t in, int64_t hidden) {
  if (in == hidden) return;
  fail(Code::data,
       "%s maps hidden states of %lld values, but the conditioner's have %lld; 2560 belongs to the 4B encoder, 4096 to "
       "the 8B one",
       component.origin.c_str(), static_cast<long long>(in), static_cast<long long>(hidden));
}

int clip_proj_tap(const Component& component) {
  const auto& metadata = component.source->metadata();
  const auto found = metadata.find("tap");
  if (found == metadata.end()) return 0;
  int tap = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tap);
  if (error != std::errc() || end != text.data() + text.size() || tap < 1 || tap > 1000) {
    fail(Code::data, "%s: metadata 'tap' is '%s'; it must be the number of a layer", component.origin.c_str(),
         text.c_str());
  }
  return tap;
}

ClipProj::ClipProj(Ops& ops, const Component& component) : ops_(ops) {
  const BoundClipProj bound = bind_clip_proj(component);
  const WeightBinder binder(component);
  in_ = bound.in;
  out_ = bound.out;
  mean_in_ = binder.values(bound.tensors.mean_in);
  std_in_ = binder.values(bound.tensors.std_in);
  mean_out_ = binder.values(bound.tensors.mean_out);
  std_out_ = binder.values(bound.tensors.std_out);
  sink_out_ = binder.values(bound.tensors.sink_out);
  const bool positive = std::all_of(std_in_.begin(), std_in_.end(), [](float s) { return s > 0; });
  if (!positive) fail(Code::data, "%s: std_in is not above 0 everywhere", component.origin.c_str());
  if (bound.tensors.matrix != nullptr) {
    LinearSpec spec;
    spec.label = "te.proj.W";
    spec.weight = transposed(binder.values(bound.tensors.matrix), in_, out_);
    matrix_ = ops.make_linear(std::move(spec));
  }
  const Materials materials{ops, binder};
  for (const ClipProjLayer& layer : bound.mlp) {
    mlp_.push_back(materials.matrix("te.proj.mlp." + std::to_string(mlp_.size()), {layer.weight}, layer.bias));
  }
}

std::vector<float> ClipProj::project(const std::vector<float>& hidden) const {
  const int64_t rows = static_cast<int64_t>(hidden.size()) / in_;
  std::vector<float> normed(hidden.size());
  for (size_t i = 0; i < hidden.size(); ++i) {
    const size_t c = i % static_cast<size_t>(in_);
    normed[i] = (hidden[i] - mean_in_[c]) / std_in_[c];
  }
  Device& device = ops_.device();
  const Tensor x = upload_f32(device, normed.data(), {rows, in_}, DType::f32, "ClipProj input");
  std::vector<float> sum(static_cast<size_t>(rows * out_));
  const auto add = [&](const View& y) {
    ops_.sync();
    const std::vector<float> values = download_f32(y);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  };
  if (matrix_ != nullptr) {
    const Tensor y(device, DType::f32, {rows, out_}, "ClipProj");
    ops_.linear(*matrix_, x, y);
    add(y);
  }
  std::vector<Tensor> layers;
  for (const Matrix& layer : mlp_) {
    const View input = layers.empty() ? x.view : layers.back().view;
    if (!layers.empty()) ops_.gelu(input, Ops::Gelu::erf, input);
    layers.emplace_back(device, DType::f32, std::vector<int64_t>{rows, layer->out}, "ClipProj");
    ops_.linear(*layer, input, layers.back());
  }
  if (!layers.empty()) add(layers.back());
  for (size_t i = 0; i < sum.size(); ++i) {
    const size_t c = i % static_cast<size_t>(out_);
    sum[i] = sum[i] * std_out_[c] + mean_out_[c];
  }
  std::copy(sink_out_.begin(), sink_out_.end(), sum.begin());
  return sum;
}

}  // namespace h3::text
