#include "base/error.h"
#include "codec/nvfp4.h"
#include "tests/conformance/cases.h"
#include "tests/support/packed_matrix.h"

namespace h3::conformance {
namespace {

struct Shape {
  int64_t rows, in, out;
};

// One row; nothing a multiple of a vector; multiples of tiles; the depths where 8-bit and tile kernels change path.
const Shape kShapes[] = {{1, 16, 8},   {1, 96, 40},   {3, 37, 19},    {7, 5, 3},      {17, 64, 33},
                         {16, 64, 32}, {33, 192, 80}, {65, 100, 130}, {2, 1030, 517}, {129, 128, 256}};

struct Mode {
  Compute compute;
  const char* name;
  DType x, y;
};

const Mode kModes[] = {
    {Compute::f32, "f32", DType::f32, DType::f32},         {Compute::f32, "f32", DType::bf16, DType::bf16},
    {Compute::f32, "f32", DType::f16, DType::f32},         {Compute::bf16, "bf16", DType::bf16, DType::bf16},
    {Compute::bf16, "bf16", DType::f32, DType::f32},       {Compute::bf16, "bf16", DType::f32, DType::bf16},
    {Compute::bf16, "bf16", DType::bf16, DType::f32},      {Compute::f16, "f16", DType::f16, DType::f16},
    {Compute::f16, "f16", DType::f32, DType::f32},         {Compute::f16, "f16", DType::f32, DType::f16},
    {Compute::int8, "int8", DType::bf16, DType::bf16},     {Compute::int8, "int8", DType::f32, DType::f32},
    {Compute::packed, "packed", DType::bf16, DType::bf16}, {Compute::packed, "packed", DType::f32, DType::f32},
};

Case linear_case(const Mode& m, const Shape& s, Layout layout, bool biased, Format format) {
  const std::string name = strf("%s of %s, %s to %s, %s%s%s", m.name, row_of(format).name, name_of(m.x), name_of(m.y),
                                dims_text({s.rows, s.in, s.out}).c_str(), layout_text(layout), biased ? " bias" : "");
  return {"linear", name, [=](Env& e) {
            const View x = e.in({s.rows, s.in}, m.x, layout), y = e.out({s.rows, s.out}, m.y, layout);
            LinearSpec spec;
            spec.label = "test." + name;
            spec.weight = e.weight(s.out, s.in, format);
            if (biased) spec.bias = e.values(s.out, -1, 1);
            spec.compute = m.compute;
            spec.max_rows = s.rows;
            const Linear& linear = e.keep(e.ops.make_linear(std::move(spec)));
            return [&e, &linear, x, y] { e.ops.linear(linear, x, y); };
          }};
}

Case linear_add_case(Compute compute, DType type, const Shape& s, Layout layout) {
  const std::string name = strf("%s of %s, %s%s", compute == Compute::f32 ? "f32" : "bf16", name_of(type),
                                dims_text({s.rows, s.in, s.out}).c_str(), layout_text(layout));
  return {"linear_add", name, [=](Env& e) {
            const View x = e.in({s.rows, s.in}, type, layout), y = e.inout({s.rows, s.out}, type, layout);
            LinearSpec spec;
            spec.label = "test.add." + name;
            spec.weight = e.weight(s.out, s.in, Format::bf16);
            spec.compute = compute;
            spec.max_rows = s.rows;
            const Linear& linear = e.keep(e.ops.make_linear(std::move(spec)));
            return [&e, &linear, x, y] { e.ops.linear_add(linear, -0.375f, x, y); };
          }};
}

Case linear_scaled_case(Compute compute, DType type, const Shape& s, Layout layout) {
  const std::string name = strf("%s of %s, %s%s", compute == Compute::f32 ? "f32" : "bf16", name_of(type),
                                dims_text({s.rows, s.in, s.out}).c_str(), layout_text(layout));
  return {"linear_scaled", name, [=](Env& e) {
            const View x = e.in({s.rows, s.in}, type, layout), y = e.out({s.rows, s.out}, type, layout);
            LinearSpec spec;
            spec.label = "test.scaled." + name;
            spec.weight = e.weight(s.out, s.in, Format::bf16);
            spec.compute = compute;
            spec.max_rows = s.rows;
            const Linear& linear = e.keep(e.ops.make_linear(std::move(spec)));
            return [&e, &linear, x, y] { e.ops.linear_scaled(linear, 0.625f, x, y); };
          }};
}

Case linear_onto_case(const Mode& m, const Shape& s, Layout layout, bool biased, Format format) {
  const std::string name = strf("%s of %s, %s to %s, %s%s%s", m.name, row_of(format).name, name_of(m.x), name_of(m.y),
                                dims_text({s.rows, s.in, s.out}).c_str(), layout_text(layout), biased ? " bias" : "");
  return {"linear_onto", name, [=](Env& e) {
            const View x = e.in({s.rows, s.in}, m.x, layout), y = e.inout({s.rows, s.out}, m.y, layout);
            LinearSpec spec;
            spec.label = "test.onto." + name;
            spec.weight = e.weight(s.out, s.in, format);
            if (biased) spec.bias = e.values(s.out, -1, 1);
            spec.compute = m.compute;
            spec.max_rows = s.rows;
            const Linear& linear = e.keep(e.ops.make_linear(std::move(spec)));
            return [&e, &linear, x, y] { e.ops.linear_onto(linear, x, y); };
          }};
}

// The reader of an op's rows was named before it: what both give is the same (ops.h: feeds).
Case fed_linear_case(const std::string& maker) {
  const std::string name = "e4m3 after a hint, " + maker;
  return {"linear", name, [=](Env& e) {
            constexpr int64_t kRows = 37, kIn = 512, kOut = 304;
            const View x = e.in({kRows, 2 * kIn}, DType::bf16);
            // In the order of the calls that write them: faults are planted in the first.
            const View stream = maker == "gate_norm" ? e.inout({kRows, kIn}, DType::bf16) : View{};
            const View h = e.out({kRows, kIn}, DType::bf16), y = e.out({kRows, kOut}, DType::bf16);
            const View table = e.in({3, 3 * kIn}, DType::bf16), ids = e.ids(kRows, 3);
            LinearSpec spec;
            spec.label = "test.fed";
            spec.weight = e.weight(kOut, kIn, Format::f8_e4m3);
            spec.compute = Compute::packed;
            const Linear& linear = e.keep(e.ops.make_linear(std::move(spec)));
            return [=, &e, &linear] {
              e.ops.feeds(linear, false);
              const Modulation modulation{table.slice(1, 0, kIn), table.slice(1, kIn, kIn), ids};
              const Gate gate{table.slice(1, 2 * kIn, kIn), ids};
              const View first = x.slice(1, 0, kIn);
              if (maker == "gate_norm") e.ops.gate_norm(stream, first, gate, {}, 1e-6f, modulation, h);
              if (maker == "norm_modulate") e.ops.norm_modulate(first, {}, 1e-6f, modulation, h);
              if (maker == "swiglu") e.ops.swiglu(first, x.slice(1, kIn, kIn), h);
              e.ops.linear(linear, h.slice(0, 0, 20), y.slice(0, 0, 20));
              e.ops.linear(linear, h.slice(0, 20, kRows - 20), y.slice(0, 20, kRows - 20));
            };
          }};
}

Case quantise_nvfp4_case(const std::vector<int64_t>& dims, DType type, Layout layout, float size) {
  const std::string name =
      strf("%s %s%s, size %g", name_of(type), dims_text(dims).c_str(), layout_text(layout), static_cast<double>(size));
  return {"quantise_nvfp4", name, [=](Env& e) {
            const View x = e.in(dims, type, layout, size), factors = e.out({dims[0]}, DType::f32);
            const auto rubbish = [&](int64_t count) {
              return e.also_output(e.integers(std::vector<int32_t>(static_cast<size_t>(count), -1)));
            };
            const View codes = rubbish(dims[0] * dims[1] / 8).reshape({dims[0], dims[1] / 8});
            const View scales = rubbish(nvfp4_scale_bytes(dims[0], dims[1]) / 4);
            return [=, &e] { e.ops.quantise_nvfp4(x, factors, codes, scales); };
          }};
}

struct WeightPart {
  Format format;
  int64_t rows;
};

Case two_parts_case(const std::string& name, int64_t rows, WeightPart first, WeightPart second) {
  return {"linear", name, [=](Env& e) {
            constexpr int64_t kIn = 256;
            const View x = e.in({rows, kIn}, DType::bf16), y = e.out({rows, first.rows + second.rows}, DType::bf16);
            LinearSpec spec;
            spec.label = "test.two_parts";
            spec.weight = e.weight(first.rows, kIn, first.format);
            for (const MatrixSource::Part& part : e.weight(second.rows, kIn, second.format).parts) {
              spec.weight.append(part.matrix, part.first, part.rows);
            }
            spec.compute = Compute::packed;
            const Linear& linear = e.keep(e.ops.make_linear(std::move(spec)));
            return [&e, &linear, x, y] { e.ops.linear(linear, x, y); };
          }};
}

// Linears with what follows them.
enum class Tail { swiglu, scaled_add, head_norm_rope };

struct FusedMode {
  Compute compute;
  const char* name;
  DType type;
  Format format;
};

struct FusedShape {
  int64_t rows, in, out;  // out: of the linear
  int64_t heads, d, pairs;
  Layout layout;
};

// Ordinary shapes, and those of kernels for whole tiles: rows beyond a tile, more than one tile of outputs.
const FusedMode kFusedModes[] = {{Compute::f32, "f32", DType::f32, Format::f32},
                                 {Compute::bf16, "bf16", DType::bf16, Format::bf16},
                                 {Compute::f16, "f16", DType::f16, Format::bf16},
                                 {Compute::packed, "e4m3", DType::f16, Format::f8_e4m3}};
const FusedShape kFusedShapes[] = {
    {1, 32, 48, 1, 16, 6, Layout::packed},      {7, 40, 96, 2, 32, 12, Layout::strided},
    {5, 64, 192, 2, 64, 24, Layout::packed},    {300, 128, 768, 8, 64, 24, Layout::packed},
    {517, 256, 512, 4, 64, 24, Layout::packed}, {260, 128, 512, 4, 64, 24, Layout::strided}};

// `within`: the result of swiglu is the first half of what lies in between.
Case fused_case(Tail tail, const FusedMode& m, const FusedShape& s, bool within = false) {
  const char* const op = tail == Tail::swiglu       ? "linear_swiglu"
                         : tail == Tail::scaled_add ? "linear_scaled_add"
                                                    : "linear_head_norm_rope";
  const std::string name = strf("%s, %s%s%s", m.name, dims_text({s.rows, s.in, s.out}).c_str(), layout_text(s.layout),
                                within ? " in place" : "");
  return {op, name, [=](Env& e) -> std::function<void()> {
            const View x = e.in({s.rows, s.in}, m.type, s.layout);
            LinearSpec spec;
            spec.label = "test.fused." + name;
            spec.weight = e.weight(s.out, s.in, m.format);
            spec.bias = e.values(s.out, -1, 1);
            spec.compute = m.compute;
            spec.max_rows = s.rows;
            const Linear& linear = e.keep(e.ops.make_linear(std::move(spec)));
            const View y = e.out({s.rows, s.out}, m.type, s.layout);
            if (tail != Tail::head_norm_rope) {
              e.outputs.pop_back();
              e.scratch = y;
            }
            if (tail == Tail::swiglu) {
              const View out =
                  within ? e.also_output(y.slice(1, 0, s.out / 2)) : e.out({s.rows, s.out / 2}, m.type, s.layout);
              return [=, &e, &linear] { e.ops.linear_swiglu(linear, x, y, out); };
            }
            if (tail == Tail::scaled_add) {
              const View scale = e.parameter({s.out}, -2, 2), stream = e.inout({s.rows, s.out}, DType::f32, s.layout);
              return [=, &e, &linear] { e.ops.linear_scaled_add(linear, x, y, scale, stream); };
            }
            const Ops::HeadNorm norm{.enabled = true, .eps = 1e-5f};
            const Rope rope{e.parameter({s.rows, s.pairs}, -1, 1), e.parameter({s.rows, s.pairs}, -1, 1),
                            RopeRounding::once};
            return [=, &e, &linear] { e.ops.linear_head_norm_rope(linear, x, s.heads, s.d, norm, rope, y); };
          }};
}

void add_fused_cases(std::vector<Case>& cases) {
  for (const Tail tail : {Tail::swiglu, Tail::scaled_add, Tail::head_norm_rope}) {
    for (const FusedMode& mode : kFusedModes) {
      for (const FusedShape& shape : kFusedShapes) {
        cases.push_back(fused_case(tail, mode, shape));
        if (tail == Tail::swiglu) cases.push_back(fused_case(tail, mode, shape, true));
      }
    }
  }
}

}  // namespace

void add_linear_cases(std::vector<Case>& cases) {
  for (const Mode& mode : kModes) {
    for (const Shape& shape : kShapes) {
      cases.push_back(linear_case(mode, shape, Layout::packed, true, Format::bf16));
    }
    cases.push_back(linear_case(mode, {13, 70, 50}, Layout::strided, true, Format::f32));
    cases.push_back(linear_case(mode, {13, 64, 64}, Layout::strided, false, Format::bf16));
    cases.push_back(linear_case(mode, {5, 48, 36}, Layout::packed, false, Format::f32));
  }
  for (const Shape& shape : kShapes) {
    for (const Layout layout : kLayouts) {
      cases.push_back(linear_add_case(Compute::f32, DType::f32, shape, layout));
      cases.push_back(linear_add_case(Compute::bf16, DType::bf16, shape, layout));
    }
  }
  for (const Shape& shape : kShapes) {
    for (const Layout layout : kLayouts) {
      cases.push_back(linear_scaled_case(Compute::f32, DType::f32, shape, layout));
      cases.push_back(linear_scaled_case(Compute::bf16, DType::bf16, shape, layout));
    }
  }
  for (const Mode& mode : kModes) {
    for (const Shape& shape : {Shape{1, 96, 40}, {17, 64, 33}, {129, 128, 256}}) {
      cases.push_back(linear_onto_case(mode, shape, Layout::packed, true, Format::bf16));
      cases.push_back(linear_onto_case(mode, shape, Layout::strided, false, Format::f32));
    }
  }
  for (const DType type : {DType::bf16, DType::f32}) {
    const Mode packed{Compute::packed, "packed", type, type};
    for (const Format format : {Format::f8_e4m3, Format::q4tp, Format::nvfp4}) {
      cases.push_back(linear_onto_case(packed, {35, 768, 304}, Layout::packed, false, format));
      cases.push_back(linear_onto_case(packed, {16, 512, 48}, Layout::strided, true, format));
    }
  }
  for (const char* maker : {"swiglu", "gate_norm", "norm_modulate"}) cases.push_back(fed_linear_case(maker));
  cases.push_back(linear_add_case(Compute::f32, DType::bf16, {33, 24, 80}, Layout::packed));
  cases.push_back(linear_add_case(Compute::bf16, DType::f32, {33, 24, 80}, Layout::strided));
  for (Compute compute : {Compute::f16, Compute::int8}) {
    cases.push_back({"linear", strf("operands beyond f16, compute %d", static_cast<int>(compute)), [=](Env& e) {
                       const View x = e.in({5, 40}, DType::f32, Layout::packed, 3e5f), y = e.out({5, 24}, DType::f32);
                       LinearSpec spec;
                       spec.label = "test.saturated";
                       spec.weight = e.weight(24, 40);
                       spec.compute = compute;
                       const Linear& linear = e.keep(e.ops.make_linear(std::move(spec)));
                       return [&e, &linear, x, y] { e.ops.linear(linear, x, y); };
                     }});
  }
  // Every storage format, kept packed and converted at load.
  for (const Format format : weight_formats()) {
    for (const DType type : {DType::bf16, DType::f32, DType::f16}) {
      const Mode packed{Compute::packed, "packed", type, type};
      cases.push_back(linear_case(packed, {5, 512, 39}, Layout::packed, true, format));
      cases.push_back(linear_case(packed, {1, 256, 32}, Layout::strided, false, format));
    }
    for (const Compute compute : {Compute::int8, Compute::bf16, Compute::f16}) {
      const char* name = compute == Compute::int8 ? "int8" : compute == Compute::bf16 ? "bf16" : "f16";
      const Mode mode{compute, name, DType::f32, DType::f32};
      cases.push_back(linear_case(mode, {5, 512, 39}, Layout::packed, true, format));
      cases.push_back(linear_case(mode, {35, 768, 300}, Layout::packed, false, format));
    }
    cases.push_back(
        linear_case({Compute::f32, "f32", DType::f32, DType::f32}, {3, 256, 17}, Layout::packed, true, format));
    if (row_of(format).block_cols > 1) continue;
    cases.push_back(
        linear_case({Compute::packed, "packed", DType::bf16, DType::bf16}, {3, 37, 19}, Layout::packed, true, format));
  }
  // Shapes that cards multiply in e4m3; without a bias and in bf16 the library applies the scales.
  for (const Shape& shape : {Shape{1, 64, 32}, {35, 768, 304}, {129, 512, 256}, {16, 4096, 48}}) {
    for (const DType type : {DType::bf16, DType::f32}) {
      const Mode packed{Compute::packed, "packed", type, type};
      cases.push_back(linear_case(packed, shape, Layout::packed, false, Format::f8_e4m3));
      cases.push_back(linear_case(packed, shape, Layout::strided, true, Format::f8_e4m3));
    }
  }
  cases.push_back(
      two_parts_case("packed parts of two e4m3 matrices", 37, {Format::f8_e4m3, 32}, {Format::f8_e4m3, 48}));
  cases.push_back(two_parts_case("packed parts of two formats", 7, {Format::q4_k, 20}, {Format::q6_k, 30}));
  cases.push_back({"linear", "fewer rows than max_rows", [](Env& e) {
                     const View x = e.in({3, 64}, DType::bf16), y = e.out({3, 48}, DType::bf16);
                     LinearSpec spec;
                     spec.label = "test.few";
                     spec.weight = e.weight(48, 64);
                     spec.compute = Compute::bf16;
                     spec.max_rows = 500;
                     const Linear& linear = e.keep(e.ops.make_linear(std::move(spec)));
                     return [&e, &linear, x, y] { e.ops.linear(linear, x, y); };
                   }});
  add_fused_cases(cases);
  // One block, one row; scales padded in both directions; whole tiles of them; rows that count as zero.
  for (const DType type : kTypes) {
    cases.push_back(quantise_nvfp4_case({1, 16}, type, Layout::packed, 2));
    cases.push_back(quantise_nvfp4_case({37, 112}, type, Layout::strided, 300));
    cases.push_back(quantise_nvfp4_case({128, 64}, type, Layout::packed, 0.01f));
    cases.push_back(quantise_nvfp4_case({131, 5376}, type, Layout::packed, 2));
  }
  cases.push_back(quantise_nvfp4_case({3, 48}, DType::f32, Layout::packed, 1e-31f));
}

}  // namespace h3::conformance
