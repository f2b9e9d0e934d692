// What the instruction-set objects export: one table of pure functions per level. Plain structs and <cstdint> only, so
// that no shared inline code is compiled with instruction-set flags.
//
// Strides are in elements. Row loops run over [begin, end), so that one call serves one slice of a parallel loop.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/packed.h"

namespace h3::isa {

enum class Elem : uint8_t { f32, bf16, f16 };

constexpr int64_t elem_bytes(Elem type) { return type == Elem::f32 ? 4 : 2; }

// A row-major matrix of activations.
struct Rows {
  void* data = nullptr;
  int64_t stride = 0;
};
struct ConstRows {
  const void* data = nullptr;
  int64_t stride = 0;
};

struct Span {
  int64_t begin = 0, end = 0;
};

// ---- norms, one row at a time; see ops.h for the roundings
// -----------------------------------------------------------
struct NormArgs {
  Elem x_type = Elem::f32, type = Elem::f32;  // of x; of y, to which everything rounds
  int64_t cols = 0;
  ConstRows x;
  const float* w = nullptr;  // [cols] or null
  const float* b = nullptr;  // layer_norm only
  float eps = 0;
  bool twice = false;
  Rows y;
};

struct GateNormArgs {
  NormArgs norm;  // x is read; y is the modulated output; x_type is type, or f32
  // Modulation; shift null = plain norm.
  ConstRows shift, scale;
  const int32_t* ids = nullptr;
  // Residual update of x before the norm; gate null = none.
  Rows residual;  // the same memory as norm.x
  ConstRows branch, gate;
  const int32_t* gate_ids = nullptr;
  bool has_norm = true;  // false: gated_add alone
};

struct HeadArgs {
  Elem type = Elem::f32;
  int64_t heads = 0, dim = 0;
  void* x = nullptr;
  int64_t row_stride = 0, head_stride = 0;
  bool norm = false, twice = false;
  const float* w = nullptr;
  float eps = 0;
  int64_t pairs = 0;  // 0 = no rotation
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t cos_stride = 0, sin_stride = 0;
  bool rope_once = false;
};

// ---- element by element
// ----------------------------------------------------------------------------------------------
enum class Unary : uint8_t { silu, gelu_tanh, gelu_erf };
enum class Binary : uint8_t { add, subtract, multiply, swiglu };  // swiglu: a is the gate, b the value

struct Pointwise {
  void (*convert)(Elem from, const void* src, Elem to, void* dst, int64_t n);
  void (*unary)(Unary op, Elem type, const void* x, void* y, int64_t n);
  void (*binary)(Binary op, Elem type, const void* a, const void* b, void* out, int64_t n);
  // dst = round_dst(dst + src)
  void (*accumulate)(Elem from, const void* src, Elem to, void* dst, int64_t n);
  // x = round_x(x + round_x(scale * y))
  void (*scaled_add)(Elem x_type, void* x, Elem y_type, const void* y, const float* scale, int64_t n);
  // out = round(c0 a) + round(c1 b), f32
  void (*lincomb)(float c0, const float* a, float c1, const float* b, float* out, int64_t n);
  // y = x * s + m
  void (*affine)(const float* x, float s, float m, float* y, int64_t n);
  // y = silu((x - mean) * s + b), for group norm: s is weight / deviation
  void (*affine_silu)(Elem type, const void* x, float mean, float s, float b, void* y, int64_t n);
  // sum and sum of squares of n values around `shift`
  void (*moments)(Elem type, const void* x, float shift, int64_t n, float* sum, float* squares);
  void (*snake)(Elem type, const void* x, float a, float inv, void* y, int64_t n);
  // One channel of the anti-aliased snake; up and down have 12 taps. May run in place.
  void (*aa_snake)(Elem type, const void* x, float a, float inv, const float* up, const float* down, void* y,
                   int64_t n);
  // sum |round(a - b)| and sum |b|
  void (*l1_pair)(Elem type, const void* a, const void* b, int64_t n, float* difference, float* norm);
  bool (*finite)(Elem type, const void* x, int64_t n);

