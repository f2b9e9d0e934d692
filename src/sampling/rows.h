// Latents in memory order of the autoencoders <-> rows of the packed sequence (spec dit 3.1).
#pragma once

#include <cstdint>
#include <vector>

namespace h3 {

// z[C, T, h, w] <-> rows [T (h/2)(w/2), 4 C]; inside a row the order is (channel, patch row, patch column).
std::vector<float> patchify(const float* latent, int channels, int frames, int height, int width);
std::vector<float> unpatchify(const float* rows, int channels, int frames, int height, int width);

// Stereo sound rows [2 Ta, C], row = channel * Ta + latent.
// Planes [2, C, Ta] are what the audio autoencoder reads (two mono items).
std::vector<float> audio_rows_to_planes(const float* rows, int channels, int latents);
std::vector<float> audio_planes_to_rows(const float* planes, int channels, int latents);

}  // namespace h3
