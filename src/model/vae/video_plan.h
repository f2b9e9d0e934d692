// The schedules of the video autoencoder, as pure host arithmetic: tiles of one axis (spec vae 4.1), temporal clips of
// the decoder (5) and of the encoder (6), the blend of host tiles (4.2) and the rotary tables (3.1).
#pragma once

#include <cstdint>
#include <vector>

namespace h3 {

// Square tiles of `tile` pixels that overlap by at least `overlap`. Another size is another function of the latents
// (rotary coordinates and statistics are per tile): anything but the default is for comparisons, not for quality.
struct VideoTiling {
  int tile = 256, overlap = 64;
};

// One axis of the tile plan. overlaps[k] is shared by tiles k and k + 1. Lengths are all equal.
struct TileAxis {
  std::vector<int> starts, lengths, overlaps;

  int count() const { return static_cast<int>(starts.size()); }
  // Tile k owns [starts[k], end(k)): up to where the next tile starts, the last one to the end of the axis.
  int end(int k) const { return k + 1 < count() ? starts[k + 1] : starts[k] + lengths[k]; }
  int overlap_before(int k) const { return k > 0 ? overlaps[k - 1] : 0; }
};

// length and tile in pixels, multiples of quantum. The fewest tiles; the slack goes round robin into the overlaps.
TileAxis tile_axis(int length, int tile = 256, int overlap = 64, int quantum = 16);
// The same axis in units of `quantum` pixels.
TileAxis latent_axis(const TileAxis& pixels, int quantum);

// Constants of the temporal structure, from clip length (pixel frames), temporal ratio and token drop.
struct ClipGeometry {
  int clip = 17, ratio = 4, drop = 3;

  int tokens() const { return (clip + ratio - 1) / ratio; }    // latent frames per clip: 5
  int token_overlap() const { return tokens() - drop; }        // 2
  int window() const { return tokens() + token_overlap(); }    // latent frames per decoded clip: 7
  int pre_padding() const { return tokens() * ratio - clip; }  // leading frames dropped from each group: 3
  int frame_overlap() const { return token_overlap() * ratio - pre_padding(); }  // cross-faded frames: 5
  bool valid() const { return clip > 0 && ratio > 0 && drop > 0 && token_overlap() > 0 && frame_overlap() > 0; }
};

// How T latent frames are decoded: clip i reads latent frames tokens()*i .. + window(), frames beyond the last repeat
// it; it yields output frames clip*i .. and the cross-fade tail; the output is cut to `frames`.
struct ClipSchedule {
  int clips = 0, pad = 0, frames = 0;
};
// Lengths 1 and 2, where the reference fails, are padded to one clip.
ClipSchedule clip_schedule(int latent_frames, const ClipGeometry& geometry);

// Latent frames of an encode of F pixel frames: 1 for a picture, tokens()*ceil(F/clip) - drop for a clip.
int encoded_frames(int frames, const ClipGeometry& geometry);

// Joins raw tiles [planes, h, w] (row-major, tile (i, j) at tiles[i * xs.count() + j]) into out [planes, H, W]:
// vertical ramp first, then horizontal, both against raw neighbours; f32, one rounding per operation.
void stitch_tiles(const std::vector<std::vector<float>>& tiles, const TileAxis& ys, const TileAxis& xs, int64_t planes,
                  float* out);

// cos and sin of a tile of t x h x w tokens and `suffix` tokens without position: [t*h*w + suffix, pairs], pairs = 3 *
// per_axis, axes in the order t, y, x. Angles are rounded to f32 where the reference rounds them.
struct RotaryTable {
  std::vector<float> cos, sin;
  int64_t rows = 0, pairs = 0;
};
std::vector<float> rotary_frequencies(double theta, int per_axis);  // 1 / theta^(i / per_axis), f32 powers
RotaryTable rotary_table(int t, int h, int w, int suffix, double theta, int per_axis);

}  // namespace h3
