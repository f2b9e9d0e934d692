#include "model/dit/adaln.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace h3::dit {
namespace {

void sort_unique(std::vector<float>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

int32_t index_in(const std::vector<float>& sorted, float value) {
  return static_cast<int32_t>(std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
}

// What the projections read: one vector per row of the bank.
//   full AdaLN:  silu(temb) in f32, rounded to T only then; the projection runs in T
//   curve:       coordinates in f32, no silu; the projection runs in f32 and only its result is rounded
class ProjectionInput {
 public:
  ProjectionInput(Ops& ops, const Source& source, const std::vector<float>& times, DType type)
      : ops_(ops), source_(source), times_(times), type_(type) {
    if (source.config.time_dim == 0 || !source.curve.empty()) return;
    embedded_ = embed_times(ops, source, times);
    ops.silu(embedded_, embedded_);
  }

  Compute compute_of(const AdalnSource& adaln) const {
    return curve_of(adaln) != nullptr || type_ == DType::f32 ? Compute::f32 : Compute::bf16;
  }

  // [picked times, width of the projection], in f32 for curves and in T otherwise.
  Tensor rows(const AdalnSource& adaln, const std::vector<float>& picked) const {
    std::vector<int32_t> ids;
    for (float time : picked) ids.push_back(index_in(times_, time));
    const int64_t count = static_cast<int64_t>(picked.size());
    if (const std::vector<float>* curve = curve_of(adaln)) {
      const std::vector<float> values = curve_coordinates(*curve, adaln.weight.cols, picked);
      return upload_f32(ops_.device(), values.data(), {count, adaln.weight.cols}, DType::f32, "curve coordinates");
    }
    Tensor out(ops_.device(), type_, {count, source_.config.time_dim}, "time embedding");
    const Tensor index = upload_i32(ops_.device(), ids, "time index");
    ops_.gather_rows(embedded_, index, out);
    ops_.sync();  // the index is freed here
    return out;
  }

 private:
  const std::vector<float>* curve_of(const AdalnSource& adaln) const {
    if (!adaln.table.empty()) return &adaln.table;
    return source_.curve.empty() ? nullptr : &source_.curve;
  }

  Ops& ops_;
  const Source& source_;
  std::vector<float> times_;
  DType type_;
  Tensor embedded_;
};

// out = rows [first, first + out width) of the projection. The weight is bound for this one call: a run needs it once,
// and it is the largest part of a full checkpoint.
void project(Ops& ops, const AdalnSource& adaln, int64_t first, const ProjectionInput& input, const View& x,
             const View& out, const std::string& label) {
  LinearSpec spec;
  spec.label = label;
  spec.weight = rows_of(adaln.weight, first, out.dim[1]);
  spec.bias.assign(adaln.bias.begin() + first, adaln.bias.begin() + first + out.dim[1]);
  spec.compute = input.compute_of(adaln);
  spec.max_rows = x.dim[0];
  const std::unique_ptr<Linear> linear = ops.make_linear(std::move(spec));
  ops.linear(*linear, x, out);
  ops.sync();  // the linear is freed here
}

}  // namespace

std::vector<float> time_sinusoid(const std::vector<float>& times, int64_t width) {
  const int64_t half = width / 2;
  std::vector<float> out;
  for (float time : times) {
    std::vector<float> sines;
    for (int64_t k = 0; k < half; ++k) {
      const float exponent = static_cast<float>(-std::log(10000.0) * static_cast<double>(k)) / static_cast<float>(half);
      const float angle = time * static_cast<float>(std::exp(static_cast<double>(exponent)));
      out.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
      sines.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
    }
    out.insert(out.end(), sines.begin(), sines.end());
  }
  return out;
}

std::vector<float> curve_coordinates(const std::vector<float>& curve, int64_t rank, const std::vector<float>& times) {
  const int64_t points = static_cast<int64_t>(curve.size()) / rank;
  H3_ASSERT(points >= 2);
  std::vector<float> out;
  for (float time : times) {
    const float p = std::clamp(time, 0.0f, 1.0f) * static_cast<float>(points - 1);
    const int64_t i = std::min(static_cast<int64_t>(std::floor(p)), points - 2);
    const float w = p - static_cast<float>(i);
    for (int64_t r = 0; r < rank; ++r) {
      const float a = curve[i * rank + r], b = curve[(i + 1) * rank + r];
      out.push_back(w < 0.5f ? std::fma(w, b - a, a) : std::fma(w - 1.0f, b - a, b));
    }
  }
  return out;
}

Tensor embed_times(Ops& ops, const Source& source, const std::vector<float>& times) {
  const DitConfig& config = source.config;
  Device& device = ops.device();
  const int64_t count = static_cast<int64_t>(times.size());
  const auto make = [&](const char* label, const MatrixSource& weight, const std::vector<float>& bias) {
    LinearSpec spec;
    spec.label = label;
    spec.weight = weight;
    spec.bias = bias;
    spec.max_rows = count;
    return ops.make_linear(std::move(spec));
  };
  const std::unique_ptr<Linear> first = make("dit.time_embedder.proj_in", source.time1, source.time1_bias);
  const std::unique_ptr<Linear> second = make("dit.time_embedder.proj_out", source.time2, source.time2_bias);
  const std::vector<float> waves = time_sinusoid(times, config.freq_dim);
  const Tensor in = upload_f32(device, waves.data(), {count, config.freq_dim}, DType::f32, "time sinusoid");
  const Tensor hidden(device, DType::f32, {count, config.time_hidden}, "time embedding");
  Tensor out(device, DType::f32, {count, config.time_dim}, "time embedding");
  ops.linear(*first, in, hidden);
  ops.silu(hidden, hidden);
  ops.linear(*second, hidden, out);
  ops.sync();  // the weights and inputs are freed here
  return out;
}

ModulationPlan plan_modulation(const PackedLayout& layout, const std::vector<float>& video_times,
                               const std::vector<float>& audio_times, bool with_ids) {
  H3_ASSERT(video_times.size() == audio_times.size());
  constexpr size_t kTags = 3;
  const size_t rows = static_cast<size_t>(layout.rows), evaluations = video_times.size();
  const size_t first_target = static_cast<size_t>(layout.first_target());
  const std::vector<TimeSource> sources = time_sources(layout);
  const auto tag_of = [&](size_t row) { return static_cast<size_t>(layout.tags[row]); };
  const auto source_of = [&](size_t row) { return static_cast<size_t>(sources[row]); };
  bool read[kTags][kTimeSources] = {};
  for (size_t s = 0; s < rows; ++s) read[tag_of(s)][source_of(s)] = true;

  ModulationPlan plan;
  std::vector<std::array<float, kTimeSources>> steps;
  for (size_t e = 0; e < evaluations; ++e) {
    steps.push_back(source_times(video_times[e], audio_times[e]));
    for (size_t tag = 0; tag < kTags; ++tag) {
      for (size_t i = 0; i < kTimeSources; ++i) {
        if (read[tag][i]) plan.times[tag].push_back(steps[e][i]);
      }
    }
    plan.final_times.insert(plan.final_times.end(), {video_times[e], audio_times[e]});
  }
  for (std::vector<float>& times : plan.times) sort_unique(times);
  sort_unique(plan.final_times);
  if (!with_ids) return plan;

  plan.ids.reserve(evaluations * rows);
  plan.final_ids.reserve(evaluations * (rows - first_target));
  for (const std::array<float, kTimeSources>& times : steps) {
    int32_t id[kTags][kTimeSources] = {}, final_id[kTimeSources] = {}, base = 0;
    for (size_t tag = 0; tag < kTags; ++tag) {
      for (size_t i = 0; i < kTimeSources; ++i) id[tag][i] = base + index_in(plan.times[tag], times[i]);
      base += static_cast<int32_t>(plan.times[tag].size());
    }
    for (size_t i = 0; i < kTimeSources; ++i) final_id[i] = index_in(plan.final_times, times[i]);
    for (size_t s = 0; s < rows; ++s) plan.ids.push_back(id[tag_of(s)][source_of(s)]);
    for (size_t s = first_target; s < rows; ++s) plan.final_ids.push_back(final_id[source_of(s)]);
  }
  return plan;
}

std::shared_ptr<const ModulationBank> make_bank(Ops& ops, const Source& source, const ModulationPlan& plan, DType type,
                                                const Control& control) {
  const int64_t hidden = source.config.hidden;
  std::vector<float> all = plan.final_times;
  for (const std::vector<float>& times : plan.times) all.insert(all.end(), times.begin(), times.end());
  sort_unique(all);
  const ProjectionInput input(ops, source, all, type);

  auto bank = std::make_shared<ModulationBank>();
  bank->plan = plan;
  bank->plan.ids.clear();
  bank->plan.final_ids.clear();
  for (size_t i = 0; i < source.blocks.size(); ++i) {
    control.check();
    const AdalnSource& adaln = source.blocks[i].adaln;
    const Tensor& rows =
        bank->blocks.emplace_back(ops.device(), type, std::vector<int64_t>{plan.rows(), 6 * hidden}, "AdaLN rows");
    int64_t begin = 0;
    for (int64_t tag = 0; tag < 3; ++tag) {
      const std::vector<float>& times = plan.times[static_cast<size_t>(tag)];
      const int64_t count = static_cast<int64_t>(times.size());
      if (count == 0) continue;
      const Tensor x = input.rows(adaln, times);
      project(ops, adaln, tag * 6 * hidden, input, x, rows.view.slice(0, begin, count),
              "dit.blocks." + std::to_string(i) + ".adaln");
      begin += count;
    }
  }
  const int64_t finals = static_cast<int64_t>(plan.final_times.size());
  bank->final_rows = Tensor(ops.device(), type, {finals, 2 * hidden}, "AdaLN rows");
  const Tensor x = input.rows(source.final_adaln, plan.final_times);
  project(ops, source.final_adaln, 0, input, x, bank->final_rows, "dit.final_layer.adaln");
  return bank;
}

int64_t bank_bytes(const DitConfig& config, int64_t rows, int64_t final_rows, DType type) {
  return (config.layers * rows * 6 + final_rows * 2) * config.hidden * size_of(type);
}

}  // namespace h3::dit
