#include "pipeline/prepare.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/compare.h"
#include "base/context.h"
#include "base/error.h"
#include "ops/plan_maker.h"
#include "pipeline/precision.h"
#include "pipeline/report.h"
#include "sampling/rng.h"
#include "sampling/schedule.h"

namespace h3 {
namespace {

constexpr double kReplayLimit = 0x1p-7;  // relative L2 of the velocities after one block in bf16
constexpr int kAudioLatents = 8;

using Key = std::vector<std::pair<std::string, std::string>>;

Key full_key(const PlanMaker& maker, Compute compute) {
  Key key = {{"width", precision_name(compute)}, {"shape", "dynamic"}, {"program", engine_version()}};
  for (auto& part : maker.key()) key.push_back(std::move(part));
  return key;
}

std::vector<PlanPackage::Parameter> parameters_of(const Component& dit, Log& log) {
  std::vector<PlanPackage::Parameter> out;
  for (DitParameter& parameter : dit_block_parameters(dit, log)) {
    out.push_back({std::move(parameter.name), std::move(parameter.format), std::move(parameter.dims)});
  }
  return out;
}

std::vector<PlanPackage::Choice> stored(std::vector<PlanChoice> choices) {
  std::vector<PlanPackage::Choice> out;
  for (PlanChoice& choice : choices) {
    out.push_back({std::move(choice.call), choice.above, choice.upto, std::move(choice.data)});
  }
  return out;
}

std::vector<PlanChoice> loaded(const std::vector<PlanPackage::Choice>& choices) {
  std::vector<PlanChoice> out;
  for (const PlanPackage::Choice& choice : choices) {
    out.push_back({choice.call, choice.above, choice.upto, choice.data});
  }
  return out;
}

// A sequence of exactly so many rows: two latent frames of a square, some sound, and text for the rest.
PackedLayout layout_of_rows(int64_t rows) {
  LayoutSpec spec;
  spec.audio_latents = kAudioLatents;
  const auto side = static_cast<int>(std::sqrt(static_cast<double>(rows - 2 * kAudioLatents - 1) / 2));
  spec.latent_frames = 2;
  spec.latent_height = spec.latent_width = 2 * std::max(side, 1);
  spec.text_tags.assign(static_cast<size_t>(std::max<int64_t>(rows - 2 * kAudioLatents - int64_t{2} * side * side, 1)),
                        1);
  return build_layout(spec);
}

// The velocities of one block's evaluations: of the first, in which sound and picture share a time, and of the second,
// in which they have one each.
class Replay {
 public:
  Replay(Ops& ops, Dit& dit, int64_t rows, const Control& control)
      : ops_(ops), dit_(dit), control_(control), layout_(layout_of_rows(rows)) {}

  int64_t rows() const { return layout_.rows; }
  std::vector<std::vector<float>> run() {
    TorchGenerator generator(11);
    const DitConfig& config = dit_.config();
    DitRequest request;
    request.layout = &layout_;
    request.text = generator.randn(layout_.text_count() * config.text_dim);
    request.video_times = diffusers_grid(3, 12).time;
    request.audio_times = diffusers_grid(3, 3).time;
    const std::unique_ptr<DitSession> session = dit_.start(std::move(request), control_);
    const auto stream = [&](int64_t count, int64_t width) {
      return upload_f32(ops_.device(), generator.randn(count * width).data(), {count, width}, DType::f32, "replay");
    };
    const Tensor video = stream(layout_.target_video_rows(), config.video_row);
    const Tensor audio = stream(layout_.target_audio_rows(), config.audio_row);
    const Tensor video_out(ops_.device(), DType::f32, {video.view.dim[0], config.video_row}, "replay");
    const Tensor audio_out(ops_.device(), DType::f32, {audio.view.dim[0], config.audio_row}, "replay");
    std::vector<std::vector<float>> out;
    for (int evaluation = 0; evaluation < 2; ++evaluation) {
      session->evaluate(evaluation, video, audio, video_out, audio_out);
      ops_.sync();
      out.push_back(download_f32(video_out));
      const std::vector<float> sound = download_f32(audio_out);
      out.back().insert(out.back().end(), sound.begin(), sound.end());
    }
    return out;
  }

