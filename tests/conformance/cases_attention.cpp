#include <cmath>

#include "base/error.h"
#include "tests/conformance/cases.h"

namespace h3::conformance {
namespace {

struct Shape {
  int64_t batch, queries, keys, heads, key_heads, d;  // batch 0: rank 3
  bool causal;
};

const Shape kShapes[] = {
    {0, 1, 1, 1, 1, 8, false},     {0, 5, 5, 2, 2, 16, false},      {0, 33, 33, 4, 2, 64, false},
    {0, 70, 70, 2, 2, 128, false}, {0, 130, 130, 4, 1, 80, false},  {0, 7, 150, 3, 3, 24, false},
    {0, 40, 40, 4, 2, 32, true},   {0, 131, 131, 2, 1, 128, true},  {3, 20, 20, 2, 2, 72, false},
    {2, 17, 17, 4, 2, 64, true},   {0, 300, 300, 1, 1, 128, false}, {0, 1, 97, 8, 2, 128, false},
    {0, 12, 12, 2, 2, 256, true},  {3, 131, 131, 3, 3, 64, false},  {2, 65, 203, 2, 2, 64, false},
    {2, 1, 33, 2, 2, 64, false},   {4, 195, 195, 1, 1, 64, false},  {2, 70, 70, 2, 2, 128, false},
};

std::vector<int64_t> dims_of(const Shape& s, int64_t rows, int64_t heads) {
  if (s.batch == 0) return {rows, heads, s.d};
  return {s.batch, rows, heads, s.d};
}

std::string name_of_case(const Shape& s, DType type) {
  return strf("%s batch %d, %dx%d, heads %d/%d of %d%s", name_of(type), static_cast<int>(s.batch),
              static_cast<int>(s.queries), static_cast<int>(s.keys), static_cast<int>(s.heads),
              static_cast<int>(s.key_heads), static_cast<int>(s.d), s.causal ? " causal" : "");
}

// sharp: scores of some tens, where one key takes all.
Case plain_case(const Shape& s, DType type, bool sharp) {
  return {"attention", name_of_case(s, type) + (sharp ? " sharp" : ""), [=](Env& e) {
            AttentionArgs a;
            const float size = sharp ? 12.0f : 2.0f;
            a.q = e.in(dims_of(s, s.queries, s.heads), type, Layout::packed, size);
            a.k = e.in(dims_of(s, s.keys, s.key_heads), type, Layout::packed, size);
            a.v = e.in(dims_of(s, s.keys, s.key_heads), type);
            a.out = e.out(dims_of(s, s.queries, s.heads), type);
            a.scale = 1 / std::sqrt(static_cast<float>(s.d));
            a.causal = s.causal;
            return [&e, a] { e.ops.attention(a); };
          }};
}

// q, k and v inside one [S, (Hq + 2 Hkv) D] product, the output inside a wider row.
Case fused_case(const Shape& s, DType type) {
  return {"attention", name_of_case(s, type) + " inside QKV", [=](Env& e) {
            const int rank = s.batch == 0 ? 3 : 4;
            const View all = e.in(dims_of(s, s.keys, s.heads + 2 * s.key_heads), type);
            AttentionArgs a;
            a.q = all.slice(rank - 2, 0, s.heads);
            a.k = all.slice(rank - 2, s.heads, s.key_heads);
            a.v = all.slice(rank - 2, s.heads + s.key_heads, s.key_heads);
            a.out = e.out(dims_of(s, s.queries, s.heads + 1), type).slice(rank - 2, 0, s.heads);
            e.outputs.back() = a.out;
            a.scale = 1 / std::sqrt(static_cast<float>(s.d));
            a.causal = s.causal;
            return [&e, a] { e.ops.attention(a); };
          }};
}

// Exact where the back end has no such kernel.
Case eight_bit_case(int64_t rows, int64_t keys, int64_t heads, DType type, float size) {
  const std::string name = strf("%s %dx%d, %d heads of 128, eight bits, size %g", name_of(type), static_cast<int>(rows),
                                static_cast<int>(keys), static_cast<int>(heads), static_cast<double>(size));
  return {"attention", name, [=](Env& e) {
            AttentionArgs a;
            const View all = e.in({std::max(rows, keys), 3 * heads, 128}, type, Layout::packed, size);
            a.q = all.slice(0, 0, rows).slice(1, 0, heads);
            a.k = all.slice(0, 0, keys).slice(1, heads, heads);
            a.v = all.slice(0, 0, keys).slice(1, 2 * heads, heads);
            a.out = e.out({rows, heads, 128}, type);
            a.scale = 1 / std::sqrt(128.0f);
            if (e.ops.refuses_eight_bit(128).empty()) a.math = AttentionMath::eight_bit;
            return [&e, a] { e.ops.attention(a); };
          }};
}

// few: the first query block chooses the outer blocks, two neighbours most, the others none.
enum class Choice { rule, all_exact, all_approximate, mask, few };

// Slices of one QKV product, as the denoiser calls it.
Case sparse_case(int64_t rows, int64_t heads, int64_t d, DType type, Choice choice, int64_t exact_keys,
                 Layout inputs = Layout::packed, Layout output = Layout::packed) {
  const char* const names[] = {"rule", "all exact", "all approximate", "mask", "few"};
  const std::string name =
      strf("%s %dx%d of %d, %s, %d exact keys%s%s", name_of(type), static_cast<int>(rows), static_cast<int>(heads),
           static_cast<int>(d), names[static_cast<int>(choice)], static_cast<int>(exact_keys),
           inputs == Layout::strided ? ", strided" : "", output == Layout::strided ? ", strided output" : "");
  return {"sparse_attention", name, [=](Env& e) {
            const View all = e.in({rows, 3 * heads, d}, type, inputs);
            SparseAttentionArgs a;
            a.q = all.slice(1, 0, heads);
            a.k = all.slice(1, heads, heads);
            a.v = all.slice(1, 2 * heads, heads);
            a.out = e.out({rows, heads, d}, type, output);
            a.scale = 1 / std::sqrt(static_cast<float>(d));
            a.tau = choice == Choice::all_exact ? -1000.0f : choice == Choice::all_approximate ? 1000.0f : 1.0f;
            a.exact_keys = exact_keys;
            a.exact_blocks = e.also_output(e.integers({3}));
            if (choice == Choice::mask || choice == Choice::few) {
              const int64_t blocks = (rows + kSparseBlock - 1) / kSparseBlock;
              std::vector<uint8_t> mask;
              for (int64_t i = 0; i < blocks * blocks; ++i) {
                const int64_t query = i / blocks, tenths = choice == Choice::mask ? 3 : query < 3 ? 7 : 0;
                const bool outer = choice == Choice::few && query == 0;
                mask.push_back(outer ? i % blocks % (blocks - 1) == 0 : e.below(10) < tenths);
              }
              a.mask = e.bytes({blocks, blocks}, mask);
            }
            return [&e, a] { e.ops.sparse_attention(a); };
          }};
}

void add_sparse_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const Choice choice : {Choice::rule, Choice::all_exact, Choice::all_approximate, Choice::mask}) {
      cases.push_back(sparse_case(450, 2, 128, type, choice, 0));
      cases.push_back(sparse_case(333, 1, 128, type, choice, 70));
    }
    cases.push_back(sparse_case(64, 2, 128, type, Choice::rule, 0));
    cases.push_back(sparse_case(7, 1, 128, type, Choice::rule, 7));
    cases.push_back(sparse_case(200, 2, 96, type, Choice::mask, 0));
  }
  // More summaries than a 32-bit word holds, and than a tile of them.
  cases.push_back(sparse_case(33 * 64 - 5, 1, 128, DType::bf16, Choice::mask, 0));
  cases.push_back(sparse_case(66 * 64 + 9, 1, 128, DType::bf16, Choice::all_approximate, 0));
  // A kernel that fetches tiles for several query blocks goes past many that one of them does not need.
  cases.push_back(sparse_case(66 * 64 - 3, 1, 128, DType::bf16, Choice::few, 0));
  // Strides that the fastest kernels do not take.
  cases.push_back(sparse_case(450, 2, 128, DType::bf16, Choice::mask, 0, Layout::strided, Layout::packed));
  cases.push_back(sparse_case(450, 2, 128, DType::bf16, Choice::mask, 0, Layout::packed, Layout::strided));
}

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  add_sparse_cases(cases);
  for (DType type : kTypes) {
    cases.push_back(eight_bit_case(1, 1, 1, type, 2));
    cases.push_back(eight_bit_case(70, 300, 2, type, 2));
    cases.push_back(eight_bit_case(200, 128, 2, type, 12));  // scores of some tens, where one key takes all
    cases.push_back(eight_bit_case(333, 333, 3, type, 1));
  }
  for (DType type : kTypes) {
    for (const Shape& shape : kShapes) {
      cases.push_back(plain_case(shape, type, false));
      cases.push_back(plain_case(shape, type, true));
      if (shape.queries == shape.keys) cases.push_back(fused_case(shape, type));
    }
  }
}

}  // namespace h3::conformance
