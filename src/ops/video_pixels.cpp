// Default bodies of the video pixel operations, for back ends whose memory is the host's.
#include <algorithm>

#include "base/context.h"
#include "base/error.h"
#include "ops/ops.h"

namespace h3 {
namespace {

const float* row_of(const View& tile, int64_t row) {
  return reinterpret_cast<const float*>(tile.data) + row * tile.stride[0];
}

// Reads pixels of one raw tile along a row: the address of feature (channel, frame, r, 0) of latent column 0.
struct RawRow {
  const float* first = nullptr;  // of latent column 0
  int64_t step = 0;              // elements from one latent column to the next
  int p = 16;

  RawRow(const View& tile, const TileBlend& a, int64_t channel, int64_t frame, int64_t r)
      : step(tile.stride[0]), p(a.p) {
    const int64_t latent = (frame / a.pt * a.h + r / a.p) * a.w;
    const int64_t feature = ((channel * a.pt + frame % a.pt) * a.p + r % a.p) * a.p;
    first = row_of(tile, latent) + feature;
  }
  float operator[](int64_t c) const { return first[c / p * step + c % p]; }
};

void blend_row(const TileBlend& a, int64_t channel, int64_t f, int64_t r) {
  const int64_t frame = a.first_frame + f;
  const RawRow own(a.tile, a, channel, frame, r);
  float* out =
      reinterpret_cast<float*>(a.out.data) + channel * a.out.stride[0] + f * a.out.stride[1] + r * a.out.stride[2];
  const int64_t columns = a.out.dim[3], step = a.out.stride[3];
  if (!a.up.empty() && r < a.overlap_up) {
    const RawRow up(a.up, a, channel, frame, a.p * a.h - a.overlap_up + r);
    const float wb = static_cast<float>(r) / static_cast<float>(a.overlap_up), wa = 1.0f - wb;
    for (int64_t c = 0; c < columns; ++c) out[c * step] = up[c] * wa + own[c] * wb;
  } else {
    for (int64_t c = 0; c < columns; ++c) out[c * step] = own[c];
  }
  if (a.left.empty()) return;
  const RawRow left(a.left, a, channel, frame, r);
  const int64_t shift = a.p * a.w - a.overlap_left;
  for (int64_t c = 0; c < std::min(columns, a.overlap_left); ++c) {
    const float wb = static_cast<float>(c) / static_cast<float>(a.overlap_left), wa = 1.0f - wb;
    out[c * step] = left[shift + c] * wa + out[c * step] * wb;
  }
}

}  // namespace

void Ops::blend_tile(const TileBlend& a) {
  H3_ASSERT(device().is_host() && a.out.type == DType::f32 && a.out.rank == 4 && a.tile.type == DType::f32);
  H3_ASSERT(a.tile.rank == 2 && a.tile.dim[0] >= a.t * a.h * a.w && a.tile.dim[1] == a.out.dim[0] * a.pt * a.p * a.p);
  H3_ASSERT(a.first_frame + a.out.dim[1] <= a.t * a.pt && a.out.dim[2] <= a.h * a.p && a.out.dim[3] <= a.w * a.p);
  H3_ASSERT(a.overlap_up <= a.h * a.p && a.overlap_left <= a.w * a.p);
  const int64_t frames = a.out.dim[1], rows = a.out.dim[2];
  context().pool.parallel(a.out.dim[0] * frames, [&](int64_t i) {
    for (int64_t r = 0; r < rows; ++r) blend_row(a, i / frames, i % frames, r);
  });
}

void Ops::to_unit_range(const View& x, const View& std, const View& mean, const View& y) {
  H3_ASSERT(device().is_host() && x.type == DType::f32 && y.type == DType::f32 && x.rank == y.rank && x.rank >= 1);
  H3_ASSERT(std.dim[0] == x.dim[0] && mean.dim[0] == x.dim[0] && std.stride[0] == 1 && mean.stride[0] == 1);
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < x.rank; ++axis) rows *= x.dim[axis];
  const int64_t length = x.dim[x.rank - 1];
  context().pool.parallel(rows, [&](int64_t row) {
    int64_t from = 0, to = 0, rest = row;
    for (int axis = x.rank - 2; axis >= 0; --axis) {
      from += rest % x.dim[axis] * x.stride[axis];
      to += rest % x.dim[axis] * y.stride[axis];
      rest /= x.dim[axis];
    }
    const int64_t channel = row / (rows / x.dim[0]);
    const float s = host<float>(std)[channel], m = host<float>(mean)[channel];
    const float* source = host<float>(x) + from;
    float* target = host<float>(y) + to;
    for (int64_t i = 0; i < length; ++i) {
      const float v = source[i * x.stride[x.rank - 1]] * s + m;
      target[i * y.stride[x.rank - 1]] = v < 0.0f ? 0.0f : (v > 1.0f ? 1.0f : v);
    }
  });
}

}  // namespace h3
