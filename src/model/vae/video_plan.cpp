#include "model/vae/video_plan.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace h3 {

TileAxis tile_axis(int length, int tile, int overlap, int quantum) {
  H3_ASSERT(length > 0 && tile > overlap && overlap > 0 && quantum > 0);
  H3_ASSERT(length % quantum == 0 && tile % quantum == 0 && overlap % quantum == 0);
  if (length <= tile) return {{0}, {length}, {}};
  const int step = tile - overlap;
  const int count = (length - overlap + step - 1) / step;
  TileAxis axis;
  axis.overlaps.assign(count - 1, overlap);
  const int slack = tile * count - overlap * (count - 1) - length;
  for (int i = 0; i < slack / quantum; ++i) axis.overlaps[i % (count - 1)] += quantum;
  axis.starts.push_back(0);
  for (int shared : axis.overlaps) axis.starts.push_back(axis.starts.back() + tile - shared);
  axis.lengths.assign(count, tile);
  return axis;
}

TileAxis latent_axis(const TileAxis& pixels, int quantum) {
  TileAxis axis = pixels;
  for (std::vector<int>* values : {&axis.starts, &axis.lengths, &axis.overlaps}) {
    for (int& value : *values) value /= quantum;
  }
  return axis;
}

ClipSchedule clip_schedule(int latent_frames, const ClipGeometry& g) {
  H3_ASSERT(latent_frames > 0 && g.valid());
  const int tokens = g.tokens();
  const int filled = latent_frames + g.drop;
  ClipSchedule schedule;
  schedule.pad = (tokens - filled % tokens) % tokens;
  schedule.clips = (filled + schedule.pad) / tokens - 1;
  if (schedule.clips < 1) {
    schedule.pad += tokens;
    schedule.clips += 1;
  }
  schedule.frames = schedule.clips * g.clip + g.frame_overlap();
  // The first latent frame of each group of tokens() stands for one pixel frame, the others for `ratio`.
  for (int k = 0; k < schedule.pad; ++k) {
    schedule.frames -= (latent_frames + k) % tokens == 0 ? g.ratio - g.pre_padding() : g.ratio;
  }
  return schedule;
}

int encoded_frames(int frames, const ClipGeometry& g) {
  return frames == 1 ? 1 : (frames + g.clip - 1) / g.clip * g.tokens() - g.drop;
}

namespace {

// One plane of the canvas region that tile (i, j) owns.
struct Stitch {
  const std::vector<std::vector<float>>& tiles;
  const TileAxis& ys;
  const TileAxis& xs;

  const float* raw(int i, int j, int64_t plane) const {
    return tiles[i * xs.count() + j].data() + plane * ys.lengths[i] * xs.lengths[j];
  }
  void region(int i, int j, int64_t plane, float* out, int64_t width) const {
    const int rows = ys.end(i) - ys.starts[i], columns = xs.end(j) - xs.starts[j];
    const int h = ys.lengths[i], w = xs.lengths[j], ey = ys.overlap_before(i), ex = xs.overlap_before(j);
    const float* own = raw(i, j, plane);
    const float* up = i > 0 ? raw(i - 1, j, plane) : nullptr;
    const float* left = j > 0 ? raw(i, j - 1, plane) : nullptr;
    for (int r = 0; r < rows; ++r) {
      const float yb = r < ey ? static_cast<float>(r) / static_cast<float>(ey) : 1.0f, ya = 1.0f - yb;
      for (int c = 0; c < columns; ++c) {
        float value = own[r * w + c];
        if (r < ey) value = up[(h - ey + r) * w + c] * ya + value * yb;
        if (c < ex) {
          const float xb = static_cast<float>(c) / static_cast<float>(ex), xa = 1.0f - xb;
          value = left[r * w + w - ex + c] * xa + value * xb;
        }
        out[r * width + c] = value;
      }
    }
  }
};

}  // namespace

void stitch_tiles(const std::vector<std::vector<float>>& tiles, const TileAxis& ys, const TileAxis& xs, int64_t planes,
                  float* out) {
  H3_ASSERT(static_cast<int>(tiles.size()) == ys.count() * xs.count());
  const int64_t height = ys.end(ys.count() - 1), width = xs.end(xs.count() - 1);
  const Stitch stitch{tiles, ys, xs};
  for (int64_t plane = 0; plane < planes; ++plane) {
    for (int i = 0; i < ys.count(); ++i) {
      for (int j = 0; j < xs.count(); ++j) {
        stitch.region(i, j, plane, out + (plane * height + ys.starts[i]) * width + xs.starts[j], width);
      }
    }
  }
}

std::vector<float> rotary_frequencies(double theta, int per_axis) {
  std::vector<float> inverse(per_axis);
  for (int i = 0; i < per_axis; ++i) {
    const float exponent = static_cast<float>(i) / static_cast<float>(per_axis);
    inverse[i] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  return inverse;
}

RotaryTable rotary_table(int t, int h, int w, int suffix, double theta, int per_axis) {
  const std::vector<float> inverse = rotary_frequencies(theta, per_axis);
  const float two_pi = static_cast<float>(2.0 * std::numbers::pi);
  RotaryTable table;
  table.pairs = 3 * static_cast<int64_t>(per_axis);
  table.rows = static_cast<int64_t>(t) * h * w + suffix;
  table.cos.assign(table.rows * table.pairs, 1.0f);  // a suffix token has coordinate 0: no rotation
  table.sin.assign(table.rows * table.pairs, 0.0f);
  const int extents[3] = {t, h, w};
  for (int64_t row = 0; row < table.rows - suffix; ++row) {
    const int64_t position[3] = {row / (static_cast<int64_t>(h) * w), row / w % h, row % w};
    for (int axis = 0; axis < 3; ++axis) {
      const float middle = static_cast<float>(position[axis]) + 0.5f;
      const float u = 2.0f * (middle / static_cast<float>(extents[axis])) - 1.0f;
      for (int i = 0; i < per_axis; ++i) {
        const float turn = two_pi * u;
        const double angle = static_cast<double>(turn * inverse[i]);
        const int64_t at = row * table.pairs + axis * per_axis + i;
        table.cos[at] = static_cast<float>(std::cos(angle));
        table.sin[at] = static_cast<float>(std::sin(angle));
      }
    }
  }
  return table;
}

}  // namespace h3
