#include "base/error.h"
#include "tests/conformance/cases.h"

namespace h3::conformance {
namespace {

using Dims = std::vector<int64_t>;
const Dims kShapes[] = {{1, 1}, {1, 257}, {7, 33}, {5, 4100}};

void add_unary(std::vector<Case>& cases, DType type, Layout layout, const Dims& dims) {
  const std::string text = strf("%s %s%s", name_of(type), dims_text(dims).c_str(), layout_text(layout));
  for (float scale : {3.0f, 100.0f}) {
    const std::string scaled = text + strf(" to %g", static_cast<double>(scale));
    cases.push_back({"silu", scaled, [=](Env& e) {
                       const View x = e.in(dims, type, layout, scale), y = e.out(dims, type, layout);
                       return [&e, x, y] { e.ops.silu(x, y); };
                     }});
    for (Ops::Gelu kind : {Ops::Gelu::tanh, Ops::Gelu::erf}) {
      const char* name = kind == Ops::Gelu::erf ? " erf" : " tanh";
      cases.push_back({"gelu", scaled + name, [=](Env& e) {
                         const View x = e.in(dims, type, layout, scale), y = e.out(dims, type, layout);
                         return [&e, x, y, kind] { e.ops.gelu(x, kind, y); };
                       }});
    }
  }
  cases.push_back({"silu", text + " in place", [=](Env& e) {
                     const View x = e.inout(dims, type, layout);
                     return [&e, x] { e.ops.silu(x, x); };
                   }});
  cases.push_back({"gelu", text + " in place", [=](Env& e) {
                     const View x = e.inout(dims, type, layout);
                     return [&e, x] { e.ops.gelu(x, Ops::Gelu::tanh, x); };
                   }});
}

void add_binary(std::vector<Case>& cases, DType type, Layout layout, const Dims& dims) {
  const std::string text = strf("%s %s%s", name_of(type), dims_text(dims).c_str(), layout_text(layout));
  cases.push_back({"add", text, [=](Env& e) {
                     const View x = e.in(dims, type, layout), y = e.in(dims, type), z = e.out(dims, type, layout);
                     return [&e, x, y, z] { e.ops.add(x, y, z); };
                   }});
  cases.push_back({"add", text + " in place", [=](Env& e) {
                     const View x = e.inout(dims, type, layout), y = e.in(dims, type);
                     return [&e, x, y] { e.ops.add(x, y, x); };
                   }});
  cases.push_back({"subtract", text, [=](Env& e) {
                     const View x = e.in(dims, type, layout), y = e.in(dims, type), z = e.out(dims, type, layout);
                     return [&e, x, y, z] { e.ops.subtract(x, y, z); };
                   }});
  cases.push_back({"subtract", text + " in place", [=](Env& e) {
                     const View x = e.inout(dims, type, layout), y = e.in(dims, type);
                     return [&e, x, y] { e.ops.subtract(x, y, x); };
                   }});
  cases.push_back({"multiply", text, [=](Env& e) {
                     const View x = e.in(dims, type, layout), y = e.in(dims, type), z = e.out(dims, type, layout);
                     return [&e, x, y, z] { e.ops.multiply(x, y, z); };
                   }});
  cases.push_back({"multiply", text + " in place", [=](Env& e) {
                     const View x = e.in(dims, type), y = e.inout(dims, type, layout);
                     return [&e, x, y] { e.ops.multiply(x, y, y); };
                   }});
  cases.push_back({"swiglu", text, [=](Env& e) {
                     const View x = e.in(dims, type, layout, 10), y = e.in(dims, type, layout);
                     const View z = e.out(dims, type, layout);
                     return [&e, x, y, z] { e.ops.swiglu(x, y, z); };
                   }});
  cases.push_back({"swiglu", text + " halves of one tensor, over the gate", [=](Env& e) {
                     const int64_t n = dims.back();
                     const View both = e.inout({dims[0], 2 * n}, type, Layout::packed, 10);
                     const View gate = both.slice(1, 0, n), value = both.slice(1, n, n);
                     e.outputs.back() = gate;
                     return [&e, gate, value] { e.ops.swiglu(gate, value, gate); };
                   }});
  cases.push_back({"swiglu", text + " over the value", [=](Env& e) {
                     const View x = e.in(dims, type, layout, 10), y = e.inout(dims, type, layout);
                     return [&e, x, y] { e.ops.swiglu(x, y, y); };
                   }});
}

void add_f32(std::vector<Case>& cases, Layout layout) {
  const std::string text = std::string("f32") + layout_text(layout);
  for (const Dims& dims : {Dims{1, 1}, Dims{3, 5, 17}, Dims{2, 9000}}) {
    const std::string shaped = text + " " + dims_text(dims);
    cases.push_back({"lincomb", shaped, [=](Env& e) {
                       const View a = e.in(dims, DType::f32, layout), b = e.in(dims, DType::f32, layout);
                       const View c = e.parameter({2}, -2, 2), out = e.out(dims, DType::f32, layout);
                       return [&e, a, b, c, out] { e.ops.lincomb(c, a, b, out); };
                     }});
    cases.push_back({"lincomb", shaped + " in place", [=](Env& e) {
                       const View a = e.in(dims, DType::f32, layout), b = e.inout(dims, DType::f32, layout);
                       const View c = e.parameter({2}, -2, 2);
                       return [&e, a, b, c] { e.ops.lincomb(c, a, b, b); };
                     }});
    cases.push_back({"channel_affine", shaped, [=](Env& e) {
                       const View x = e.in(dims, DType::f32, layout), y = e.out(dims, DType::f32, layout);
                       const View s = e.parameter({dims[0]}, 0.1f, 2), m = e.parameter({dims[0]}, -1, 1);
                       return [&e, x, y, s, m] { e.ops.channel_affine(x, s, m, y); };
                     }});
    cases.push_back({"channel_affine", shaped + " in place", [=](Env& e) {
                       const View x = e.inout(dims, DType::f32, layout);
                       const View s = e.parameter({dims[0]}, 0.1f, 2), m = e.parameter({dims[0]}, -1, 1);
                       return [&e, x, s, m] { e.ops.channel_affine(x, s, m, x); };
                     }});
    cases.push_back({"to_unit_range", shaped, [=](Env& e) {
                       const View x = e.in(dims, DType::f32, layout), y = e.out(dims, DType::f32, layout);
                       const View s = e.parameter({dims[0]}, 0.1f, 2), m = e.parameter({dims[0]}, -1, 1);
                       return [&e, x, y, s, m] { e.ops.to_unit_range(x, s, m, y); };
                     }});
  }
}

void add_reductions(std::vector<Case>& cases, DType type, Layout layout) {
  for (const Dims& dims : {Dims{1, 1}, Dims{40, 333}}) {
    const std::string text = strf("%s %s%s", name_of(type), dims_text(dims).c_str(), layout_text(layout));
    cases.push_back({"l1_pair", text, [=](Env& e) {
                       const View a = e.in(dims, type, layout), b = e.in(dims, type, layout);
                       const View out = e.out({2}, DType::f32);
                       return [&e, a, b, out] { e.ops.l1_pair(a, b, out); };
                     }});
    for (int32_t before : {0, 2}) {
      cases.push_back({"check_finite", text + strf(" flag %d", before), [=](Env& e) {
                         const View x = e.in(dims, type, layout), flags = e.also_output(e.integers({before}));
                         return [&e, x, flags] { e.ops.check_finite(x, flags); };
                       }});
    }
  }
}

// A 2 x 2 canvas seen from its last tile, or from a tile at an edge.
void add_blend(std::vector<Case>& cases) {
  struct Shape {
    int64_t channels, t, h, w;
    int pt, p;
    int64_t up, left, first, frames, rows, columns;
  };
  const Shape shapes[] = {{3, 2, 4, 5, 4, 4, 7, 9, 0, 8, 16, 20},
                          {2, 3, 3, 3, 2, 8, 5, 0, 1, 4, 11, 24},
                          {1, 1, 2, 2, 1, 16, 0, 13, 0, 1, 32, 19}};
  for (const Shape& s : shapes) {
    for (Layout layout : kLayouts) {
      cases.push_back({"blend_tile",
                       strf("overlap %d %d%s", static_cast<int>(s.up), static_cast<int>(s.left), layout_text(layout)),
                       [=](Env& e) {
                         TileBlend a;
                         const Dims raw = {s.t * s.h * s.w + 5, s.channels * s.pt * s.p * s.p};
                         a.tile = e.in(raw, DType::f32);
                         if (s.up > 0) a.up = e.in(raw, DType::f32);
                         if (s.left > 0) a.left = e.in(raw, DType::f32);
                         a.t = s.t, a.h = s.h, a.w = s.w, a.pt = s.pt, a.p = s.p;
                         a.overlap_up = s.up, a.overlap_left = s.left, a.first_frame = s.first;
                         a.out = e.out({s.channels, s.frames, s.rows, s.columns}, DType::f32, layout);
                         return [&e, a] { e.ops.blend_tile(a); };
                       }});
    }
  }
}

}  // namespace

void add_pointwise_cases(std::vector<Case>& cases) {
  for (DType type : kTypes) {
    for (Layout layout : kLayouts) {
      for (const Dims& dims : kShapes) {
        add_unary(cases, type, layout, dims);
        add_binary(cases, type, layout, dims);
      }
      add_unary(cases, type, layout, {2, 3, 17});
      add_reductions(cases, type, layout);
    }
    cases.push_back({"swiglu", strf("%s saturation", name_of(type)), [=](Env& e) {
                       const View x = e.in({4, 40}, type, Layout::packed, 6e4f);
                       const View y = e.in({4, 40}, type, Layout::packed, 100), z = e.out({4, 40}, type);
                       return [&e, x, y, z] { e.ops.swiglu(x, y, z); };
                     }});
  }
  for (auto [stream, branch] : {std::pair{DType::f32, DType::f32},
                                {DType::bf16, DType::bf16},
                                {DType::f16, DType::f16},
                                {DType::f32, DType::f16},
                                {DType::f32, DType::bf16}}) {
    for (Layout layout : kLayouts) {
      for (const Dims& dims : kShapes) {
        cases.push_back(
            {"scaled_add",
             strf("%s += %s %s%s", name_of(stream), name_of(branch), dims_text(dims).c_str(), layout_text(layout)),
             [=, s = stream, b = branch](Env& e) {
               const View x = e.inout(dims, s, layout), y = e.in(dims, b, layout),
                          k = e.parameter({dims.back()}, -1, 1);
               return [&e, x, y, k] { e.ops.scaled_add(x, y, k); };
             }});
      }
    }
  }
  for (Layout layout : kLayouts) add_f32(cases, layout);
  add_blend(cases);
}

}  // namespace h3::conformance
