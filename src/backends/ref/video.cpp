#include "backends/ref/ref_ops.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

double f32(double value) { return rows::round_to(DType::f32, value); }

// Pixel (channel, frame, r, c) of a raw tile.
double pixel(const TileBlend& a, const View& raw, int64_t channel, int64_t frame, int64_t r, int64_t c) {
  const int64_t row = (frame / a.pt * a.h + r / a.p) * a.w + c / a.p;
  const int64_t feature = ((channel * a.pt + frame % a.pt) * a.p + r % a.p) * a.p + c % a.p;
  double value;
  rows::load_row(raw, row, feature, 1, &value);
  return value;
}

// other * (1 - k/e) + own * (k/e), each step rounded (spec vae 4.2).
double blended(double other, double own, int64_t k, int64_t e) {
  const double mine = f32(static_cast<double>(k) / static_cast<double>(e));
  return f32(f32(other * f32(1 - mine)) + f32(own * mine));
}

}  // namespace

void RefOps::blend_tile(const TileBlend& a) {
  H3_ASSERT(a.out.rank == 4 && a.out.type == DType::f32 && a.tile.rank == 2 && a.tile.type == DType::f32);
  H3_ASSERT(a.tile.dim[0] >= a.t * a.h * a.w && a.tile.dim[1] == a.out.dim[0] * a.pt * a.p * a.p);
  H3_ASSERT(a.out.dim[2] <= a.p * a.h && a.out.dim[3] <= a.p * a.w && a.first_frame + a.out.dim[1] <= a.t * a.pt);
  const int64_t frames = a.out.dim[1], height = a.out.dim[2], width = a.out.dim[3];
  for_rows(a.out.dim[0] * frames * height, width, [&](int64_t row) {
    const int64_t r = row % height, f = a.first_frame + row / height % frames, channel = row / (height * frames);
    std::vector<double> line(static_cast<size_t>(width));
    for (int64_t c = 0; c < width; ++c) {
      double v = pixel(a, a.tile, channel, f, r, c);
      if (!a.up.empty() && r < a.overlap_up) {
        v = blended(pixel(a, a.up, channel, f, a.p * a.h - a.overlap_up + r, c), v, r, a.overlap_up);
      }
      if (!a.left.empty() && c < a.overlap_left) {
        v = blended(pixel(a, a.left, channel, f, r, a.p * a.w - a.overlap_left + c), v, c, a.overlap_left);
      }
      line[c] = v;
    }
    rows::store_row(a.out, row, 0, width, line.data());
  });
}

void RefOps::to_unit_range(const View& x, const View& std, const View& mean, const View& y) {
  channel_affine(x, std, mean, y);
  for_pieces(y, [&](int64_t row, int64_t begin, int64_t count) {
    std::vector<double> v(static_cast<size_t>(count));
    rows::load_row(y, row, begin, count, v.data());
    for (double& e : v) e = e < 0 ? 0 : e > 1 ? 1 : e;  // NaN stays
    rows::store_row(y, row, begin, count, v.data());
  });
}

}  // namespace h3
