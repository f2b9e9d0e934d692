#include "sampling/rows.h"

#include <cstddef>

namespace h3 {
namespace {

// Calls move(index in the latent, index in the rows) for every element.
template <typename Move>
void each_patch_element(int channels, int frames, int height, int width, Move move) {
  const int64_t rows_down = height / 2, rows_across = width / 2;
  for (int64_t t = 0; t < frames; ++t) {
    for (int64_t a = 0; a < rows_down; ++a) {
      for (int64_t b = 0; b < rows_across; ++b) {
        const int64_t row = (t * rows_down + a) * rows_across + b;
        for (int64_t c = 0; c < channels; ++c) {
          for (int64_t p = 0; p < 2; ++p) {
            const int64_t from = ((c * frames + t) * height + 2 * a + p) * width + 2 * b;
            const int64_t to = row * channels * 4 + c * 4 + p * 2;
            move(from, to);
            move(from + 1, to + 1);
          }
        }
      }
    }
  }
}

template <typename Move>
void each_audio_element(int channels, int latents, Move move) {
  for (int64_t side = 0; side < 2; ++side) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t t = 0; t < latents; ++t)
        move((side * channels + c) * latents + t, (side * latents + t) * channels + c);
    }
  }
}

}  // namespace

std::vector<float> patchify(const float* latent, int channels, int frames, int height, int width) {
  std::vector<float> rows(static_cast<size_t>(channels) * frames * height * width);
  each_patch_element(channels, frames, height, width, [&](int64_t from, int64_t to) { rows[to] = latent[from]; });
  return rows;
}

std::vector<float> unpatchify(const float* rows, int channels, int frames, int height, int width) {
  std::vector<float> latent(static_cast<size_t>(channels) * frames * height * width);
  each_patch_element(channels, frames, height, width, [&](int64_t to, int64_t from) { latent[to] = rows[from]; });
  return latent;
}

std::vector<float> audio_rows_to_planes(const float* rows, int channels, int latents) {
  std::vector<float> planes(static_cast<size_t>(2) * channels * latents);
  each_audio_element(channels, latents, [&](int64_t plane, int64_t row) { planes[plane] = rows[row]; });
  return planes;
}

std::vector<float> audio_planes_to_rows(const float* planes, int channels, int latents) {
  std::vector<float> rows(static_cast<size_t>(2) * channels * latents);
  each_audio_element(channels, latents, [&](int64_t plane, int64_t row) { rows[row] = planes[plane]; });
  return rows;
}

}  // namespace h3
