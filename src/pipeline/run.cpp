// One run, stage by stage (spec dit 8).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "model/dit/layout.h"
#include "ops/values.h"
#include "pipeline/conditions.h"
#include "pipeline/parts.h"
#include "pipeline/plan.h"
#include "pipeline/preview.h"
#include "pipeline/step_runner.h"
#include "sampling/noise.h"
#include "sampling/rows.h"
#include "sampling/sampler.h"
#include "sampling/schedule.h"

namespace h3 {
namespace {

constexpr int kVideoChannels = 24, kVideoRow = 96, kAudioRow = 32;

}  // namespace

class Run {
 public:
  Run(Engine& engine, const Resolved& resolved, const Control& control, const RunHooks& hooks)
      : engine_(engine), parts_(*engine.parts_), ops_(engine.ops_), r_(resolved), control_(control), hooks_(hooks) {}

  RunReport run();

 private:
  void render();
  // Runs `work` as a named stage: timed, logged, and named in its errors.
  template <typename Work>
  void stage(const char* name, int64_t items, const Work& work);
  bool wants(const char* name) const { return hooks_.sink.wants && hooks_.sink.wants(name); }
  void take(StageResult result) const { hooks_.sink.take(result); }
  const Component& component(Role role) const;

  void load_conditioner_part();
  void encode_text();
  void load_video_part(bool decoder, bool encoder);
  void load_audio_part();
  void load_decoders();
  void encode_conditions();
  void dump_conditions() const;
  void draw_noise();
  void load_dit_part();
  void pack();
  void denoise();
  void read_adapters();
  void denoise_loop(DitSession& session, StepPolicy& policy, Sampler& sampler, const Streams& velocity);
  void fit_preview_map();
  void show_preview(int step, const View& video, const View& velocity);
  void check_velocity(int step, const Streams& velocity, const View& flags);
  void dump_step(int step, const Streams& streams, StageResult& result, const char* video, const char* audio) const;
  void decode_audio();
  void decode_video();
  void open_writer();

  Engine& engine_;
  Engine::Parts& parts_;
  Ops& ops_;
  const Resolved& r_;
  const Control& control_;
  const RunHooks& hooks_;
  RunReport report_;
  Placement placement_;

