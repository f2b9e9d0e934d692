// The semantic operations of the model and their rounding contracts. The model code is written once, against this
// interface; back ends (`ref`, `cpu`, `cuda`) implement it. See docs/architecture.md.
//
// Four rules: a call may be deferred (results are visible to the host only after sync()); no op returns data; no op
// allocates (plans and scratch are made by make_linear / make_conv / reserve; on an accelerator the first call of a
// larger shape may still grow the scratch, a repeated call never does); no op reads host memory
// that may change before sync() (scalars that vary per step live in views).
//
// T is the element type of the activation views of a call (f32, bf16 or f16). round_T is round-to-nearest-even to T.
// All arithmetic is f32 (double in `ref`) between the roundings named here. A fused op rounds exactly as its
// composition. Index views are i32. "In place" means out may be the same view as the input; no other aliasing is
// allowed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quant/matrix.h"
#include "tensor/tensor.h"

namespace h3 {

struct Context;

// What a Linear computes in. Activations enter as T and leave as T; weights are converted once, in make_linear.
enum class Compute : uint8_t {
  f32,    // f32 operands (T converted up), f32 accumulation, no TF32
  bf16,   // operands rounded to bf16, f32 accumulation
  f16,    // operands rounded to f16 (saturating), f32 accumulation
  int8,   // activations and weights quantised per row as codec/int8_row.h says; i32 accumulation. Or see
          // Linear::rotation
  packed  // weights stay in their stored format; kernels may quantise activations or round weights: see Linear
};
const char* name_of(Compute compute);                           // "f32", ..., "packed"
std::optional<Compute> compute_named(const std::string& name);  // the inverse

// Weights that come and go together: one layer of a stack that does not fit on the device as a whole. Between its uses
// a group lies in host memory: the mapped file, or a packed copy where a kernel reads other bytes than the file's. Its
// linears may be used from enter() to leave(); at most two groups are entered at a time.
class WeightGroup {
 public:
  virtual ~WeightGroup() = default;
  // Begins to bring the group, in the place of the one that was left first; a hint.
  virtual void prefetch() = 0;
  virtual void enter() = 0;  // later calls of the Ops see the weights
  virtual void leave() = 0;  // earlier calls still do
  int64_t bytes = 0;         // on the device while it is there
};

struct LinearSpec {
  std::string label;        // "dit.blocks.3.mlp.fc1", for messages, --explain and shadow
  MatrixSource weight;      // [out, in]
  std::vector<float> bias;  // [out] or empty; added in f32 before the one rounding to T
  Compute compute = Compute::f32;
  int64_t max_rows = 0;          // most rows of one call; 0 = unknown. Sizes the prepare-time scratch
  WeightGroup* group = nullptr;  // the weight travels with it (a group of the same Ops, outlives the Linear)
};

// A weight bound to a kernel: owns the packed weight (which replaces the mapped pages) and the plan.
class Linear {
 public:
  virtual ~Linear() = default;
  std::string label;
  int64_t in = 0, out = 0;
  Compute compute = Compute::f32;
  std::string kernel;                 // e.g. "bf16_amx"
  std::vector<std::string> refusals;  // "int8_amx: cols not a multiple of 64", in the order tried
  int64_t bytes = 0;                  // device bytes held
  // Compute::packed: what the kernel gives up. Activations int8 per row (codec/int8_row.h; int8 always does); weights
  // rounded once to T, f16 saturating, before they are multiplied.
  bool int8_activations = false, rounds_weights = false;
  // Compute::packed with e4m3 weights: activations e4m3 per row (codec/float8_row.h), the codes multiplied exactly,
  // sums as tensor cores of eight-bit floats keep them (contract::add_float8_sums), then both scales.
  bool float8_activations = false;
  // The same with nvfp4 weights: activations as Ops::quantise_nvfp4 makes them.
  bool nvfp4_activations = false;
  // Compute::int8: above 0, the weight's columns are rotated in groups of so many and its int8 codes and scales are
  // those of the file; activations are rotated and quantised as codec/int8_convrot.h says.
  int64_t rotation = 0;
};

enum class ConvKind : uint8_t { conv1d, transposed1d, conv3d };
enum class Pad : uint8_t { zero, reflect };

struct ConvSpec {
  std::string label;
  ConvKind kind = ConvKind::conv1d;
  // Weights as torch stores them: conv1d [O, I, k]; transposed1d [I, O, k]; conv3d [O, I, kt, kh, kw]. f32.
  std::vector<float> weight;
  std::vector<float> bias;  // [O] or empty
  int64_t in = 0, out = 0;
  int kernel[3] = {1, 1, 1};  // 1-D convolutions use kernel[2], stride[2], dilation[2], pad_*[2]
  int stride[3] = {1, 1, 1};
  int dilation[3] = {1, 1, 1};
  int pad_before[3] = {0, 0, 0},
      pad_after[3] = {0, 0, 0};  // transposed1d: crop pad_before / pad_after of the full output
  Pad spatial_pad = Pad::zero;   // conv3d height and width; the time axis always pads zeros
  Compute compute = Compute::f32;
};

class Conv {
 public:
  virtual ~Conv() = default;
  std::string label, kernel;
  ConvSpec spec;  // weight and bias moved out once packed
  int64_t bytes = 0;
  // Extents of the output for an input of extents (t, h, w); 1-D kinds use w only.
  void output_extent(const int64_t input[3], int64_t output[3]) const;
};

// A per-row choice from a small table: AdaLN without expansion. Row s uses table row ids[s].
struct Modulation {
  View shift, scale;  // [R, hidden] T, rows may be strided
  View ids;           // [S] i32
};
struct Gate {
  View gate;  // [R, hidden] T
  View ids;   // [S] i32
};

// How a norm rounds: `once` = f32 throughout, one round_T. `twice` = round_T(x * rsqrt) before the weight multiply
// (Transformers' Qwen3 norms).
enum class NormRounding : uint8_t { once, twice };

// Rotation tables and where they round. Pairs (j, j + pairs) of the first 2*pairs features of each head:
//   y[j] = x[j] c[j] - x[j+pairs] s[j];   y[j+pairs] = x[j+pairs] c[j] + x[j] s[j];   the rest passes.
enum class RopeRounding : uint8_t {
  per_op,  // c and s rounded to T; each product and the sum rounded to T (DiT, language model)
  once     // all f32, one round_T (vision tower, video decoder)
};
struct Rope {
  View cos, sin;  // [S, pairs] f32
  RopeRounding rounding = RopeRounding::per_op;
};

// How an attention call computes its two products.
enum class AttentionMath : uint8_t {
  exact,      // as Ops::attention says
  eight_bit,  // both in eight bits, an approximation: Ops::attention, the second contract
};

struct AttentionArgs {
  View q;           // [S, Hq, D] or [B, S, Hq, D], T; any strides with unit stride on D
  View k, v;        // [K, Hkv, D] or [B, K, Hkv, D], T; Hq a multiple of Hkv: query head j reads kv head j / (Hq/Hkv)
  View out;         // like q
  float scale = 1;  // softmax(scale * q k^T) v
  bool causal = false;  // query i sees keys 0 .. i (S == K); a NaN or Inf of v may also reach earlier queries
  // eight_bit: rank 3, not causal, Hq == Hkv, at least one key; addresses and strides of q, k and v are multiples of 16
  // bytes.
  AttentionMath math = AttentionMath::exact;
};

inline constexpr int64_t kEightBitKeys = 128;  // keys that share a scale in AttentionMath::eight_bit

// Block-sparse attention that drops nothing (spec acceleration 5). Keys lie in blocks of 64 rows, queries too. A key
// block is either exact for a query block, key by key, or stands for itself through one summary key: the mean of its
// keys, with the sum of its values and its length as weight.
inline constexpr int64_t kSparseBlock = 64;
struct SparseAttentionArgs {
  View q, k, v, out;  // [S, H, D] T each, unit stride on D
  float scale = 1;    // of the scores
  // A key block is exact when its mean score exceeds c . mu + tau * deviation (c: mean query of the block, mu and the
  // deviation: of the summary keys), next to the diagonal, and below exact_keys.
  float tau = 1;
  int64_t exact_keys = 0;  // keys [0, exact_keys) are exact for every query, rounded outward to whole blocks
  // Replaces the whole rule by a choice per (query block, key block), for every head: [NT, NT] u8, 1 = exact,
  // NT = ceil(S / 64). Empty = the rule.
  View mask;
  View exact_blocks;  // [1] i32: how many (head, query block, key block) were exact is added to it; empty = not counted
};

// One raw tile of a tiled video decode and its place (spec vae 3 step 8 and 4.2). A raw tile is what proj_out leaves:
// [>= t*h*w, channels*pt*p*p] f32, row (t, y, x), features (channel, sub-frame, sub-row, sub-column); its pixel
// (frame, r, c) is row (frame / pt, r / p, c / p), feature (., frame % pt, r % p, c % p). All tiles of a canvas are
// equally large.
struct TileBlend {
  View tile;                                 // the tile that owns the pixels of `out`
  View up, left;                             // its raw upper and left neighbours; empty at the canvas edge
  int64_t t = 0, h = 0, w = 0;               // extents of a tile in latent units
  int pt = 4, p = 16;                        // frames per latent frame, pixels per latent position
  int64_t overlap_up = 0, overlap_left = 0;  // pixels shared with `up`, `left`
  int64_t first_frame = 0;
  View out;  // [channels, frames, rows, columns] f32, any strides: tile pixels (first_frame + f, r, c)
};

// Calls that were recorded (Ops::record), to be made again with less work for the host.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;  // the same calls on the same views, which hold other values by now
};

