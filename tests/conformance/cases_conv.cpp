#include "base/error.h"
#include "tests/conformance/cases.h"

namespace h3::conformance {
namespace {

using Dims = std::vector<int64_t>;

struct Shape {
  const char* name;
  ConvKind kind;
  int64_t in, out;
  int kernel[3], stride[3], dilation[3], before[3], after[3];
  Pad pad;
  int64_t input[3];
};

// As the autoencoders use them (spec vae 6, 11, 12), and odd ones.
const Shape kShapes[] = {
    {"pointwise", ConvKind::conv1d, 6, 9, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {}, {}, Pad::zero, {1, 1, 37}},
    {"k7", ConvKind::conv1d, 5, 7, {1, 1, 7}, {1, 1, 1}, {1, 1, 1}, {0, 0, 3}, {0, 0, 3}, Pad::zero, {1, 1, 50}},
    {"k11 dilation 5",
     ConvKind::conv1d,
     8,
     8,
     {1, 1, 11},
     {1, 1, 1},
     {1, 1, 5},
     {0, 0, 25},
     {0, 0, 25},
     Pad::zero,
     {1, 1, 61}},
    {"k3 dilation 3, one sample",
     ConvKind::conv1d,
     4,
     4,
     {1, 1, 3},
     {1, 1, 1},
     {1, 1, 3},
     {0, 0, 3},
     {0, 0, 3},
     Pad::zero,
     {1, 1, 1}},
    {"k10 stride 5",
     ConvKind::conv1d,
     3,
     6,
     {1, 1, 10},
     {1, 1, 5},
     {1, 1, 1},
     {0, 0, 3},
     {0, 0, 3},
     Pad::zero,
     {1, 1, 600}},
    {"one channel, long",
     ConvKind::conv1d,
     1,
     5,
     {1, 1, 7},
     {1, 1, 1},
     {1, 1, 1},
     {0, 0, 3},
     {0, 0, 3},
     Pad::zero,
     {1, 1, 3001}},
    {"wide", ConvKind::conv1d, 96, 66, {1, 1, 3}, {1, 1, 1}, {1, 1, 1}, {0, 0, 1}, {0, 0, 1}, Pad::zero, {1, 1, 70}},
    {"up 5",
     ConvKind::transposed1d,
     6,
     4,
     {1, 1, 9},
     {1, 1, 5},
     {1, 1, 1},
     {0, 0, 2},
     {0, 0, 2},
     Pad::zero,
     {1, 1, 23}},
    {"up 2",
     ConvKind::transposed1d,
     16,
     17,
     {1, 1, 4},
     {1, 1, 2},
     {1, 1, 1},
     {0, 0, 1},
     {0, 0, 1},
     Pad::zero,
     {1, 1, 700}},
    {"up 2 of one sample",
     ConvKind::transposed1d,
     3,
     2,
     {1, 1, 4},
     {1, 1, 2},
     {1, 1, 1},
     {0, 0, 1},
     {0, 0, 1},
     Pad::zero,
     {1, 1, 1}},
    {"3x3x3 reflect, causal",
     ConvKind::conv3d,
     3,
     8,
     {3, 3, 3},
     {1, 1, 1},
     {1, 1, 1},
     {2, 1, 1},
     {0, 1, 1},
     Pad::reflect,
     {3, 6, 7}},
    {"3x3x3 down 1,2,2",
     ConvKind::conv3d,
     8,
     5,
     {3, 3, 3},
     {1, 2, 2},
     {1, 1, 1},
     {2, 0, 0},
     {0, 1, 1},
     Pad::reflect,
     {3, 8, 6}},
    {"3x3x3 down 2,2,2",
     ConvKind::conv3d,
     8,
     8,
     {3, 3, 3},
     {2, 2, 2},
     {1, 1, 1},
     {2, 0, 0},
     {0, 1, 1},
     Pad::reflect,
     {5, 8, 6}},
    {"3x3x3 zero pad",
     ConvKind::conv3d,
     4,
     6,
     {3, 3, 3},
     {1, 1, 1},
     {1, 1, 1},
     {1, 1, 1},
     {1, 1, 1},
     Pad::zero,
     {2, 5, 9}},
    {"1x1x1", ConvKind::conv3d, 9, 10, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {}, {}, Pad::zero, {2, 5, 9}},
    {"one frame",
     ConvKind::conv3d,
     16,
     32,
     {3, 3, 3},
     {1, 1, 1},
     {1, 1, 1},
     {2, 1, 1},
     {0, 1, 1},
     Pad::reflect,
     {1, 12, 17}},
    {"wider than a line",
     ConvKind::conv3d,
     2,
     3,
     {1, 3, 3},
     {1, 1, 1},
     {1, 1, 1},
     {0, 1, 1},
     {0, 1, 1},
     Pad::reflect,
     {1, 3, 530}},
};

Dims dims_of(const Shape& s, int64_t channels, const int64_t extent[3]) {
  if (s.kind == ConvKind::conv3d) return {channels, extent[0], extent[1], extent[2]};
  return {channels, extent[2]};
}

Case conv_case(const Shape& s, Compute compute, DType type, Layout layout, bool biased) {
  const std::string name = strf("%s, compute %d, %s%s%s", s.name, static_cast<int>(compute), name_of(type),
                                layout_text(layout), biased ? " bias" : "");
  return {"conv", name, [=](Env& e) {
            ConvSpec spec;
            spec.label = "test." + name;
            spec.kind = s.kind;
            spec.in = s.in, spec.out = s.out;
            for (int i = 0; i < 3; ++i) {
              spec.kernel[i] = s.kernel[i], spec.stride[i] = s.stride[i], spec.dilation[i] = s.dilation[i];
              spec.pad_before[i] = s.before[i], spec.pad_after[i] = s.after[i];
            }
            spec.spatial_pad = s.pad;
            spec.compute = compute;
            spec.weight = e.values(s.in * s.out * s.kernel[0] * s.kernel[1] * s.kernel[2], -1, 1);
            if (biased) spec.bias = e.values(s.out, -1, 1);
            const Conv& conv = e.keep(e.ops.make_conv(std::move(spec)));
            int64_t extent[3];
            conv.output_extent(s.input, extent);
            const View x = e.in(dims_of(s, s.in, s.input), type, layout);
            const View y = e.out(dims_of(s, s.out, extent), type, layout);
            return [&e, &conv, x, y] { e.ops.conv(conv, x, y); };
          }};
}

void add_group_norm(std::vector<Case>& cases, DType type, Layout layout) {
  struct Group {
    Dims dims;
    int groups;
  };
  for (const Group& g : {Group{{8, 3, 5, 7}, 4}, Group{{32, 1, 2, 2}, 32}, Group{{6, 2, 16, 33}, 2}}) {
    const std::string text =
        strf("%s %s in %d%s", name_of(type), dims_text(g.dims).c_str(), g.groups, layout_text(layout));
    const Dims dims = g.dims;
    const int groups = g.groups;
    cases.push_back({"group_norm_silu", text, [=](Env& e) {
                       const View x = e.in(dims, type, layout), y = e.out(dims, type, layout);
                       const View w = e.parameter({dims[0]}, -2, 2), b = e.parameter({dims[0]}, -1, 1);
                       return [=, &e] { e.ops.group_norm_silu(x, groups, w, b, 1e-6f, y); };
                     }});
    cases.push_back({"group_norm_silu", text + " in place", [=](Env& e) {
                       const View x = e.inout(dims, type, layout);
                       const View w = e.parameter({dims[0]}, -2, 2), b = e.parameter({dims[0]}, -1, 1);
                       return [=, &e] { e.ops.group_norm_silu(x, groups, w, b, 1e-6f, x); };
                     }});
  }
}

// f32 only: the audio autoencoder (spec vae 10).
void add_snakes(std::vector<Case>& cases, Layout layout) {
  for (const Dims& dims : {Dims{1, 1}, Dims{3, 2}, Dims{5, 37}, Dims{2, 5000}}) {
    for (bool in_place : {false, true}) {
      const std::string text = dims_text(dims) + layout_text(layout) + (in_place ? " in place" : "");
      cases.push_back({"snake", text, [=](Env& e) {
                         const View x = in_place ? e.inout(dims, DType::f32, layout) : e.in(dims, DType::f32, layout);
                         const View y = in_place ? x : e.out(dims, DType::f32, layout);
                         const View a = e.parameter({dims[0]}, 0.1f, 8), inv = e.parameter({dims[0]}, 0.1f, 3);
                         return [=, &e] { e.ops.snake(x, a, inv, y); };
                       }});
      cases.push_back({"aa_snake", text, [=](Env& e) {
                         const View x = in_place ? e.inout(dims, DType::f32, layout) : e.in(dims, DType::f32, layout);
                         const View y = in_place ? x : e.out(dims, DType::f32, layout);
                         const View a = e.parameter({dims[0]}, 0.1f, 8), inv = e.parameter({dims[0]}, 0.1f, 3);
                         const View up = e.parameter({12}, -0.3f, 0.5f), down = e.parameter({12}, -0.3f, 0.5f);
                         return [=, &e] { e.ops.aa_snake(x, a, inv, up, down, y); };
                       }});
    }
  }
}

}  // namespace

void add_conv_cases(std::vector<Case>& cases) {
  for (const Shape& shape : kShapes) {
    cases.push_back(conv_case(shape, Compute::f32, DType::f32, Layout::packed, true));
    cases.push_back(conv_case(shape, Compute::f32, DType::f32, Layout::strided, false));
    cases.push_back(conv_case(shape, Compute::bf16, DType::f32, Layout::packed, true));
    cases.push_back(conv_case(shape, Compute::f16, DType::f16, Layout::packed, true));
    cases.push_back(conv_case(shape, Compute::bf16, DType::bf16, Layout::packed, false));
  }
  for (Layout layout : kLayouts) {
    for (DType type : kTypes) add_group_norm(cases, type, layout);
    add_snakes(cases, layout);
  }
}

}  // namespace h3::conformance