 private:
  Ops& ops_;
  Dit& dit_;
  const Control& control_;
  PackedLayout layout_;
};

class Preparation {
 public:
  Preparation(const PrepareInput& input, const Control& control) : in_(input), maker_(*input.maker), control_(control) {
    maker_.use(nullptr);
    DitOptions options;
    options.compute = in_.compute;
    options.activation = in_.compute == Compute::f32 ? DType::f32 : DType::bf16;
    options.layers = 1;
    dit_ = load_dit(in_.ops, in_.dit, options, control);
  }
  ~Preparation() { maker_.use(nullptr); }

  PlanPackage run() {
    package_.key = full_key(maker_, in_.compute);
    package_.parameters = parameters_of(in_.dit, in_.ops.context().log);
    search();
    package_.matmuls = stored(std::move(matmuls_));
    replay();
    package_.report = Json::object({{"device", in_.ops.name()}, {"matmuls", std::move(searched_)}});
    package_.report.set("replays", std::move(replays_)).set("choices", static_cast<int64_t>(package_.matmuls.size()));
    package_.report.set("attention_plans", static_cast<int64_t>(package_.attentions.size()));
    return std::move(package_);
  }

 private:
  std::vector<RowBucket> buckets() const {
    std::vector<RowBucket> out;
    for (const int64_t rows : in_.rows) {
      const RowBucket bucket = bucket_of(rows);
      const bool known = std::any_of(out.begin(), out.end(), [&](const RowBucket& b) { return b.upto == bucket.upto; });
      if (!known) out.push_back(bucket);
    }
    return out;
  }

  void search() {
    const std::vector<RowBucket> all = buckets();
    const std::vector<const Linear*> kinds = dit_->matmul_kinds();
    const auto total = static_cast<int64_t>(all.size() * kinds.size());
    int64_t done = 0;
    for (const RowBucket& bucket : all) {
      for (const Linear* linear : kinds) {
        control_.progress("prepare", done++, total);
        SearchResult found = search_matmul(bucket, in_.search, [&](int64_t rows, MatmulTrial* like) {
          return maker_.try_matmul(*linear, rows, like);
        });
        found.report.set("weight", linear->label).set("inputs", linear->in).set("outputs", linear->out);
        searched_.push(std::move(found.report));
        for (PlanChoice& choice : found.choices) matmuls_.push_back(std::move(choice));
      }
    }
    control_.progress("prepare", total, total);
  }

  void replay() {
    std::vector<Replay> replays;
    std::vector<std::vector<std::vector<float>>> plain;
    for (const int64_t rows : in_.rows) {
      plain.push_back(replays.emplace_back(in_.ops, *dit_, rows, control_).run());
    }
    std::vector<PlanChoice> attentions = maker_.attention_plans();
    std::erase_if(attentions, [&](const PlanChoice& choice) {  // those of other lengths, such as the text's
      return std::none_of(replays.begin(), replays.end(), [&](const Replay& r) { return r.rows() == choice.upto; });
    });
    package_.attentions = stored(std::move(attentions));
    auto choices = std::make_shared<PlanChoices>();
    choices->matmuls = loaded(package_.matmuls);
    choices->attentions = loaded(package_.attentions);
    maker_.use(choices);
    for (size_t i = 0; i < replays.size(); ++i) compare(replays[i].rows(), replays[i].run(), plain[i]);
  }

  void compare(int64_t rows, const std::vector<std::vector<float>>& prepared,
               const std::vector<std::vector<float>>& plain) {
    for (size_t e = 0; e < plain.size(); ++e) {
      const Comparison found = compare_values(prepared[e], plain[e], {.rel_l2 = kReplayLimit});
      const auto times = static_cast<int64_t>(e + 1);
      if (!found.passed) {
        fail(Code::device,
             "prepare: a block of %lld rows and %lld time%s differs with and without the plans (%s); the card or its "
             "libraries cannot be trusted",
             static_cast<long long>(rows), static_cast<long long>(times), times == 1 ? "" : "s", found.failure.c_str());
      }
      replays_.push(
          Json::object({{"rows", rows}, {"times", times}, {"max_abs", found.max_abs}, {"rel_l2", found.rel_l2}}));
    }
  }