class PlanMaker;  // plan_maker.h

class Ops {
 public:
  virtual ~Ops() = default;
  virtual const char* name() const = 0;  // "ref", "cpu", "cuda:0"
  virtual Device& device() = 0;
  virtual Context& context() = 0;
  virtual void sync() = 0;  // throws Error(device) for failures of deferred calls

  // Bounds how far the host runs ahead: returns once the work queued before the last but one call of it is done, so
  // that a stop takes effect within two layers. Called once a layer.
  virtual void pace() {}

  // Runs `calls`, whose operations are kept and not carried out. They must have run before, on views of the same
  // shapes; what they use outlives the recording. nullptr, without running `calls`: this back end does not record.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& calls) { return (void)calls, nullptr; }

  // Of a back end that searches for plans of its calls; nullptr: nothing is searched for.
  virtual PlanMaker* plan_maker() { return nullptr; }

  // ---- prepare time -------------------------------------------------------------------------------------------------
  virtual std::unique_ptr<Linear> make_linear(LinearSpec spec) = 0;
  // nullptr: this back end has none, and what does not stay is made anew for every use (model/layer_stack.h).
  virtual std::unique_ptr<WeightGroup> make_group() { return nullptr; }
  // Device bytes of make_linear(weight, compute) without its bias, and of what calls in this type may take besides
  // their operands. For plans.
  virtual int64_t linear_bytes(const MatrixSource& weight, Compute compute) const;
  virtual int64_t scratch_bytes(Compute compute) const { return (void)compute, 0; }
  // Weights in e4m3 meet activations in e4m3 (Linear::float8_activations).
  virtual bool multiplies_float8() const { return false; }
  // Why weights in nvfp4 do not meet activations in nvfp4 (Linear::nvfp4_activations), "it ..."; empty = they do.
  virtual std::string refuses_nvfp4() const { return "it needs an NVIDIA card of compute capability 10.0 or later"; }
  // false: only the shapes of weights are looked at (ops/counting.h).
  virtual bool reads_weights() const { return true; }
  // And beside that, once for the weight that needs the most.
  virtual int64_t expansion_bytes(const MatrixSource& weight, Compute compute) const {
    return (void)weight, (void)compute, 0;
  }
  virtual std::unique_ptr<Conv> make_conv(ConvSpec spec) = 0;
  // Makes scratch for calls up to these sizes, so that the step loop allocates nothing. Idempotent, grows only.
  virtual void reserve(int64_t max_rows, int64_t max_heads_by_dim) { (void)max_rows, (void)max_heads_by_dim; }