  SavedText text_;
  std::vector<LayoutBlock> blocks_;                    // keyframes and references, in packed order
  std::vector<LatentShape> shapes_;                    // of the visual ones
  std::vector<std::vector<float>> condition_latents_;  // [24, T, h, w] each, of the visual ones
  std::vector<std::vector<float>> condition_sounds_;   // [2 latents, 32] each
  std::vector<float> condition_rows_;                  // of the visual ones: noised, packed
  Noise noise_;
  Schedule schedule_;
  PackedLayout layout_;
  PreviewMap preview_;
  std::vector<float> video_rows_, audio_rows_;  // clean, after the loop
  std::vector<float> samples_;                  // [2, output_samples]
  std::unique_ptr<ClipWriter> writer_;
};

template <typename Work>
void Run::stage(const char* name, int64_t items, const Work& work) {
  if (hooks_.on_stage) hooks_.on_stage(name);
  const auto start = std::chrono::steady_clock::now();
  try {
    work();
    ops_.sync();
    check_ram(engine_.options_.ram_limit);
  } catch (const Error& error) {
    // A numeric error names its stage itself, with the step.
    if (error.code() == Code::cancelled || error.code() == Code::numeric) throw;
    throw error.with_context(name);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report_.stages.push_back({name, seconds, items});
  if (!hooks_.dry) engine_.context_.log.write(LogLevel::info, "%-18s %8.2f s", name, seconds);
}

const Component& Run::component(Role role) const {
  if (role == Role::dit) return engine_.transformer(r_);
  const Component* const found = engine_.files_.find(role);
  if (found == nullptr) fail(Code::usage, "model: the files have no %s", name_of(role));
  return *found;
}

void Run::load_conditioner_part() {
  const bool vision = has_visual_conditions(r_);
  const bool usable = parts_.conditioner && parts_.text_compute == r_.compute && (parts_.text_vision || !vision);
  if (usable) return;
  parts_.conditioner.reset();
  stage("load text encoder", 1, [&] {
    ConditionerOptions options;
    options.compute = r_.compute;
    options.tap = engine_.options_.tap;
    options.vision = vision;
    options.control = &control_;
    options.resident_layers = placement_.text_layers;
    parts_.conditioner = load_conditioner(ops_, engine_.files_, options);
  });
  parts_.text_compute = r_.compute;
  parts_.text_vision = vision;
}

void Run::encode_text() {
  if (!r_.request.prompt_embeds.empty()) {
    stage("read embeddings", 1, [&] { text_ = read_saved_text(r_.request.prompt_embeds); });
  } else {
    load_conditioner_part();
    stage("encode text", 1, [&] {
      Conditioning conditioning = parts_.conditioner->encode(r_.request.prompt, prompt_media(r_), control_);
      text_ = {conditioning.rows, conditioning.width, std::move(conditioning.embeds), std::move(conditioning.tags),
               std::move(conditioning.ids)};
    });
    if (!placement_.keep) parts_.conditioner.reset();
  }
  require_finite("encode text", 0, 0, "prompt embeddings", text_.embeds);
  const bool seen = std::find(text_.tags.begin(), text_.tags.end(), 0) != text_.tags.end();
  if (has_visual_conditions(r_) && !seen) {
    report_.warnings.push_back("prompt_embeds: the saved embeddings were made without these pictures");
  }
  report_.text_rows = text_.rows;
  if (wants("text")) {
    StageResult result{"text", {}, {}};
    result.tensors.push_back({"prompt_embeds", {text_.rows, text_.width}, text_.embeds, {}, {}});
    result.tensors.push_back({"text_token_tags", {text_.rows}, {}, text_.tags, {}});
    if (!text_.ids.empty()) result.tensors.push_back({"token_ids", {text_.rows}, {}, text_.ids, {}});
    result.metadata["prompt"] = r_.request.prompt;
    take(std::move(result));
  }
}

void Run::load_video_part(bool decoder, bool encoder) {
  const bool usable = parts_.video && parts_.video_compute == r_.vae_compute && (parts_.video_encoder || !encoder) &&
                      (parts_.video_decoder || !decoder);
  if (!usable) {
    parts_.video.reset();
    stage("load video VAE", 1, [&] {
      VideoVaeOptions options;
      set_precision(options, r_.vae_compute);
      options.encoder = encoder;
      options.decoder = decoder;
      parts_.video = load_video_vae(ops_, component(Role::video_vae), options);
    });
    parts_.video_compute = r_.vae_compute;
    parts_.video_encoder = encoder;
    parts_.video_decoder = decoder;
  }
}

void Run::load_audio_part() {
  if (!parts_.audio && (r_.request.audio.value_or(true) || has_sound_conditions(r_))) {
    stage("load audio VAE", 1, [&] { parts_.audio = load_audio_vae(ops_, component(Role::audio_vae)); });
  }
}

// Before the transformer where there is room for both: a decoder that cannot be loaded is found out before the
// sampling, not after it.
void Run::load_decoders() {
  load_video_part(true, placement_.decoders_first && has_visual_conditions(r_));
  load_audio_part();
}

void Run::encode_conditions() {
  blocks_ = condition_blocks(r_);
  shapes_ = visual_shapes(blocks_);
  if (blocks_.empty()) return;
  if (!placement_.decoders_first) {
    if (has_visual_conditions(r_)) load_video_part(false, true);
    if (has_sound_conditions(r_)) load_audio_part();
  }
  const char* const name = r_.references.empty() ? "encode keyframes" : "encode references";
  stage(name, static_cast<int64_t>(blocks_.size()), [&] {
    if (has_sound_conditions(r_)) condition_sounds_ = encode_sound_conditions(r_, *parts_.audio, control_);
    condition_latents_ = encode_visual_conditions(r_, *parts_.video, control_);
    for (size_t i = 0; i < condition_latents_.size(); ++i) {
      require_finite(name, 0, 0, "condition latent", condition_latents_[i]);
      if (hooks_.adjust_condition) hooks_.adjust_condition(i, condition_latents_[i]);
    }
  });
  if (wants("keyframes")) dump_conditions();
}

void Run::dump_conditions() const {
  StageResult result{"keyframes", {}, {}};
  for (size_t i = 0; i < r_.keyframes.size(); ++i) {
    const std::vector<uint8_t>& rgb = r_.keyframes[i].picture.rgb;
    result.tensors.push_back({"keyframe_u8." + std::to_string(i), {r_.height, r_.width, 3}, {}, {}, rgb});
  }
  size_t sound = 0;
  for (size_t i = 0; i < r_.references.size(); ++i) {
    const ReferenceInput& reference = r_.references[i];
    if (reference.kind == Reference::Kind::image) {
      result.tensors.push_back(
          {"reference_u8." + std::to_string(i), {reference.height, reference.width, 3}, {}, {}, reference.frames[0]});
    }
    if (reference.sound.empty()) continue;
    const std::vector<float>& rows = condition_sounds_[sound];
    result.tensors.push_back({"audio_condition_rows." + std::to_string(sound++),
                              {static_cast<int64_t>(rows.size()) / kAudioRow, kAudioRow},
                              rows,
                              {},
                              {}});
  }
  for (size_t i = 0; i < shapes_.size(); ++i) {
    result.tensors.push_back({"condition_latent." + std::to_string(i),
                              {kVideoChannels, shapes_[i].frames, shapes_[i].height, shapes_[i].width},
                              condition_latents_[i],
                              {},
                              {}});
  }
  take(std::move(result));
}

void Run::draw_noise() {
  const NoiseProfile& profile = noise_profile(r_.profile);
  NoiseSpec spec;
  spec.seed = r_.seed;
  spec.video = {r_.latent_frames, r_.latent_height, r_.latent_width};
  spec.audio_latents = r_.audio_latents;
  spec.conditions = shapes_;
  stage("draw noise", 1, [&] {
    if (!holds_values(ops_.device())) return condition_rows_.resize(packed_rows(shapes_) * kVideoRow);
    noise_ = profile.draw(spec);
    for (size_t i = 0; i < condition_latents_.size(); ++i) {
      std::vector<float> rows = patchify(condition_latents_[i].data(), kVideoChannels, shapes_[i].frames,
                                         shapes_[i].height, shapes_[i].width);
      noise_condition(profile, rows, noise_.conditions[i]);
      condition_rows_.insert(condition_rows_.end(), rows.begin(), rows.end());
    }
  });
  if (!wants("noise")) return;
  StageResult result{"noise", {}, {}};
  const auto add = [&](const std::string& name, const std::vector<float>& rows, const LatentShape& shape) {
    result.tensors.push_back({name,
                              {kVideoChannels, shape.frames, shape.height, shape.width},
                              unpatchify(rows.data(), kVideoChannels, shape.frames, shape.height, shape.width),
                              {},
                              {}});
  };
  for (size_t i = 0; i < noise_.conditions.size(); ++i) {
    add("noise_condition." + std::to_string(i), noise_.conditions[i], shapes_[i]);
  }
  add("noise_video", noise_.video, spec.video);
  result.tensors.push_back({"noise_audio_rows", {2 * r_.audio_latents, kAudioRow}, noise_.audio, {}, {}});
  if (!condition_rows_.empty()) {
    const int64_t rows = static_cast<int64_t>(condition_rows_.size()) / kVideoRow;
    result.tensors.push_back({"condition_rows", {rows, kVideoRow}, condition_rows_, {}, {}});
  }
  take(std::move(result));
}

void Run::pack() {
  LayoutSpec spec;
  spec.text_tags = text_.tags;
  spec.blocks = blocks_;
  spec.latent_frames = r_.latent_frames;
  spec.latent_height = r_.latent_height;
  spec.latent_width = r_.latent_width;
  spec.audio_latents = r_.audio_latents;
  layout_ = build_layout(spec);
  report_.sequence_rows = layout_.rows;
}

void Run::load_dit_part() {
  // One transformer may serve both halves; otherwise they take turns.
  const Component& wanted = component(Role::dit);
  if (parts_.dit && parts_.dit_compute == r_.compute && parts_.dit_source == wanted.source.get()) return;
  parts_.adapters.unload();
  parts_.dit.reset();
  if (!hooks_.dry) engine_.use_plans(wanted, r_.compute);
  stage("load transformer", 1, [&] {
    DitOptions options;
    options.compute = r_.compute;
    options.activation = r_.compute == Compute::f32 ? DType::f32 : DType::bf16;
    options.resident_layers = placement_.dit_layers;
    parts_.dit = load_dit(ops_, wanted, options, control_);
  });
  parts_.dit_compute = r_.compute;
  parts_.dit_source = wanted.source.get();
  const DitConfig& config = parts_.dit->config();
  if (config.text_dim != text_.width) {
    fail(Code::data,
         "the prompt embeddings have %lld features, the transformer reads %lld; use the text encoder that "
         "belongs to it",
         static_cast<long long>(text_.width), static_cast<long long>(config.text_dim));
  }
}

void Run::denoise() {
  schedule_ = make_schedule(r_.scheduler, {r_.evaluations, r_.video_shift, r_.audio_shift});
  pack();
  load_dit_part();
  std::unique_ptr<DitSession> session;
  std::unique_ptr<StepPolicy> policy;
  stage("prepare", 1, [&] {
    DitRequest request;
    request.layout = &layout_;
    request.text = text_.embeds;
    request.condition_video = condition_rows_;
    for (const std::vector<float>& rows : condition_sounds_) {
      request.condition_audio.insert(request.condition_audio.end(), rows.begin(), rows.end());
    }
    request.video_times = schedule_.video.time;
    request.audio_times = schedule_.audio.time;
    request.adapters = parts_.adapters.load(*parts_.dit, acceleration_of(r_).adapters, control_);
    request.attention = acceleration_of(r_).attention;
    session = parts_.dit->start(std::move(request), control_);
    const PolicyShape shape =
        policy_shape(layout_, parts_.dit->config(), session->residual().type, schedule_.evaluations());
    policy = make_policy(ops_, acceleration_of(r_).policy, shape, schedule_);
  });
  Device& device = ops_.device();
  const int64_t video_rows = layout_.target_video_rows(), audio_rows = layout_.target_audio_rows();
  const Tensor video = upload_f32(device, noise_.video.data(), {video_rows, kVideoRow}, DType::f32, "video latents");
  const Tensor audio = upload_f32(device, noise_.audio.data(), {audio_rows, kAudioRow}, DType::f32, "audio latents");
  const Tensor video_velocity(device, DType::f32, {video_rows, kVideoRow}, "video velocity");
  const Tensor audio_velocity(device, DType::f32, {audio_rows, kAudioRow}, "audio velocity");
  const std::string name = r_.stock_sampler ? "stock" : r_.sampler;
  const std::unique_ptr<Sampler> sampler = make_sampler(name, ops_, schedule_, {video, audio});
  stage("denoise", schedule_.evaluations(), [&] {
    denoise_loop(*session, *policy, *sampler, {video_velocity, audio_velocity});
  });
  const Streams clean = sampler->result();
  ops_.sync();
  if (holds_values(device)) video_rows_ = download_f32(clean.video);
  audio_rows_ = download_f32(clean.audio);
  report_acceleration(acceleration_of(r_), schedule_, policy->records(), session->sparse_report(), report_);
  session.reset();
  if (placement_.keep) return;
  parts_.adapters.unload();
  parts_.dit.reset();
}

// Before anything is computed: a file that does not fit the model is found out at once.
void Run::read_adapters() {
  const std::vector<AdapterChoice>& choices = acceleration_of(r_).adapters;
  if (choices.empty()) return;
  stage("read adapters", static_cast<int64_t>(choices.size()), [&] {
    const DitConfig config =
        parts_.dit ? parts_.dit->config() : inspect_dit(component(Role::dit), engine_.context_.log).config;
    parts_.adapters.read(choices, config, engine_.facts_.lora_partial);
  });
  parts_.adapters.tell(choices, engine_.context_.log, report_.warnings);
}

void Run::denoise_loop(DitSession& session, StepPolicy& policy, Sampler& sampler, const Streams& velocity) {
  const int steps = schedule_.evaluations();
  StageResult latents{"latents", {}, {}}, velocities{"velocity", {}, {}};
  const Tensor flags = upload_i32(ops_.device(), {0}, "finite flags");
  int64_t allocations = ops_.device().allocations();
  bool sparse_seen = false;
  for (int step = 0; step < steps; ++step) {
    // An accelerator's scratch grows with the first evaluation (ops.h), and with the first sparse one.
    if (step == 1 && !ops_.device().is_host()) allocations = ops_.device().allocations();
    control_.progress("denoise", step, steps);
    check_ram(engine_.options_.ram_limit);
    const Streams input = sampler.input(step);
    run_step(session, policy, step, input, velocity);
    if (session.sparse_calls() > 0 && !std::exchange(sparse_seen, true)) allocations = ops_.device().allocations();
    check_velocity(step, velocity, flags);
    if (hooks_.on_preview) show_preview(step, input.video, velocity.video);
    if (wants("velocity")) dump_step(step, velocity, velocities, "video_velocity.", "audio_velocity.");
    sampler.advance(step, velocity);
    if (wants("latents")) {
      dump_step(step, sampler.input(step), latents, "video_rows_after_step.", "audio_rows_after_step.");
    }
  }
  // Everything a step needs was made before, except layers that a host makes for each use.
  H3_ASSERT(ops_.device().allocations() == allocations || (steps == 1 && !ops_.device().is_host()) ||
            (ops_.device().is_host() && placement_.dit_layers != kAllLayers));
  control_.progress("denoise", steps, steps);
  if (wants("velocity")) take(std::move(velocities));
  if (wants("latents")) take(std::move(latents));
}

void Run::fit_preview_map() {
  if (!hooks_.on_preview) return;
  stage("fit preview", 1, [&] {
    const Component& files = component(Role::video_vae);
    preview_ = preview_map(files.source->id(), kVideoChannels, [&] {
      if (parts_.video->has_encoder() || !engine_.facts_.video_encoder) return fit_preview(*parts_.video, control_);
      VideoVaeOptions options;
      options.decoder = false;
      return fit_preview(*load_video_vae(ops_, files, options), control_);
    });
  });
}

// The clean clip as this evaluation expects it, x + (1 - t) v: far clearer than the noisy state itself.
void Run::show_preview(int step, const View& video, const View& velocity) {
  std::vector<float> rows = download_f32(video);
  const std::vector<float> direction = download_f32(velocity);
  const float left = 1.0f - schedule_.video.time[static_cast<size_t>(step)];
  for (size_t i = 0; i < rows.size(); ++i) rows[i] += left * direction[i];
  const std::vector<float> latent =
      unpatchify(rows.data(), kVideoChannels, r_.latent_frames, r_.latent_height, r_.latent_width);
  hooks_.on_preview(step, schedule_.evaluations(),
                    preview_picture(preview_, latent.data(), r_.latent_frames, r_.latent_height, r_.latent_width,
                                    r_.latent_frames / 2));
}

void Run::check_velocity(int step, const Streams& velocity, const View& flags) {
  ops_.check_finite(velocity.video, flags);
  ops_.check_finite(velocity.audio, flags);
  ops_.sync();
  int32_t bad = 0;
  ops_.device().download(flags, &bad);
  if (bad == 0) return;
  const int steps = schedule_.evaluations();
  require_finite("denoise", step + 1, steps, "video velocity", download_f32(velocity.video));
  require_finite("denoise", step + 1, steps, "audio velocity", download_f32(velocity.audio));
}

void Run::dump_step(int step, const Streams& streams, StageResult& result, const char* video, const char* audio) const {
  ops_.sync();
  const auto add = [&](const char* prefix, const View& view, int64_t columns) {
    StageTensor tensor{prefix + std::to_string(step), {}, download_f32(view), {}, {}};
    tensor.dims = {static_cast<int64_t>(tensor.f32.size()) / columns, columns};
    result.metadata[tensor.name + ".rms"] = strf("%.6g", rms(tensor.f32));
    result.tensors.push_back(std::move(tensor));
  };
  add(video, streams.video, kVideoRow);
  add(audio, streams.audio, kAudioRow);
}

void Run::decode_audio() {
  if (!parts_.audio || !r_.request.audio.value_or(true)) return;
  stage("decode audio", r_.audio_latents, [&] {
    const std::vector<float> all = parts_.audio->decode(audio_rows_.data(), r_.audio_latents, control_);
    const int64_t count = static_cast<int64_t>(all.size()) / 2, kept = std::min(count, r_.output_samples);
    samples_.assign(all.begin(), all.begin() + kept);
    samples_.insert(samples_.end(), all.begin() + count, all.begin() + count + kept);
  });
  if (hooks_.on_audio) hooks_.on_audio(samples_, static_cast<int64_t>(samples_.size()) / 2);
  if (wants("audio")) {
    take({"audio", {{"audio", {2, static_cast<int64_t>(samples_.size()) / 2}, samples_, {}, {}}}, {}});
  }
  if (!placement_.keep) parts_.audio.reset();
}

void Run::open_writer() {
  const Request& request = r_.request;
  std::string path = request.output;
  ClipOptions options;
  options.width = r_.width;
  options.height = r_.height;
  options.audio = !samples_.empty();
  options.quality = request.quality.value_or(18);
  options.metadata = report_.recipe.to_json().dump();
  options.wav_path = request.wav;
  options.frames_dir = request.frames_dir;
  if (path.empty() && !options.frames_dir.empty()) {
    path = options.frames_dir + "/";
    options.frames_dir.clear();
  } else if (path.empty() && !options.wav_path.empty()) {
    path.swap(options.wav_path);
  }
  if (path.empty()) return;
  writer_ = open_clip(path, options);
  if (options.audio) writer_->set_audio(samples_.data(), static_cast<int64_t>(samples_.size()) / 2);
}

void Run::decode_video() {
  std::vector<float> latent;
  if (!video_rows_.empty()) {
    latent = unpatchify(video_rows_.data(), kVideoChannels, r_.latent_frames, r_.latent_height, r_.latent_width);
  }
  Watchdog watchdog(r_.width, r_.height);
  if (!samples_.empty()) watchdog.set_audio(samples_.data(), 2, static_cast<int64_t>(samples_.size()) / 2);
  StageTensor kept{"frames", {3, r_.output_frames, r_.height, r_.width}, {}, {}, {}};
  const size_t pixels = static_cast<size_t>(r_.width) * static_cast<size_t>(r_.height);
  if (wants("frames")) kept.f32.resize(3 * static_cast<size_t>(r_.output_frames) * pixels);
  std::vector<float> cut;
  stage("decode video", r_.frames, [&] {
    open_writer();
    parts_.video->decode(
        latent.data(), r_.latent_frames, r_.latent_height, r_.latent_width, control_, [&](const FrameRun& given) {
          check_ram(engine_.options_.ram_limit);
          FrameRun run = given;
          run.frames = std::min(run.frames, r_.output_frames - run.first);
          if (run.frames <= 0 || hooks_.dry) return;
          if (run.frames < given.frames) {  // planar: fewer frames is another layout
            cut.resize(3 * static_cast<size_t>(run.frames) * pixels);
            for (size_t c = 0; c < 3; ++c) {
              const size_t bytes = static_cast<size_t>(run.frames) * pixels * sizeof(float);
              std::memcpy(cut.data() + c * static_cast<size_t>(run.frames) * pixels,
                          given.rgb + c * static_cast<size_t>(given.frames) * pixels, bytes);
            }
            run.rgb = cut.data();
          }
          watchdog.add_frames(run.rgb, run.frames);
          if (writer_) writer_->add_frames(run.rgb, run.frames);
          if (hooks_.on_frames) hooks_.on_frames(run);
          if (kept.f32.empty()) return;
          for (size_t c = 0; c < 3; ++c) {
            const size_t count = static_cast<size_t>(run.frames) * pixels;
            std::copy_n(run.rgb + c * count, count,
                        kept.f32.data() +
                            (c * static_cast<size_t>(r_.output_frames) + static_cast<size_t>(run.first)) * pixels);
          }
        });
    // Before the clip appears: a dump that cannot be written then leaves no clip behind.
    if (!kept.f32.empty()) take({"frames", {std::move(kept)}, {}});
    if (writer_) report_.files = writer_->finish();
  });
  if (!hooks_.dry) report_.findings = watchdog.findings();
  for (const Finding& finding : report_.findings) {
    if (!finding.ok) report_.warnings.push_back(finding.text);
  }
  if (!placement_.keep) parts_.video.reset();
}

RunReport Run::run() {
  const auto start = std::chrono::steady_clock::now();
  ops_.device().reset_peak();
  report_.recipe = engine_.recipe(r_);
  report_.resolved = r_.to_json();
  report_.notes = r_.notes;
  report_.warnings = r_.warnings;
  placement_ = engine_.placement(r_);
  placement_.keep ? parts_.adapters.make_room(acceleration_of(r_).adapters, placement_.spare) : engine_.release();
  read_adapters();
  encode_text();
  if (!hooks_.text_only) render();
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report_.peak_ram = peak_resident_bytes();
  report_.peak_device = ops_.device().is_host() ? 0 : ops_.device().peak_bytes();
  report_.placement = placement_;
  return std::move(report_);
}

void Run::render() {
  if (placement_.decoders_first) {
    load_decoders();
  } else if (hooks_.on_preview) {
    load_video_part(true, false);
  }
  fit_preview_map();
  encode_conditions();
  if (!placement_.decoders_first) {
    parts_.video.reset();
    parts_.audio.reset();
  }
  draw_noise();
  denoise();
  if (!placement_.decoders_first) load_decoders();
  if (wants("final")) {
    StageResult result{"final", {}, {}};
    result.tensors.push_back(
        {"latents",
         {kVideoChannels, r_.latent_frames, r_.latent_height, r_.latent_width},
         unpatchify(video_rows_.data(), kVideoChannels, r_.latent_frames, r_.latent_height, r_.latent_width),
         {},
         {}});
    result.tensors.push_back({"audio_latents",
                              {2, kAudioRow, r_.audio_latents},
                              audio_rows_to_planes(audio_rows_.data(), kAudioRow, r_.audio_latents),
                              {},
                              {}});
    take(std::move(result));
  }
  decode_audio();
  decode_video();
}

RunReport Engine::run(const Resolved& resolved, const Control& control, const RunHooks& hooks) {
  return Run(*this, resolved, control, hooks).run();
}

}  // namespace h3
