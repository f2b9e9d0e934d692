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
    {0, 12, 12, 2, 2, 256, true},
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

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  for (DType type : kTypes) {
    for (const Shape& shape : kShapes) {
      cases.push_back(plain_case(shape, type, false));
      cases.push_back(plain_case(shape, type, true));
      if (shape.queries == shape.keys) cases.push_back(fused_case(shape, type));
    }
  }
}

}  // namespace h3::conformance