  // ---- move -----------------------------------------------------------------------------------------------------
  // dst[...] = round_dst(src[...]); same dims, any strides, any float types (or equal integer types).
  virtual void copy(const View& src, const View& dst) = 0;
  virtual void fill(const View& dst, float value) = 0;
  virtual void gather_rows(const View& src, const View& ids, const View& dst) = 0;  // dst[i] = round(src[ids[i]])
  // dst[ids[i]] = round(src[i]), respectively round(dst[ids[i]] + src[i]); ids distinct.
  virtual void scatter_rows(const View& src, const View& ids, const View& dst) = 0;
  virtual void scatter_add_rows(const View& src, const View& ids, const View& dst) = 0;

  // ---- dense ------------------------------------------------------------------------------------------------------
  // y = round_T(x W^T + bias); x [rows, in], y [rows, out]; rows may be strided, features contiguous. x and y may
  // differ in type.
  virtual void linear(const Linear& weight, const View& x, const View& y) = 0;
  // y = round_T(y + scale * (x W^T)), the product in f32: the second half of a low-rank branch. No bias; x and y of one
  // type, f32 or bf16; compute f32 or bf16. Shapes as in linear.
  virtual void linear_add(const Linear& weight, float scale, const View& x, const View& y) = 0;
  // y = round_T(scale * (x W^T)); otherwise as linear_add.
  virtual void linear_scaled(const Linear& weight, float scale, const View& x, const View& y);
  // y = round_T(y + (x W^T + bias)), any compute, shapes and types as in linear: the base of low-rank branches that lie
  // in y already. A back end may round the part in brackets to T first.
  virtual void linear_onto(const Linear& weight, const View& x, const View& y) = 0;
  // A hint before norm_modulate, gate_norm or swiglu: linear(reader, ..) reads the rows that the call writes, or
  // consecutive parts of them, before they change; `alone`: nothing else does, and until then they may hold anything.
  // So the reader's form of the rows (float8_activations) can be made in the same pass. What linear gives is the same.
  // One call of a norm and one of swiglu wait for their readers at a time.
  virtual void feeds(const Linear& reader, bool alone) { (void)reader, (void)alone; }

