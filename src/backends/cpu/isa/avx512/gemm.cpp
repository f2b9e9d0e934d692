// bf16 on VDPBF16PS and int8 on VPDPBUSD. Both keep G consecutive k of one row or column in one 32-bit lane.
#include "backends/cpu/isa/avx512/gemm.h"

#include "backends/cpu/isa/gemm_inl.h"

namespace h3::isa {
namespace {

constexpr int kMr = 12, kVectors = 2, kNr = kVectors * kLanes;  // 24 accumulators, 2 columns, 1 broadcast

struct DotBf16 {
  using Acc = __m512;
  static Acc zero() { return _mm512_setzero_ps(); }
  static Acc dot(Acc acc, __m512i a, __m512i b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
  static void store(float* c, Acc v, bool add) { _mm512_storeu_ps(c, add ? _mm512_add_ps(_mm512_loadu_ps(c), v) : v); }
};

struct DotInt8 {
  using Acc = __m512i;
  static Acc zero() { return _mm512_setzero_si512(); }
  static Acc dot(Acc acc, __m512i a, __m512i b) { return _mm512_dpbusd_epi32(acc, a, b); }
  static void store(float* c, Acc v, bool add) {
    _mm512_storeu_si512(c, add ? _mm512_add_epi32(_mm512_loadu_si512(c), v) : v);
  }
};

template <typename Dot>
inline void micro(const int32_t* a, const int32_t* b, int64_t steps, float* c, int64_t stride, bool add) {
  typename Dot::Acc acc[kMr][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kMr; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) acc[i][j] = Dot::zero();
  }
  for (int64_t k = 0; k < steps; ++k) {
    __m512i column[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) column[j] = _mm512_loadu_si512(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kMr; ++i) {
      const __m512i value = _mm512_set1_epi32(a[i]);
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) acc[i][j] = Dot::dot(acc[i][j], value, column[j]);
    }
    a += kMr;
    b += kNr;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kMr; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) Dot::store(c + i * stride + j * kLanes, acc[i][j], add);
  }
}

template <typename Dot>
void block(const GemmBlock& block) {
  for (int64_t n = 0; n < block.n_panels; ++n) {
    for (int64_t m = 0; m < block.m_panels; ++m) {
      micro<Dot>(reinterpret_cast<const int32_t*>(block.a + m * block.a_panel),
                 reinterpret_cast<const int32_t*>(block.b + n * block.b_panel), block.k_steps,
                 block.c + m * block.layout.m_panel + n * block.layout.n_panel, block.layout.row, block.accumulate);
    }
  }
}

void pack_a_bf16(const PackSource& source, const float*, std::byte* panel) {
  pack_rows<kMr, 2>(source, 2, reinterpret_cast<uint16_t*>(panel), [](float v, int) { return f32_to_bf16(v); });
}
void pack_b_bf16(const PackSource& source, std::byte* panel) {
  pack_rows<kNr, 2>(source, 2, reinterpret_cast<uint16_t*>(panel), [](float v, int) { return f32_to_bf16(v); });
}
void pack_b_rows_bf16(const PackSource& source, std::byte* panel) {
  pack_columns<kNr, 2>(source, 2, reinterpret_cast<uint16_t*>(panel), f32_to_bf16);
}

// A enters as q + 128, because the unit multiplies unsigned by signed; the epilogue subtracts 128 * sum(w).
void pack_a_int8(const PackSource& source, const float* inverse_scale, std::byte* panel) {
  pack_rows<kMr, 4>(source, 4, reinterpret_cast<uint8_t*>(panel),
                    [=](float v, int r) { return static_cast<uint8_t>(int8_row_quantise(v, inverse_scale[r]) + 128); });
}
void pack_b_int8(const PackSource& source, std::byte* panel) {
  pack_rows<kNr, 4>(source, 4, reinterpret_cast<int8_t*>(panel), [](float v, int) { return static_cast<int8_t>(v); });
}
void pack_b_rows_int8(const PackSource& source, std::byte* panel) {
  pack_columns<kNr, 4>(source, 4, reinterpret_cast<int8_t*>(panel), [](float v) { return static_cast<int8_t>(v); });
}

}  // namespace

const Gemm kBf16Avx512 = {.name = "bf16_avx512",
                          .mr = kMr,
                          .nr = kNr,
                          .kr = 2,
                          .tile_rows = kMr,
                          .tile_cols = kNr,
                          .slice_steps = 256,
                          .a_step = kMr * 4,
                          .b_step = kNr * 4,
                          .integer = false,
                          .a_offset = 0,
                          .block = block<DotBf16>,
                          .pack_a = pack_a_bf16,
                          .pack_b = pack_b_bf16,
                          .pack_b_rows = pack_b_rows_bf16};
const Gemm kInt8Avx512 = {.name = "int8_avx512",
                          .mr = kMr,
                          .nr = kNr,
                          .kr = 4,
                          .tile_rows = kMr,
                          .tile_cols = kNr,
                          .slice_steps = 256,
                          .a_step = kMr * 4,
                          .b_step = kNr * 4,
                          .integer = true,
                          .a_offset = 128,
                          .block = block<DotInt8>,
                          .pack_a = pack_a_int8,
                          .pack_b = pack_b_int8,
                          .pack_b_rows = pack_b_rows_int8,
                          .pack_b_codes = pack_codes<kNr, 4>};

}  // namespace h3::isa
