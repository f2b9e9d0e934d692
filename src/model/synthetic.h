// Components of any size with weights made by hash instead of read: `--weights random`. The weight tables say what
// there is; the ranges keep activations of order one, so that a run ends finite.
#pragma once

#include <cstdint>

#include "model/dit/config.h"
#include "store/model_files.h"

namespace h3 {

// Sizes of the release, with fewer layers when asked (0 = all of them).
DitConfig release_dit_config(int64_t layers = 0);

// ComfyUI names, pruned AdaLN (a time curve of rank 8). Everything follows from `config`.
// matrices: the format of those of the blocks. noise = made where they are used; q4tp and f8_e4m3 = by chance, those of
// one shape alike.
Component synthetic_dit(const DitConfig& config, uint64_t seed, Format matrices = Format::noise);
// The released video autoencoder with this many decoder layers (0 = 36); both halves.
Component synthetic_video_vae(int64_t layers, uint64_t seed);
Component synthetic_audio_vae(uint64_t seed);
// The language model of the release's conditioner, without a vision tower (0 layers = the 50 that run); or that of the
// small 4B encoder (0 layers = the 24 below its tap), with the ClipProj that maps it to the large one's width.
enum class SyntheticEncoder : uint8_t { release, small };
Component synthetic_conditioner(int64_t layers, uint64_t seed, Format matrices = Format::noise,
                                SyntheticEncoder kind = SyntheticEncoder::release);
Component synthetic_clip_proj(uint64_t seed);

// A whole model of release dimensions with this many layers per component, a tokenizer (path; "" = that of the embedded
// demo), and the tap behind its last layer: text to video only. 0 layers = all of them.
ModelFiles synthetic_release(int layers, uint64_t seed, Format matrices = Format::noise,
                             SyntheticEncoder kind = SyntheticEncoder::release, const std::string& tokenizer = "");

}  // namespace h3