  // A linear and what follows it, in one pass where a back end has a kernel for it; the default bodies are the
  // compositions. Views that only hold values in between may hold anything afterwards.
  // out = swiglu of the halves [gate; up] of x W^T + bias; wide [rows, 2F] is in between, out may be its first half.
  virtual void linear_swiglu(const Linear& weight, const View& x, const View& wide, const View& out);
  // scaled_add(x, linear(h), scale), x in place; y [rows, out] is in between.
  virtual void linear_scaled_add(const Linear& weight, const View& h, const View& y, const View& scale, const View& x);
  // y = linear(x), then head_norm_rope on the first `heads` heads of D features.
  struct HeadNorm;
  virtual void linear_head_norm_rope(const Linear& weight, const View& x, int64_t heads, int64_t d,
                                     const HeadNorm& norm, const Rope& rope, const View& y);

  // The rows of x [S, K], K a multiple of 16, as codec/nvfp4_row.h says: factors [S] f32, codes [S, K / 8] i32 of eight
  // each, scales [nvfp4_scale_bytes(S, K) / 4] i32 of four each, swizzled as codec/nvfp4.h says, zeros in the padding.
  // factors, codes and scales are contiguous. The default body runs on the host's pool.
  virtual void quantise_nvfp4(const View& x, const View& factors, const View& codes, const View& scales);

