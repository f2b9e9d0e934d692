// Weights that stay packed on the CPU: the same bits as expanding them at load, in no more memory than their file
// takes.
#include <gtest/gtest.h>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/plan.h"
#include "base/compare.h"
#include "base/context.h"
#include "codec/int8_convrot.h"
#include "quant/codecs.h"
#include "sampling/rng.h"
#include "tests/support/packed_matrix.h"

namespace h3 {
namespace {

struct Machine {
  ThreadPool pool{2};
  Log log;
  Context context{pool, log};
};

const std::vector<Format> kPacked = {Format::q4tp, Format::q2tp, Format::w4a8, Format::nvfp4, Format::q4_0,
                                     Format::q4_1, Format::q5_0, Format::q5_1, Format::q2_k,  Format::q3_k,
                                     Format::q4_k, Format::q5_k, Format::q6_k};

// Of about eight bits: panels of int8 take as much, those of other types more.
const std::vector<Format> kEightBits = {Format::f8_e4m3, Format::f8_e5m2,      Format::q8_row,
                                        Format::q8_2f,   Format::int8_convrot, Format::q8_0};

std::vector<Format> narrow_formats() {
  std::vector<Format> formats = kPacked;
  formats.insert(formats.end(), kEightBits.begin(), kEightBits.end());
  return formats;
}

LinearSpec spec_of(const StoredMatrix& matrix, Compute compute) {
  LinearSpec spec;
  spec.label = "test";
  spec.weight.append(matrix, 0, matrix.rows);
  spec.compute = compute;
  spec.max_rows = 40;
  return spec;
}

StoredMatrix expanded(const StoredMatrix& matrix) {
  const auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r) {
    row_of(matrix.format).decode_row(matrix, r, values->data() + r * matrix.cols);
  }
  StoredMatrix out;
  out.format = Format::f32;
  out.rows = matrix.rows;
  out.cols = matrix.cols;
  out.data = std::as_bytes(std::span(*values));
  out.keep_alive = values;
  return out;
}

TEST(PackedLinear, GivesTheBitsOfExpandedWeightsAtEveryLevel) {
  Machine machine;
  std::vector<float> input(40 * 768);
  for (size_t i = 0; i < input.size(); ++i) input[i] = std::sin(static_cast<float>(i) * 0.7f) * 3;
  for (int level = 0; level <= static_cast<int>(host_isa_level()); ++level) {
    const std::unique_ptr<Ops> ops = make_cpu_ops(machine.context, static_cast<IsaLevel>(level));
    const Tensor x = upload_f32(ops->device(), input.data(), {40, 768}, DType::f32, "test");
    for (const Format format : narrow_formats()) {
      const StoredMatrix matrix = PackedMaker(17).make(format, 301, 768);
      const StoredMatrix whole = expanded(matrix);
      for (const Compute compute : {Compute::int8, Compute::bf16, Compute::f32}) {
        std::vector<std::vector<float>> results;
        if (compute == Compute::int8 && format == Format::int8_convrot) continue;  // below
        for (const StoredMatrix* weights : {&matrix, &whole}) {
          const std::unique_ptr<Linear> linear = ops->make_linear(spec_of(*weights, compute));
          const bool packed = weights == &matrix && (compute != Compute::int8 || row_of(format).bits_per_weight < 8);
          EXPECT_EQ(linear->kernel.find(" on ") != std::string::npos, packed) << linear->kernel;
          const Tensor y(ops->device(), DType::f32, {40, 301}, "test");
          ops->linear(*linear, x, y);
          results.push_back(download_f32(y));
        }
        EXPECT_EQ(results[0], results[1]) << row_of(format).name << " at level " << level;
      }
    }
  }
}

// Rows of rotated int8 codes beside rotated rows of x in int8, summed as whole numbers.
std::vector<double> product_of_codes(const StoredMatrix& matrix, const std::vector<float>& input, int64_t rows) {
  const PackedRows planes = packed_rows(matrix);
  std::vector<double> out;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> x(&input[r * matrix.cols], &input[(r + 1) * matrix.cols]);
    const double scale = int8_convrot_row(x.data(), matrix.cols, matrix.rotation);
    for (int64_t o = 0; o < matrix.rows; ++o) {
      int64_t sum = 0;
      for (int64_t k = 0; k < matrix.cols; ++k) {
        sum += static_cast<int64_t>(x[k]) * static_cast<int8_t>(matrix.data[o * matrix.cols + k]);
      }
      out.push_back(static_cast<double>(sum) * scale * row_scale(planes, o));
    }
  }
  return out;
}

