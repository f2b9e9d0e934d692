// Eight tiles of 16 rows of 64 bytes: the configuration that every tile kernel uses. Panels are two tiles wide.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace h3::isa {
namespace {

constexpr int kMr = 32, kNr = 32, kTileBytes = 1024, kStepBytes = 2 * kTileBytes;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

inline void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  // GCC 12 declares only the first 8 bytes of the operand as read; without the barrier the stores above may vanish.
  asm volatile("" : : "m"(config) : "memory");
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace h3::isa