  // ---- norm ---------------------------------------------------------------------------------------------------------
  // y = x * rsqrt(mean(x^2) + eps) * w over the last axis; w [n] f32 or empty (no weight). In place allowed. In
  // rms_norm and layer_norm x and y may differ in type; the roundings are to the type of y.
  virtual void rms_norm(const View& x, const View& w, float eps, NormRounding rounding, const View& y) = 0;
  // y = (x - mean) * rsqrt(var + eps) * w + b, biased variance, f32, one round_T. w, b [n] f32. In place allowed.
  virtual void layer_norm(const View& x, const View& w, const View& b, float eps, const View& y) = 0;
  // h = round(x*rsqrt(..)*w); s = round(1 + scale[r]); h = round(h*s); h = round(h + shift[r]). x, h [S, hidden].
  virtual void norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, const View& h) = 0;
  // x = round(x + round(gate[r]*y)); in place on x.
  virtual void gated_add(const View& x, const View& y, const Gate& gate) = 0;
  // gated_add then norm_modulate, in one pass.
  virtual void gate_norm(const View& x, const View& y, const Gate& gate, const View& w, float eps,
                         const Modulation& mod, const View& h);
  // Per head: rms norm (w [D] f32; has_norm false skips it; w empty = no weight), then the rotation (rope.cos empty
  // skips it). x [S, heads, D] in place, any row and head strides.
  struct HeadNorm {
    bool enabled = false;
    View w;
    float eps = 0;
    NormRounding rounding = NormRounding::once;
  };
  virtual void head_norm_rope(const View& x, const HeadNorm& norm, const Rope& rope) = 0;

  // ---- pointwise --------------------------------------------------------------------------------------------------
  // out = round(value * round(silu(gate))); gate, value, out [S, F], rows may be strided; out may be gate or value.
  // The product saturates to +-65504 in f16: the video decoder's hidden layer may exceed that (spec vae 10).
  virtual void swiglu(const View& gate, const View& value, const View& out) = 0;
  virtual void silu(const View& x, const View& y) = 0;  // y = round(x / (1 + exp(-x))), in place allowed
  enum class Gelu : uint8_t { tanh, erf };
  virtual void gelu(const View& x, Gelu kind, const View& y) = 0;            // f32 inside, one round; in place allowed
  virtual void add(const View& x, const View& y, const View& out) = 0;       // out = round(x + y), in place allowed
  virtual void subtract(const View& x, const View& y, const View& out) = 0;  // out = round(x - y), in place allowed
  virtual void multiply(const View& x, const View& y, const View& out) = 0;  // out = round(x * y), in place allowed
  // x = round(x + round(scale * y)); x [S, n] T (or f32 with y bf16 or f16: then all of it is f32), scale [n] f32. In
  // place on x.
  virtual void scaled_add(const View& x, const View& y, const View& scale) = 0;
  // out = round(round(c[0]*a) + round(c[1]*b)); c [2] f32 on the device; f32 views; in place on a or b.
  virtual void lincomb(const View& c, const View& a, const View& b, const View& out) = 0;
  // y = round(round(x * std[c]) + mean[c]) (denormalise); x, y [C, ...] f32; std, mean [C] f32; in place allowed.
  virtual void channel_affine(const View& x, const View& std, const View& mean, const View& y) = 0;

  // ---- attention -------------------------------------------------------------------------------------------------
  // f32 scores and softmax; P rounded to T before P V; f32 accumulation; one round_T. O(S) memory.
  //
  // eight_bit, per head, l = scale * log2(e) (spec acceleration 6; the weights are scaled by powers of two alone, so
  // that the order in which keys are visited changes none of them):
  //   k' = k - round_T(mean of k over all keys), which the softmax does not see
  //   q8, qs and k8, ks: int8 of a row of q, of kEightBitKeys rows of k' together (codec/int8_row.h)
  //   v8, vs: e4m3 of a channel of v over all keys (codec/float8_row.h)
  //   z = (q8 . k8) qs ks l;  p = 2^(z - ceil(max z) + 8);  out = round_T(vs (sum e4m3(p) v8) / sum p)
  virtual void attention(const AttentionArgs& args) = 0;
  // Why this back end does not compute eight_bit for heads of this width; empty = it does.
  virtual std::string refuses_eight_bit(int64_t head_dim) const;
  // Device memory that such a call takes besides its operands. For plans.
  virtual int64_t eight_bit_bytes(int64_t rows, int64_t heads, int64_t head_dim) const {
    return (void)rows, (void)heads, (void)head_dim, 0;
  }

  // Per head, l = scale * log2(e), T-rounded where written, f32 otherwise (spec acceleration 5.2):
  //   kc[n] = round_T(mean of K block n); vc[n] = round_T(sum of V block n); mu, var: mean and variance of kc over n
  //   c = mean of the query block; threshold = (c . mu) l + tau sqrt(max(sum c^2 var, 0) l^2 + 1e-6)
  //   exact(n): mean over the block's queries of (q . kc[n]) l > threshold, or |query block - n| <= 1, or sink
  //   softmax in base 2 over exact keys (weight p) and summaries (weight p * length, value round_T(p) * vc[n])
  // The default body runs on the host's pool and reads every exact key as attention does.
  virtual void sparse_attention(const SparseAttentionArgs& args);
  // Device memory that such a call takes besides its operands. For plans.
  virtual int64_t sparse_attention_bytes(int64_t rows, int64_t heads, int64_t head_dim, DType type) const {
    return (void)rows, (void)heads, (void)head_dim, (void)type, 0;
  }

  // ---- convolutions (channels first; see vae.md) -------------------------------------------------------------------
  // conv1d and transposed1d: x [I, L] -> y [O, L']. conv3d: x [I, T, H, W] -> y [O, T', H', W'].
  virtual void conv(const Conv& conv, const View& x, const View& y) = 0;
  // Group norm per frame with affine, then silu: x, y [C, T, H, W]; statistics over (C/groups, H, W) of each t.
  // In place allowed.
  virtual void group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps, const View& y) = 0;
  // y = x + sin(a x)^2 * inv; a, inv [C] f32; x, y [C, L]. In place allowed.
  virtual void snake(const View& x, const View& a, const View& inv, const View& y) = 0;
  // Anti-aliased snake: 2x up (12 taps `up`), snake, 2x down (12 taps `down`), replicate padding. x, y [C, L]. In place
  // allowed.
  virtual void aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down,
                        const View& y) = 0;

  // ---- video pixels -------------------------------------------------------------------------------------------------
  // V = tile[r, c]; with e = overlap_up, r < e: V = round(round(up[p*h-e+r, c] * wa) + round(V * wb)), wb = round(r/e),
  // wa = round(1 - wb); then likewise over columns with left[r, p*w-e+c]. Neighbours are raw, the diagonal tile takes
  // no part. The default body runs on the host's pool.
  virtual void blend_tile(const TileBlend& args);
  // y = min(max(round(round(x * std[c]) + mean[c]), 0), 1), NaN stays; x, y [C, ...] f32, any strides; std, mean [C]
  // f32; in place allowed. Default body as above.
  virtual void to_unit_range(const View& x, const View& std, const View& mean, const View& y);

  // ---- reduce -------------------------------------------------------------------------------------------------------
  // out[0] = sum |round_T(a - b)|, out[1] = sum |b|, as f32 accumulated in a fixed order; a, b same dims. For step
  // policies.
  virtual void l1_pair(const View& a, const View& b, const View& out) = 0;
  // flags[0] |= 1 when x has a NaN or Inf; flags [1] i32.
  virtual void check_finite(const View& x, const View& flags) = 0;
};

}  // namespace h3