  void (*rms_norm)(const NormArgs& args, Span rows);
  void (*layer_norm)(const NormArgs& args, Span rows);
  void (*gate_norm)(const GateNormArgs& args, Span rows);
  void (*head_norm_rope)(const HeadArgs& args, Span rows);
};

// ---- softmax of a tile of scores
// -------------------------------------------------------------------------------------
struct SoftmaxArgs {
  float* scores =
      nullptr;  // [rows, stride], overwritten by exp(scale * s - m) rounded to `type`, zero past the valid keys
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;   // columns to fill, the padding included
  int64_t valid = 0;  // keys of this tile that exist
  int64_t first_query = 0, first_key = 0;
  bool causal = false;
  Elem type = Elem::f32;
  float scale = 1;
  float* maximum = nullptr;  // [rows] running maximum of scale * s
  float* total = nullptr;    // [rows] running sum
  float* output = nullptr;   // [rows, output_stride] accumulators, rescaled when the maximum moves
  int64_t output_stride = 0, output_cols = 0;
};

// The same for one panel of rows whose scores and accumulators are C tiles, contiguous but for the steps between panels
// of columns; the weights become a packed panel of A. `maximum` is what the weights of a row are relative to, a value
// near the highest scale * s * log2(e); -Inf before the first block.
struct TileSoftmaxArgs {
  const float* scores = nullptr;
  int64_t scores_panel = 0;  // elements from one panel of keys to the next
  std::byte* weights = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;   // keys to fill, whole steps of k
  int64_t valid = 0;  // keys that exist
  int64_t first_query = 0, first_key = 0;
  bool causal = false;
  float scale = 1;  // positive
  float* maximum = nullptr;
  float* total = nullptr;
  float* output = nullptr;
  int64_t output_panel = 0, output_panels = 0;
};

// ---- matrix multiplication
// ------------------------------------------------------------------------------------------- Operands lie in slices of
// k: A is [slice][m / mr][k step][a_step bytes], B is [slice][n / nr][k step][b_step bytes], zero padded to whole
// panels and steps. One call multiplies one slice of a block: a slice of one panel of B stays in the first-level cache
// while the panels of A stream past it from the second level.
//
// C is [n / nr][m / mr] panels of tiles: element (r, j) of a panel lies in tile (r / tile_rows, j / tile_cols),
// row-major within the tile. Both layouts are strides, so attention can ask for plain rows.
struct ResultLayout {
  int64_t row = 0;                        // elements from one row of a tile to the next
  int64_t tile_down = 0, tile_right = 0;  // from one tile to the next
  int64_t m_panel = 0, n_panel = 0;       // from one panel to the next
};

struct GemmBlock {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  int64_t a_panel = 0, b_panel = 0;  // bytes from one panel of the slice to the next
  int64_t m_panels = 0, n_panels = 0, k_steps = 0;
  float* c = nullptr;  // i32 for integer kernels
  ResultLayout layout;
  bool accumulate = false;
  // The slice that is multiplied next, of this block or of the one after it: its A and its first panel of B are fetched
  // into the second-level cache meanwhile; null = nowhere.
  const std::byte* next_a = nullptr;
  const std::byte* next_b = nullptr;
  int64_t next_a_bytes = 0;
};

struct PackSource {
  Elem type = Elem::f32;
  ConstRows rows;
  int64_t count = 0, k = 0;  // rows taken (the rest of the panel is zero) and their length
};

// Rows of int8 codes.
struct CodeSource {
  const int8_t* rows = nullptr;
  int64_t stride = 0;
  int64_t count = 0, k = 0;  // as PackSource
};

// Weights of a packed format straight into the tiles of B: the integers of codec/int8_row.h.
struct TileExpander {
  const char* format;
  int64_t table_bytes;
  // Tables of up to tile_cols rows of m from `row` on.
  void (*begin)(const PackedRows& m, int64_t row, int64_t count, const float* inverse, std::byte* tables);
  // Their columns [k, k + length) into one tile a step, b_step bytes apart; k is a multiple of the step.
  void (*tiles)(const PackedRows& m, int64_t row, int64_t count, const std::byte* tables, int64_t k, int64_t length,
                std::byte* out);
};

struct Gemm {
  const char* name;          // "bf16_amx"
  int mr, nr, kr;            // rows and columns of a panel, k of a step
  int tile_rows, tile_cols;  // of C
  int slice_steps;           // k steps of a whole slice
  int a_step, b_step;        // bytes of one k step of one panel
  bool integer;              // C is i32, A needs a scale per row
  int a_offset;              // added to every A value by pack_a (128 for u8 x s8 units)
  void (*block)(const GemmBlock& block);
  // One panel of one slice of A from up to mr rows. Integer kernels quantise with inverse_scale[row].
  void (*pack_a)(const PackSource& source, const float* inverse_scale, std::byte* panel);
  // One panel of one slice of B from up to nr rows of k values each (a weight matrix [out, in]; keys of attention).
  // Integer kernels take values that are already whole numbers in [-127, 127].
  void (*pack_b)(const PackSource& source, std::byte* panel);
  // The same from k-major rows of up to nr columns (im2col, values of attention); count = columns.
  void (*pack_b_rows)(const PackSource& source, std::byte* panel);
  // Integer kernels: pack_b from codes.
  void (*pack_b_codes)(const CodeSource& source, std::byte* panel) = nullptr;
  // Attention: the softmax of one panel of scores, as `block` leaves them, into a panel of A. Null: scores are kept as
  // plain rows, and pack_a follows Level::softmax.
  void (*softmax)(const TileSoftmaxArgs& args) = nullptr;
  // Null, or null for a format: rows of codes, then pack_b_codes.
  const TileExpander* (*tile_expander)(const char* format) = nullptr;
  // Of the result, per task: C of a block stays in the second-level cache while the slices of both operands pass.
  int64_t block_rows = 512, block_cols = 256;
};

struct StoreArgs {
  const float* c = nullptr;  // i32 when row_scale is given
  ResultLayout layout;
  int mr = 0, nr = 0, tile_rows = 0, tile_cols = 0;
  int64_t rows = 0, cols = 0;
  const float* row_scale = nullptr;     // [rows]
  const float* col_scale = nullptr;     // [cols]
  const int32_t* col_offset = nullptr;  // [cols] subtracted from the integer sums
  const float* col_bias = nullptr;      // [cols] or null
  const float* row_bias = nullptr;      // [rows] or null
  const float* divide = nullptr;        // [rows]: multiply row by 1 / divide (attention)
  const float* add_scale = nullptr;     // y = round(y + *add_scale * value) instead of round(value)
  bool stream = false;                  // past the caches: a result larger than they are
  Elem type = Elem::f32;
  Rows y;
};

// ---- weights that stay packed
// -----------------------------------------------------------------------------------------
struct Expander {
  const char* format;  // as quant/formats.h names it
  // Row `row` of m, pre_scale aside: as f32, and as int8 with this inverse (codec/int8_row.h).
  void (*floats)(const PackedRows& m, int64_t row, float* out);
  void (*codes)(const PackedRows& m, int64_t row, float inverse, int8_t* out) = nullptr;  // null: from the floats
  bool rotates = false;  // takes rotated rows and turns them back
};

// Products of registers alone, the most that the unit of a level does.
struct Peak {
  void (*run)(bool integer, int64_t steps);
  double int8_step, float_step;  // operations of a step; float: bf16, f32 where that is widened
};

struct Level {
  const char* name;  // "avx512"
  const Pointwise* pointwise;
  void (*softmax)(const SoftmaxArgs& args);
  void (*store)(const StoreArgs& args);
  // max |x| of a row of n values; NaN and Inf are kept
  float (*absmax)(Elem type, const void* x, int64_t n);
  const Expander* (*expander)(const char* format);  // null: none of this format
  const Gemm* f32;
  const Gemm* bf16;
  const Gemm* int8;
  const Peak* peak = nullptr;
};

extern const Level kScalar;
extern const Level kAvx2;
extern const Level kAvx512;
// The AMX level replaces matrix kernels only; everything else is AVX-512.
extern const Gemm kBf16Amx;
extern const Gemm kInt8Amx;
extern const Peak kPeakAmx, kPeakAvx512, kPeakAvx2;

}  // namespace h3::isa