// Of a product from the one in f32: |got - want| / |want|.
double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  return compare_values(got, want, {.rel_l2 = 1}).rel_l2;
}

TEST(PackedLinear, RotatedCodesAreMultipliedAsTheyAreAtEveryLevel) {
  Machine machine;
  constexpr int64_t kRows = 40, kOut = 301, kIn = 768;
  StoredMatrix matrix = PackedMaker(17).make(Format::int8_convrot, kOut, kIn);
  ASSERT_EQ(matrix.rotation, 256);
  const StoredMatrix whole = expanded(matrix);
  std::vector<std::byte> codes(matrix.data.begin(), matrix.data.end());
  codes[5] = std::byte{0x80};  // -128, which rows quantised at load never have
  matrix.data = codes;
  std::vector<float> input = TorchGenerator(3).randn(kRows * kIn);
  for (int64_t i = 0; i < kRows; ++i) input[i * kIn + 7] *= 50;  // a channel that spoils the scale of its rows
  const std::vector<double> want = product_of_codes(matrix, input, kRows);
  for (int level = 0; level <= static_cast<int>(host_isa_level()); ++level) {
    const std::unique_ptr<Ops> ops = make_cpu_ops(machine.context, static_cast<IsaLevel>(level));
    const Tensor x = upload_f32(ops->device(), input.data(), {kRows, kIn}, DType::f32, "test");
    const Tensor y(ops->device(), DType::f32, {kRows, kOut}, "test");
    const std::unique_ptr<Linear> linear = ops->make_linear(spec_of(matrix, Compute::int8));
    EXPECT_EQ(linear->rotation, 256);
    EXPECT_NE(linear->kernel.find(" on int8_convrot"), std::string::npos) << linear->kernel;
    ops->linear(*linear, x, y);
    const std::vector<float> got = download_f32(y);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 4e-7 * std::fabs(want[i])) << i << " at level " << level;
    }
    // Both what rounds the weights a second time and what rounds activations as they are lose more.
    std::vector<float> exact;
    double errors[2];
    for (const Compute compute : {Compute::f32, Compute::int8}) {
      const std::unique_ptr<Linear> made = ops->make_linear(spec_of(whole, compute));
      ops->linear(*made, x, y);
      if (compute == Compute::f32) exact = download_f32(y);
      if (compute == Compute::int8) errors[0] = relative_error(download_f32(y), exact);
    }
    errors[1] = relative_error(got, exact);
    EXPECT_LT(errors[1], errors[0] / 4) << errors[0];
  }
}

// More rows and columns than a block of any level, a last panel that is not full, and an odd number of groups whose
// last scale lies across two bytes.
TEST(PackedLinear, GivesTheSameBitsOverSeveralBlocks) {
  constexpr int64_t kRows = 550, kIn = 23 * 32, kOut = 500;
  Machine machine;
  std::vector<float> input(kRows * kIn);
  for (size_t i = 0; i < input.size(); ++i) input[i] = std::sin(static_cast<float>(i) * 0.7f) * 3;
  const StoredMatrix matrix = PackedMaker(5).make(Format::q4tp, kOut, kIn), whole = expanded(matrix);
  for (int level = 0; level <= static_cast<int>(host_isa_level()); ++level) {
    const std::unique_ptr<Ops> ops = make_cpu_ops(machine.context, static_cast<IsaLevel>(level));
    const Tensor x = upload_f32(ops->device(), input.data(), {kRows, kIn}, DType::bf16, "test");
    std::vector<std::vector<float>> results;
    for (const StoredMatrix* weights : {&matrix, &whole}) {
      const Tensor y(ops->device(), DType::f32, {kRows, kOut}, "test");
      ops->linear(*ops->make_linear(spec_of(*weights, Compute::int8)), x, y);
      results.push_back(download_f32(y));
    }
    EXPECT_EQ(results[0], results[1]) << "at level " << level;
  }
}