  const PrepareInput& in_;
  PlanMaker& maker_;
  const Control& control_;
  std::unique_ptr<Dit> dit_;
  PlanPackage package_;
  std::vector<PlanChoice> matmuls_;
  Json searched_ = Json::array(), replays_ = Json::array();
};

// "" when the plans are for this machine and arithmetic.
std::string key_difference(const Key& made, const Key& here) {
  const auto find = [](const Key& key, const std::string& name) -> const std::string* {
    for (const auto& part : key) {
      if (part.first == name) return &part.second;
    }
    return nullptr;
  };
  for (const auto& [name, value] : here) {
    const std::string* other = find(made, name);
    if (other == nullptr) return strf("they do not say for which %s", name.c_str());
    if (*other != value) return strf("made for %s %s, this is %s", name.c_str(), other->c_str(), value.c_str());
  }
  for (const auto& [name, value] : made) {
    if (find(here, name) == nullptr) return strf("made for %s %s, which is unknown here", name.c_str(), value.c_str());
  }
  return "";
}

std::string shape_of(const PlanPackage::Parameter& parameter) {
  std::string text = parameter.format + " [";
  for (size_t i = 0; i < parameter.dims.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(parameter.dims[i]);
  return text + "]";
}

// Every name of one side has to be on the other, with the same format and shape.
void check_binding(const std::vector<PlanPackage::Parameter>& made, const std::vector<PlanPackage::Parameter>& here,
                   const std::string& path, const std::string& origin) {
  const auto find = [](const std::vector<PlanPackage::Parameter>& list, const std::string& name) {
    return std::find_if(list.begin(), list.end(), [&](const PlanPackage::Parameter& p) { return p.name == name; });
  };
  const char* const advice = "the plans were made for another model, make them again with h3 prepare";
  for (const PlanPackage::Parameter& parameter : here) {
    const auto other = find(made, parameter.name);
    if (other == made.end()) {
      fail(Code::data, "%s knows no %s, which the blocks of %s have; %s", path.c_str(), parameter.name.c_str(),
           origin.c_str(), advice);
    }
    if (*other != parameter) {
      fail(Code::data, "%s has %s as %s, the blocks of %s as %s; %s", path.c_str(), parameter.name.c_str(),
           shape_of(*other).c_str(), origin.c_str(), shape_of(parameter).c_str(), advice);
    }
  }
  for (const PlanPackage::Parameter& parameter : made) {
    if (find(here, parameter.name) != here.end()) continue;
    fail(Code::data, "%s has %s, which the blocks of %s lack; %s", path.c_str(), parameter.name.c_str(), origin.c_str(),
         advice);
  }
}

}  // namespace

PlanPackage prepare_plans(const PrepareInput& input, const Control& control) {
  if (input.maker == nullptr) {
    fail(
        Code::usage,
        "prepare: %s chooses its kernels by rule when weights are loaded and tries none, so there is nothing to store; "
        "give --device cuda:0",
        input.ops.name());
  }
  for (const int64_t rows : input.rows) {
    if (rows < 64 || rows > 262144) {
      fail(Code::usage, "prepare: sequences of %lld rows are not possible, give 64 to 262144, for example 19300",
           static_cast<long long>(rows));
    }
  }
  return Preparation(input, control).run();
}

bool adopt_plans(Ops& ops, PlanMaker* maker, const PlanPackage& package, const std::string& path, Compute compute,
                 const Component& dit) {
  Log& log = ops.context().log;
  const std::string problem = maker == nullptr ? strf("%s tries no plans and takes none", ops.name())
                                               : key_difference(package.key, full_key(*maker, compute));
  if (maker != nullptr) maker->use(nullptr);  // also where the binding is refused below
  if (!problem.empty()) {
    log.write(LogLevel::warn, "the plans in %s are not used: %s", path.c_str(), problem.c_str());
    return false;
  }
  check_binding(package.parameters, parameters_of(dit, log), path, dit.origin);
  auto choices = std::make_shared<PlanChoices>();
  choices->matmuls = loaded(package.matmuls);
  choices->attentions = loaded(package.attentions);
  maker->use(std::move(choices));
  return true;
}

}  // namespace h3
