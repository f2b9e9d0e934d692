// The tile unit alone: no load, no store, six independent accumulators.
#include <immintrin.h>

#include "backends/cpu/isa/amx/tiles.h"
#include "backends/cpu/isa/kernels.h"

namespace h3::isa {
namespace {

void run(bool integer, int64_t steps) {
  configure_tiles();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < steps; ++i) {
    if (integer) {
      _tile_dpbssd(0, 6, 7);
      _tile_dpbssd(1, 6, 7);
      _tile_dpbssd(2, 6, 7);
      _tile_dpbssd(3, 6, 7);
      _tile_dpbssd(4, 6, 7);
      _tile_dpbssd(5, 6, 7);
    } else {
      _tile_dpbf16ps(0, 6, 7);
      _tile_dpbf16ps(1, 6, 7);
      _tile_dpbf16ps(2, 6, 7);
      _tile_dpbf16ps(3, 6, 7);
      _tile_dpbf16ps(4, 6, 7);
      _tile_dpbf16ps(5, 6, 7);
    }
  }
  _tile_release();
}

constexpr double kTiles = 6.0 * 2 * 16 * 16;

}  // namespace

const Peak kPeakAmx = {.run = run, .int8_step = kTiles * 64, .float_step = kTiles * 32};

}  // namespace h3::isa