TEST(PackedLinear, NamesKernelAndFormat) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_cpu_ops(machine.context, IsaLevel::scalar);
  const StoredMatrix q4tp = PackedMaker(1).make(Format::q4tp, 32, 256), q8 = PackedMaker(1).make(Format::q8_0, 32, 256);
  EXPECT_EQ(ops->make_linear(spec_of(q4tp, Compute::int8))->kernel, "int8_scalar on q4tp");
  EXPECT_EQ(ops->make_linear(spec_of(q4tp, Compute::packed))->kernel, "decode_f32 on q4tp");
  EXPECT_EQ(ops->make_linear(spec_of(q8, Compute::int8))->kernel, "int8_scalar");
  EXPECT_EQ(ops->make_linear(spec_of(q8, Compute::bf16))->kernel, "bf16_scalar on Q8_0");
}

// Held memory beyond the packed bytes is at most a tenth of them; scratch is shared and does not grow with the layers.
TEST(PackedLinear, HoldsNoExpandedCopy) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_cpu_ops(machine.context);
  for (const Format format : narrow_formats()) {
    const StoredMatrix matrix = PackedMaker(3).make(format, 256, 2048);
    for (const Compute compute : {Compute::int8, Compute::bf16, Compute::f16, Compute::f32, Compute::packed}) {
      if (compute == Compute::int8 && row_of(format).bits_per_weight >= 8) continue;
      std::vector<std::unique_ptr<Linear>> linears;
      linears.push_back(ops->make_linear(spec_of(matrix, compute)));  // makes the scratch
      const int64_t before = ops->device().allocated_bytes();
      for (int i = 0; i < 8; ++i) linears.push_back(ops->make_linear(spec_of(matrix, compute)));
      EXPECT_EQ(ops->device().allocated_bytes(), before) << row_of(format).name;
      EXPECT_LE(linears.back()->bytes, matrix.bytes() + matrix.bytes() / 10) << row_of(format).name;
    }
  }
}

// A plan says where int8 panels are not the codes of the file.
TEST(PackedLinear, SaysWhichCodesAreMadeAnew) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_cpu_ops(machine.context);
  const DryRules rules = cpu_dry_rules(machine.context, "");
  const auto said = [](const std::vector<std::string>& refusals) {
    return std::any_of(refusals.begin(), refusals.end(), [](const std::string& refusal) {
      return refusal.find("quantised again at load") != std::string::npos;
    });
  };
  for (const Format format : kEightBits) {
    const StoredMatrix matrix = PackedMaker(3).make(format, 64, 512);
    const bool other = format == Format::q8_0 || format == Format::q8_2f;
    for (const Compute compute : {Compute::int8, Compute::bf16}) {
      const bool expected = other && compute == Compute::int8;
      EXPECT_EQ(said(ops->make_linear(spec_of(matrix, compute))->refusals), expected) << row_of(format).name;
      EXPECT_EQ(said(rules.linear(spec_of(matrix, compute)).refusals), expected) << row_of(format).name;
    }
  }
}

// Eight bits and more are packed once, and the copy replaces the file's pages: at most the size of the file.
TEST(PackedLinear, Int8CopiesAreNoLargerThanTheFile) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_cpu_ops(machine.context);
  for (const Format format : {Format::q8_row, Format::q8_0, Format::int8_convrot, Format::bf16}) {
    const StoredMatrix matrix = PackedMaker(3).make(format, 512, 2048);
    const std::unique_ptr<Linear> linear = ops->make_linear(spec_of(matrix, Compute::int8));
    EXPECT_LE(linear->bytes, matrix.bytes() + matrix.bytes() / 10) << row_of(format).name;
  }
}

}  // namespace
}  // namespace h3
