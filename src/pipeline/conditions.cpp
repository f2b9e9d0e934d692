#include "pipeline/conditions.h"

#include <algorithm>

#include "base/error.h"
#include "model/text/presentation.h"

namespace h3 {
namespace {

// Only the reference samples the posterior; the other programs take its mean (spec vae 7).
Posterior posterior_of(const Resolved& resolved) {
  return resolved.profile == "diffusers" ? Posterior::sample42 : Posterior::mean;
}

std::vector<float> encode_frames(VideoVae& vae, const std::vector<const uint8_t*>& frames, int width, int height,
                                 Posterior posterior, const Control& control) {
  const int count = static_cast<int>(frames.size());
  // Pictures that were only measured are black: plans depend on sizes alone.
  const bool measured = std::find(frames.begin(), frames.end(), nullptr) != frames.end();
  const std::vector<uint8_t> black(measured ? static_cast<size_t>(width) * height * 3 : 0);
  const auto source = [&](int first, int wanted, float* out) {
    for (int i = 0; i < wanted; ++i) {
      const uint8_t* const frame = frames[static_cast<size_t>(first + i)];
      normalise_pixels(frame != nullptr ? frame : black.data(), width, height, out, wanted, i);
    }
  };
  const std::vector<float> moments = vae.encode_moments(source, count, height, width, control);
  if (moments.empty()) return {};
  const int64_t positions = static_cast<int64_t>(encoded_frames(count, vae.clip())) * (height / vae.spatial_ratio()) *
                            (width / vae.spatial_ratio());
  return condition_latent(vae, moments, positions, posterior);
}

LayoutBlock visual_block(LayoutBlock::Kind kind, int frames, int width, int height) {
  LayoutBlock block;
  block.kind = kind;
  block.latent_frames = encoded_frames(frames, ClipGeometry());
  block.latent_height = height / kLatentPixels;
  block.latent_width = width / kLatentPixels;
  return block;
}

}  // namespace

std::vector<PromptMedia> prompt_media(const Resolved& resolved, bool pixels) {
  const auto picture = [&](int width, int height, const std::vector<uint8_t>& rgb) {
    Picture out{width, height, pixels ? rgb : std::vector<uint8_t>()};
    if (pixels) out.rgb.resize(static_cast<size_t>(width) * height * 3);  // black where it was only measured
    return out;
  };
  std::vector<PromptMedia> media;
  for (const Keyframe& keyframe : resolved.keyframes) {
    PromptMedia entry;
    entry.frames.push_back(picture(keyframe.picture.width, keyframe.picture.height, keyframe.picture.rgb));
    media.push_back(std::move(entry));
  }
  for (const ReferenceInput& reference : resolved.references) {
    PromptMedia entry;
    entry.kind = reference.kind == Reference::Kind::image   ? PromptMedia::Kind::image
                 : reference.kind == Reference::Kind::video ? PromptMedia::Kind::video
                                                            : PromptMedia::Kind::audio;
    entry.has_sound = !reference.sound_tag.empty();
    entry.frames.resize(reference.frames.size());
    for (const int64_t seen : conditioner_frames(static_cast<int64_t>(reference.frames.size()))) {
      const size_t index = static_cast<size_t>(seen);
      entry.frames[index] = picture(reference.width, reference.height, reference.frames[index]);
    }
    media.push_back(std::move(entry));
  }
  return media;
}

std::vector<LayoutBlock> condition_blocks(const Resolved& resolved) {
  using Kind = LayoutBlock::Kind;
  std::vector<LayoutBlock> blocks;
  for (const Keyframe& keyframe : resolved.keyframes) {
    const Kind kind = keyframe.last ? Kind::last_frame : Kind::first_frame;
    blocks.push_back(visual_block(kind, 1, resolved.width, resolved.height));
  }
  for (const ReferenceInput& reference : resolved.references) {
    LayoutBlock block;
    block.kind = Kind::audio;
    if (!reference.frames.empty()) {
      const Kind kind = reference.kind == Reference::Kind::image ? Kind::image : Kind::video;
      block = visual_block(kind, reference.encoded_frames, reference.width, reference.height);
    }
    block.audio_latents = static_cast<int>((reference.samples() + kSamplesPerLatent - 1) / kSamplesPerLatent);
    blocks.push_back(block);
  }
  return blocks;
}

std::vector<LatentShape> visual_shapes(const std::vector<LayoutBlock>& blocks) {
  std::vector<LatentShape> shapes;
  for (const LayoutBlock& block : blocks) {
    if (block.latent_frames > 0) shapes.push_back({block.latent_frames, block.latent_height, block.latent_width});
  }
  return shapes;
}

size_t packed_rows(const std::vector<LatentShape>& shapes) {
  size_t rows = 0;
  for (const LatentShape& s : shapes) rows += static_cast<size_t>(s.frames) * s.height * s.width / 4;
  return rows;
}

bool has_visual_conditions(const Resolved& resolved) {
  return !resolved.keyframes.empty() ||
         std::any_of(resolved.references.begin(), resolved.references.end(),
                     [](const ReferenceInput& reference) { return !reference.frames.empty(); });
}

bool has_sound_conditions(const Resolved& resolved) {
  return std::any_of(resolved.references.begin(), resolved.references.end(),
                     [](const ReferenceInput& reference) { return !reference.sound.empty(); });
}

std::vector<std::vector<float>> encode_visual_conditions(const Resolved& resolved, VideoVae& vae,
                                                         const Control& control) {
  std::vector<std::vector<float>> latents;
  const Posterior posterior = posterior_of(resolved);
  for (const Keyframe& keyframe : resolved.keyframes) {
    latents.push_back(
        encode_frames(vae, {keyframe.picture.rgb.data()}, resolved.width, resolved.height, posterior, control));
  }
  for (const ReferenceInput& reference : resolved.references) {
    if (reference.frames.empty()) continue;
    std::vector<const uint8_t*> frames;
    for (int i = 0; i < reference.encoded_frames; ++i) {
      const std::vector<uint8_t>& rgb = reference.frames[static_cast<size_t>(i)];
      frames.push_back(rgb.empty() ? nullptr : rgb.data());
    }
    latents.push_back(encode_frames(vae, frames, reference.width, reference.height, posterior, control));
  }
  return latents;
}

std::vector<std::vector<float>> encode_sound_conditions(const Resolved& resolved, AudioVae& vae,
                                                        const Control& control) {
  std::vector<std::vector<float>> rows;
  for (const ReferenceInput& reference : resolved.references) {
    if (!reference.sound.empty()) rows.push_back(vae.encode(reference.sound.data(), reference.samples(), control));
  }
  return rows;
}

}  // namespace h3
