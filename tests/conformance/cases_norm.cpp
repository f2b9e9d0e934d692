#include "base/error.h"
#include "tests/conformance/cases.h"

namespace h3::conformance {
namespace {

using Dims = std::vector<int64_t>;

void add_row_norms(std::vector<Case>& cases, DType from, DType to, Layout layout, const Dims& dims) {
  const int64_t n = dims.back();
  const std::string text =
      strf("%s to %s %s%s", name_of(from), name_of(to), dims_text(dims).c_str(), layout_text(layout));
  for (NormRounding rounding : {NormRounding::once, NormRounding::twice}) {
    for (bool weighted : {true, false}) {
      const char* how = rounding == NormRounding::once ? " once" : " twice";
      cases.push_back({"rms_norm", text + how + (weighted ? "" : " no weight"), [=](Env& e) {
                         const View x = e.in(dims, from, layout), y = e.out(dims, to, layout);
                         const View w = weighted ? e.parameter({n}, -2, 2) : View{};
                         return [&e, x, w, rounding, y] { e.ops.rms_norm(x, w, 1e-5f, rounding, y); };
                       }});
    }
  }
  cases.push_back({"layer_norm", text, [=](Env& e) {
                     const View x = e.in(dims, from, layout), y = e.out(dims, to, layout);
                     const View w = e.parameter({n}, -2, 2), b = e.parameter({n}, -1, 1);
                     return [&e, x, w, b, y] { e.ops.layer_norm(x, w, b, 1e-5f, y); };
                   }});
  if (from != to) return;
  cases.push_back({"rms_norm", text + " in place", [=](Env& e) {
                     const View x = e.inout(dims, from, layout), w = e.parameter({n}, -2, 2);
                     return [&e, x, w] { e.ops.rms_norm(x, w, 1e-6f, NormRounding::once, x); };
                   }});
  cases.push_back({"layer_norm", text + " in place", [=](Env& e) {
                     const View x = e.inout(dims, from, layout), w = e.parameter({n}, -2, 2),
                                b = e.parameter({n}, -1, 1);
                     return [&e, x, w, b] { e.ops.layer_norm(x, w, b, 1e-6f, x); };
                   }});
}

// A modulation table [rows, 6 n]: each chunk is a strided view, as the model keeps it (spec dit 2.4).
struct Table {
  View all, ids;
  int64_t n;
  View chunk(int64_t i) const { return all.slice(1, i * n, n); }
};

Table table(Env& e, DType type, int64_t rows, int64_t n) {
  Table t;
  t.all = e.parameter({5, 6 * n}, -1.5f, 1.5f, type);
  t.ids = e.ids(rows, 5);
  t.n = n;
  return t;
}

void add_modulated(std::vector<Case>& cases, DType type, Layout layout, const Dims& dims) {
  const int64_t rows = dims[0], n = dims[1];
  const std::string text = strf("%s %s%s", name_of(type), dims_text(dims).c_str(), layout_text(layout));
  cases.push_back({"norm_modulate", text, [=](Env& e) {
                     const View x = e.in(dims, type, layout), h = e.out(dims, type, layout);
                     const View w = e.parameter({n}, -2, 2);
                     const Table t = table(e, type, rows, n);
                     return [=, &e] { e.ops.norm_modulate(x, w, 1e-5f, {t.chunk(0), t.chunk(1), t.ids}, h); };
                   }});
  cases.push_back({"gated_add", text, [=](Env& e) {
                     const View x = e.inout(dims, type, layout), y = e.in(dims, type, layout);
                     const Table t = table(e, type, rows, n);
                     return [=, &e] { e.ops.gated_add(x, y, {t.chunk(2), t.ids}); };
                   }});
  cases.push_back({"gate_norm", text, [=](Env& e) {
                     const View x = e.inout(dims, type, layout), y = e.in(dims, type, layout);
                     const View h = e.out(dims, type, layout), w = e.parameter({n}, -2, 2);
                     const Table t = table(e, type, rows, n);
                     return [=, &e] {
                       e.ops.gate_norm(x, y, {t.chunk(2), t.ids}, w, 1e-5f, {t.chunk(3), t.chunk(4), t.ids}, h);
                     };
                   }});
}

struct HeadShape {
  int64_t rows, heads, d, pairs;  // pairs 0: no rotation
  bool norm, weighted;
};

void add_heads(std::vector<Case>& cases, DType type, const HeadShape& s) {
  for (RopeRounding rope : {RopeRounding::per_op, RopeRounding::once}) {
    for (NormRounding norm : {NormRounding::once, NormRounding::twice}) {
      if ((s.pairs == 0 && rope == RopeRounding::once) || (!s.norm && norm == NormRounding::twice)) continue;
      for (bool fused : {false, true}) {
        const std::string text = strf(
            "%s %s pairs %d%s%s%s%s%s", name_of(type), dims_text({s.rows, s.heads, s.d}).c_str(),
            static_cast<int>(s.pairs), rope == RopeRounding::once ? " rope once" : "", s.norm ? " norm" : "",
            norm == NormRounding::twice ? " twice" : "", s.weighted ? " weighted" : "", fused ? " inside QKV" : "");
        cases.push_back({"head_norm_rope", text, [=](Env& e) {
                           // Inside QKV: the keys of [S, (q, k, v), heads, D].
                           View x = e.inout({s.rows, (fused ? 3 : 1) * s.heads, s.d}, type);
                           if (fused) e.outputs.back() = x = x.slice(1, s.heads, s.heads);
                           Ops::HeadNorm n{s.norm, s.weighted ? e.parameter({s.d}, -2, 2) : View{}, 1e-5f, norm};
                           Rope r;
                           r.rounding = rope;
                           if (s.pairs > 0) {
                             r.cos = e.parameter({s.rows, s.pairs}, -1, 1);
                             r.sin = e.parameter({s.rows, s.pairs}, -1, 1);
                           }
                           return [=, &e] { e.ops.head_norm_rope(x, n, r); };
                         }});
      }
    }
  }
}

}  // namespace

void add_norm_cases(std::vector<Case>& cases) {
  for (Layout layout : kLayouts) {
    for (DType type : kTypes) {
      for (const Dims& dims : {Dims{1, 1}, Dims{1, 32}, Dims{7, 33}, Dims{2, 3, 128}, Dims{3, 2049}}) {
        add_row_norms(cases, type, type, layout, dims);
      }
      for (const Dims& dims : {Dims{1, 16}, Dims{7, 33}, Dims{19, 257}, Dims{3, 2049}}) {
        add_modulated(cases, type, layout, dims);
      }
    }
    add_row_norms(cases, DType::f32, DType::bf16, layout, {5, 96});
    add_row_norms(cases, DType::f32, DType::f16, layout, {5, 96});
    add_row_norms(cases, DType::bf16, DType::f32, layout, {5, 100});
  }
  for (DType type : kTypes) {
    for (const HeadShape& s :
         {HeadShape{1, 1, 8, 4, true, true}, HeadShape{5, 3, 32, 12, true, true}, HeadShape{9, 4, 128, 48, true, true},
          HeadShape{6, 2, 64, 24, true, false}, HeadShape{6, 3, 72, 36, false, false},
          HeadShape{4, 2, 128, 0, true, true}, HeadShape{3, 5, 34, 7, true, true}}) {
      add_heads(cases, type, s);
    }
  }
}

}  // namespace h3::conformance
