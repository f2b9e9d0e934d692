#include "backends/start_check.h"

#include <cmath>
#include <vector>

#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "base/error.h"
#include "ops/shadow.h"
#include "quant/encode.h"

namespace h3 {
namespace {

// Values of a fixed sequence in -1 .. 1.
std::vector<float> values(int64_t count, uint32_t seed) {
  std::vector<float> out(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761u + 1;
  for (float& v : out) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(static_cast<int32_t>(state)) / 2147483648.0f;
  }
  return out;
}

template <typename T>
StoredMatrix matrix_of(Format format, int64_t rows, int64_t cols, std::vector<T> stored) {
  const auto kept = std::make_shared<const std::vector<T>>(std::move(stored));
  StoredMatrix matrix;
  matrix.format = format;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.data = std::as_bytes(std::span<const T>(*kept));
  matrix.keep_alive = kept;
  return matrix;
}

// Any codes but those of large exponents, two of which are NaN.
std::vector<uint8_t> float8_codes(int64_t count) {
  std::vector<uint8_t> codes;
  for (const float value : values(count, 9)) {
    codes.push_back(static_cast<uint8_t>(static_cast<int>(value * 128 + 128) & 0xbf));
  }
  return codes;
}

void check_matmul(Ops& ops, Compute compute, DType type, const char* name, const StoredMatrix& matrix) {
  constexpr int64_t kRows = 33;
  LinearSpec spec;
  spec.label = std::string("start-up check, ") + name;
  spec.weight.append(matrix, 0, matrix.rows);
  spec.bias = values(matrix.rows, 5);
  spec.compute = compute;
  spec.max_rows = kRows;
  const std::unique_ptr<Linear> linear = ops.make_linear(std::move(spec));
  const Tensor x =
      upload_f32(ops.device(), values(kRows * matrix.cols, 7).data(), {kRows, matrix.cols}, type, "start-up check");
  const Tensor y(ops.device(), type, {kRows, matrix.rows}, "start-up check");
  ops.linear(*linear, x, y);
  ops.linear(*linear, x.view.slice(0, 0, 1), y.view.slice(0, 0, 1));
}

void check_attention(Ops& ops, DType type, int64_t width, bool causal) {
  constexpr int64_t kRows = 80, kHeads = 2;
  const auto tensor = [&](uint32_t seed) {
    return upload_f32(ops.device(), values(kRows * kHeads * width, seed).data(), {kRows, kHeads, width}, type,
                      "start-up check");
  };
  const Tensor q = tensor(11), k = tensor(13), v = tensor(17), out = tensor(19);
  AttentionArgs args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.out = out;
  args.scale = static_cast<float>(4 / std::sqrt(static_cast<double>(width)));
  args.causal = causal;
  ops.attention(args);
}

}  // namespace

std::string start_check(std::unique_ptr<Ops> card) {
  Context& context = card->context();
  try {
    const std::unique_ptr<Ops> both = make_shadow(std::move(card), make_ref_ops(context));
    const StoredMatrix plain = matrix_of(Format::f32, 96, 256, values(96 * 256, 3));
    MatrixSource source;
    source.append(plain, 0, plain.rows);
    const EncodedMatrix packed = encode_matrix(Format::q4tp, reader_of(source), "start-up check", context.pool);
    check_matmul(*both, Compute::f32, DType::f32, "f32", plain);
    check_matmul(*both, Compute::bf16, DType::bf16, "bf16", plain);
    check_matmul(*both, Compute::f16, DType::f16, "f16", plain);
    check_matmul(*both, Compute::int8, DType::bf16, "int8", plain);
    check_matmul(*both, Compute::packed, DType::bf16, "q4tp", packed.matrix);
    check_matmul(*both, Compute::packed, DType::bf16, "e4m3",
                 matrix_of(Format::f8_e4m3, 96, 256, float8_codes(96 * 256)));
    for (const DType type : {DType::bf16, DType::f16}) {
      for (const int64_t width : {64, 128}) check_attention(*both, type, width, false);
    }
    check_attention(*both, DType::bf16, 128, true);
    both->sync();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace h3
