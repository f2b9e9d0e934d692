// The codecs as types, for templates over formats: `NAME_codec` per row of quant/formats.h.
#pragma once

#include "codec/int8_convrot.h"
#include "codec/noise.h"
#include "codec/nvfp4.h"
#include "codec/plain.h"
#include "codec/q2_k.h"
#include "codec/q2tp.h"
#include "codec/q3_k.h"
#include "codec/q4_0.h"
#include "codec/q4_1.h"
#include "codec/q4_k.h"
#include "codec/q4tp.h"
#include "codec/q5_0.h"
#include "codec/q5_1.h"
#include "codec/q5_k.h"
#include "codec/q6_k.h"
#include "codec/q8_0.h"
#include "codec/q8_2f.h"
#include "codec/q8_row.h"
#include "codec/w4a8.h"
#include "quant/formats.h"

namespace h3 {

inline constexpr int kRowTable = 32;  // floats

H3_HD static inline void no_table(const PackedRows&, int64_t, float*) {}

constexpr bool fills_table(void (*begin)(const PackedRows&, int64_t, float*)) { return begin != no_table; }

#define H3_CODEC(codec, name, bits, block, begin_row)                                                                \
  struct codec##_codec {                                                                                             \
    static constexpr Format kFormat = Format::codec;                                                                 \
    static constexpr bool kTable = fills_table(begin_row);                                                           \
    static constexpr bool kRotates = kFormat == Format::int8_convrot || kFormat == Format::w4a8;                     \
    H3_HD static void begin(const PackedRows& m, int64_t row, float* table) { begin_row(m, row, table); }            \
    H3_HD static void decode(const PackedRows& m, const float* table, int64_t row, int64_t col, int n, float* out) { \
      codec##_decode(m, table, row, col, n, out);                                                                    \
    }                                                                                                                \
  };
H3_NUMBER_FORMATS(H3_CODEC)
H3_WEIGHT_FORMATS(H3_CODEC)
#undef H3_CODEC

}  // namespace h3
