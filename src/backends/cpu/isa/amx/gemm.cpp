// Matrix kernels on AMX tiles: 2 x 2 accumulator tiles of 16 x 16, two row tiles of A, two column tiles of B.
//
// A step is 64 bytes of k (32 bf16 or 64 int8): A [2 tiles][16 rows][64 bytes], B [2 tiles][16 groups of k][16 columns]
// [4 bytes], each tile 1 KiB and contiguous, so that a tile load touches 16 consecutive lines.
#include "backends/cpu/isa/gemm_inl.h"

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

template <bool Integer>
inline __attribute__((always_inline)) void multiply_step() {
  if constexpr (Integer) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  } else {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <bool Integer>
inline void micro(const std::byte* a, const std::byte* b, int64_t steps, float* c, int64_t stride, bool add) {
  const int64_t row_bytes = stride * 4;
  float* low = c + 16 * stride;
  if (add) {
    _tile_loadd(0, c, row_bytes);
    _tile_loadd(1, c + 16, row_bytes);
    _tile_loadd(2, low, row_bytes);
    _tile_loadd(3, low + 16, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < steps; ++k) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kTileBytes, 64);
    _tile_loadd(5, a + kTileBytes, 64);
    multiply_step<Integer>();
    a += kStepBytes;
    b += kStepBytes;
  }
  _tile_stored(0, c, row_bytes);
  _tile_stored(1, c + 16, row_bytes);
  _tile_stored(2, low, row_bytes);
  _tile_stored(3, low + 16, row_bytes);
}

template <bool Integer>
void block(const GemmBlock& block) {
  configure_tiles();
  for (int64_t n = 0; n < block.n_panels; ++n) {
    for (int64_t m = 0; m < block.m_panels; ++m) {
      micro<Integer>(block.a + m * block.a_panel, block.b + n * block.b_panel, block.k_steps,
                     block.c + m * kMr * block.c_stride + n * kNr, block.c_stride, block.accumulate);
    }
  }
  _tile_release();
}

// ---- packing
// ---------------------------------------------------------------------------------------------------------

// tile[row][64 bytes of k] of row r and k: A, 16 rows a tile.
template <typename Out, typename Put>
inline void pack_tiles(const PackSource& source, Out* panel, Put put) {
  constexpr int kPer = 64 / sizeof(Out);
  const int64_t steps = (source.k + kPer - 1) / kPer;
  with_type(source.type, [&](auto tag) {
    using T = decltype(tag);
    for (int r = 0; r < kMr; ++r) {
      const auto* row = static_cast<const typename T::S*>(source.rows.data) + r * source.rows.stride;
      const int64_t valid = r < source.count ? source.k : 0;
      for (int64_t s = 0; s < steps; ++s) {
        Out* out = panel + s * (2 * 16 * kPer) + r * kPer;
        for (int i = 0; i < kPer; ++i) {
          const int64_t k = s * kPer + i;
          out[i] = k < valid ? put(T::get(row[k]), r) : Out{};
        }
      }
    }
  });
}

// B: element (k, column) lies in tile column / 16, group k / G, column % 16, k % G.
template <int G, typename Out>
inline int64_t b_index(int64_t k, int64_t column) {
  constexpr int kPer = 16 * G;  // k of one step
  return k / kPer * (2 * 16 * kPer) + column / 16 * (16 * kPer) + k % kPer / G * (16 * G) + column % 16 * G + k % G;
}

template <int G, typename Out, typename Put>
inline void pack_b_elements(const PackSource& source, bool k_major, Out* panel, Put put) {
  constexpr int kPer = 16 * G;
  const int64_t padded = (source.k + kPer - 1) / kPer * kPer;
  with_type(source.type, [&](auto tag) {
    using T = decltype(tag);
    const auto* data = static_cast<const typename T::S*>(source.rows.data);
    const int64_t stride = source.rows.stride;
    if (k_major) {
      for (int64_t k = 0; k < padded; ++k) {
        for (int c = 0; c < kNr; ++c) {
          const bool inside = k < source.k && c < source.count;
          panel[b_index<G, Out>(k, c)] = inside ? put(T::get(data[k * stride + c])) : Out{};
        }
      }
    } else {
      for (int c = 0; c < kNr; ++c) {
        for (int64_t k = 0; k < padded; ++k) {
          const bool inside = k < source.k && c < source.count;
          panel[b_index<G, Out>(k, c)] = inside ? put(T::get(data[c * stride + k])) : Out{};
        }
      }
    }
  });
}

void pack_a_bf16(const PackSource& source, const float*, std::byte* panel) {
  pack_tiles(source, reinterpret_cast<uint16_t*>(panel), [](float v, int) { return f32_to_bf16(v); });
}
void pack_b_bf16(const PackSource& source, std::byte* panel) {
  pack_b_elements<2>(source, false, reinterpret_cast<uint16_t*>(panel), f32_to_bf16);
}
void pack_b_rows_bf16(const PackSource& source, std::byte* panel) {
  pack_b_elements<2>(source, true, reinterpret_cast<uint16_t*>(panel), f32_to_bf16);
}

inline int8_t to_int8(float v) { return static_cast<int8_t>(v); }

void pack_a_int8(const PackSource& source, const float* inverse_scale, std::byte* panel) {
  pack_tiles(source, reinterpret_cast<int8_t*>(panel),
             [=](float v, int r) { return int8_row_quantise(v, inverse_scale[r]); });
}
void pack_b_int8(const PackSource& source, std::byte* panel) {
  pack_b_elements<4>(source, false, reinterpret_cast<int8_t*>(panel), to_int8);
}
void pack_b_rows_int8(const PackSource& source, std::byte* panel) {
  pack_b_elements<4>(source, true, reinterpret_cast<int8_t*>(panel), to_int8);
}

}  // namespace

const Gemm kBf16Amx = {.name = "bf16_amx",
                       .mr = kMr,
                       .nr = kNr,
                       .kr = 32,
                       .a_step = kStepBytes,
                       .b_step = kStepBytes,
                       .integer = false,
                       .a_offset = 0,
                       .block = block<false>,
                       .pack_a = pack_a_bf16,
                       .pack_b = pack_b_bf16,
                       .pack_b_rows = pack_b_rows_bf16};
const Gemm kInt8Amx = {.name = "int8_amx",
                       .mr = kMr,
                       .nr = kNr,
                       .kr = 64,
                       .a_step = kStepBytes,
                       .b_step = kStepBytes,
                       .integer = true,
                       .a_offset = 0,
                       .block = block<true>,
                       .pack_a = pack_a_int8,
                       .pack_b = pack_b_int8,
                       .pack_b_rows = pack_b_rows_int8};

}  // namespace h3::isa
