// What precedes the generated rows of the packed sequence: keyframes and references, as each part of the model takes
// them (spec dit 3.2, 3.6).
#pragma once

#include <functional>
#include <vector>

#include "base/control.h"
#include "model/dit/layout.h"
#include "model/text/picture.h"
#include "model/vae/audio_vae.h"
#include "model/vae/video_vae.h"
#include "pipeline/request.h"
#include "sampling/noise.h"

namespace h3 {

// For the conditioner, in request order. Without pixels: sizes and counts only.
std::vector<PromptMedia> prompt_media(const Resolved& resolved, bool pixels = true);

// In packed order.
std::vector<LayoutBlock> condition_blocks(const Resolved& resolved);
// Of the blocks with pictures.
std::vector<LatentShape> visual_shapes(const std::vector<LayoutBlock>& blocks);
size_t packed_rows(const std::vector<LatentShape>& shapes);  // of the packed sequence, for all of them

// Whether a run needs the encoder of each autoencoder.
bool has_visual_conditions(const Resolved& resolved);
bool has_sound_conditions(const Resolved& resolved);

// Every visual condition in packed order: normalised latents [24, T, h, w].
std::vector<std::vector<float>> encode_visual_conditions(const Resolved& resolved, VideoVae& vae,
                                                         const Control& control);
// Every sound in packed order: normalised rows [2 latents, 32].
std::vector<std::vector<float>> encode_sound_conditions(const Resolved& resolved, AudioVae& vae,
                                                        const Control& control);

}  // namespace h3
