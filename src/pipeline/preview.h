// Small pictures of a clip that is still being denoised: every latent position becomes one pixel through an affine map
// from latent channels to RGB, fitted by least squares on the loaded autoencoder. It knows colours and shapes, not
// texture; the clip itself is not touched.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/control.h"
#include "media/media.h"

namespace h3 {

class VideoVae;

struct PreviewMap {
  int channels = 0;
  std::vector<float> weight;  // [3, channels + 1]; the last column is the constant. RGB in 0..1
  double residual = 0;        // RMS over the fitted positions, in units of RGB
};

// From four drawn clips of 64x64 pixels and 22 frames through the encoder; without one, from four clips of random
// latents through the decoder.
PreviewMap fit_preview(VideoVae& vae, const Control& control);
// What `fit` returned for this model before, from the cache folder, else fit(). A cache that cannot be read or written
// is passed over.
PreviewMap preview_map(const std::string& model_id, int channels, const std::function<PreviewMap()>& fit);

// Frame `frame` of a latent [channels, frames, height, width], normalised as the denoiser leaves it; enlarged by a
// whole factor to at most 512 pixels.
Image preview_picture(const PreviewMap& map, const float* latent, int frames, int height, int width, int frame);

// A PNG that replaces the previous one at once: a reader never sees half of it.
void write_preview(const std::string& path, const Image& picture);

}  // namespace h3
