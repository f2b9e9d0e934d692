#include "backends/cuda/weight_upload.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "codec/int8_row.h"
#include "codec/scalar.h"

namespace h3::cuda {
namespace {

constexpr int64_t kStageBytes = int64_t{64} << 20;    // of rows decoded at a time
constexpr int64_t kConvertBytes = int64_t{32} << 20;  // of numbers that the card converts at a time

// Of a format of plain numbers.
std::optional<DType> number_type(Format format) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    if (format == stored_as(type)) return type;
  }
  return std::nullopt;
}

bool exact_in(DType type, const std::vector<float>& values) {
  for (float v : values) {
    if (type == DType::bf16 && bf16_to_f32(f32_to_bf16(v)) != v) return false;
    if (type == DType::f16 && f16_to_f32(f32_to_f16(v)) != v) return false;
  }
  return true;
}

uint16_t narrow(DType type, float value) {
  if (type == DType::bf16) return f32_to_bf16(value);
  const float limit = 65504.0f;  // f16 operands saturate
  return f32_to_f16(value > limit ? limit : value < -limit ? -limit : value);
}

// One row of values as operands; int8 returns its scale.
float pack_row(DType operand, const float* values, int64_t cols, std::byte* out) {
  if (operand == DType::f32) {
    std::memcpy(out, values, static_cast<size_t>(cols) * 4);
    return 0;
  }
  if (operand == DType::i8) {
    uint32_t top = 0;
    for (int64_t i = 0; i < cols; ++i) top = std::max(top, f32_bits(values[i]) & 0x7fffffffu);
    const float absmax = f32_from_bits(top), inverse = int8_row_inverse(absmax);
    for (int64_t i = 0; i < cols; ++i) out[i] = static_cast<std::byte>(int8_row_quantise(values[i], inverse));
    return int8_row_scale(absmax);
  }
  for (int64_t i = 0; i < cols; ++i) {
    const uint16_t v = narrow(operand, values[i]);
    std::memcpy(out + 2 * i, &v, 2);
  }
  return 0;
}

// Where the operands of one weight go.
class Target {
 public:
  Target(CudaOps& ops, CudaLinear& linear, StreamGroup* group, int64_t bytes)
      : ops_(ops), linear_(linear), group_(group) {
    if (group_ != nullptr) {
      linear_.offset = group_->reserve(bytes);
    } else {
      linear_.data = ops_.device().allocate(bytes, linear_.label.c_str());
    }
  }
  void noise(int64_t at, const NoiseWeights& noise, int64_t first, int64_t count) {
    if (group_ != nullptr) return group_->put_noise(linear_.offset + at, noise, first, count, linear_.operand);
    fill_noise(ops_.stream(), noise, first, count, address(at), linear_.operand);
  }
  void stored(int64_t at, std::span<const std::byte> bytes, const std::shared_ptr<const void>& keep_alive) {
    if (group_ != nullptr) return group_->put(linear_.offset + at, {bytes}, keep_alive);
    upload(at, bytes);
  }
  // Rows of numbers of another type: false when the host has to convert them.
  bool converted(int64_t at, std::span<const std::byte> bytes, DType type, int64_t cols) {
    if (group_ != nullptr) return false;
    const int64_t row = cols * size_of(type), rows = static_cast<int64_t>(bytes.size()) / row;
    const int64_t step = std::max<int64_t>(1, kConvertBytes / row);
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t count = std::min(step, rows - first);
      void* const numbers = ops_.scratch(kOperandScratch, count * row);
      device().upload_pieces(numbers,
                             {bytes.subspan(static_cast<size_t>(first * row), static_cast<size_t>(count * row))});
      cast_rows(ops_.stream(), make_view(ops_.device(), numbers, type, {count, cols}),
                address(at + first * cols * size_of(linear_.operand)), linear_.operand, linear_.operand == DType::f16);
    }
    return true;
  }
  void made(int64_t at, std::vector<std::byte> bytes) {
    if (group_ == nullptr) return upload(at, bytes);
    struct Kept {
      std::shared_ptr<const void> claim;
      std::vector<std::byte> bytes;
    };
    const auto kept = std::make_shared<Kept>();
    kept->claim = device().claim_host(static_cast<int64_t>(bytes.size()), linear_.label.c_str());
    kept->bytes = std::move(bytes);
    group_->put(linear_.offset + at, {kept->bytes}, kept);
  }

 private:
  std::byte* address(int64_t at) const { return static_cast<std::byte*>(linear_.data.data()) + at; }
  CudaDevice& device() { return static_cast<CudaDevice&>(ops_.device()); }
  void upload(int64_t at, std::span<const std::byte> bytes) { device().upload_pieces(address(at), {bytes}); }

  CudaOps& ops_;
  CudaLinear& linear_;
  StreamGroup* group_;
};

// What needs no decoding on the host: false when this part does.
bool place(Target& target, DType operand, const MatrixSource::Part& part, int64_t at) {
  const StoredMatrix& matrix = part.matrix;
  if (matrix.format == Format::noise) {  // made on the card
    NoiseWeights noise;
    std::memcpy(&noise, matrix.data.data(), sizeof noise);
    target.noise(at, noise, part.first * matrix.cols, part.rows * matrix.cols);
    return true;
  }
  const std::optional<DType> type = number_type(matrix.format);
  if (!type || !matrix.pre_scale.empty()) return false;
  const int64_t row = matrix.cols * size_of(*type);
  const auto bytes = matrix.data.subspan(static_cast<size_t>(part.first * row), static_cast<size_t>(part.rows * row));
  if (*type != operand) return target.converted(at, bytes, *type, matrix.cols);
  target.stored(at, bytes, matrix.keep_alive);
  return true;
}

}  // namespace

Format stored_as(DType type) {
  return type == DType::f32 ? Format::f32 : type == DType::bf16 ? Format::bf16 : Format::f16;
}

void upload_operands(CudaOps& ops, CudaLinear& linear, const MatrixSource& source, StreamGroup* group) {
  const int64_t cols = source.cols, pitch = linear.in_padded * size_of(linear.operand);
  const bool int8 = linear.operand == DType::i8;
  Target target(ops, linear, group, linear.out_padded * pitch);
  const int64_t step = std::max<int64_t>(1, kStageBytes / (cols * 4));
  std::vector<float> decoded, scales(static_cast<size_t>(source.rows));
  int64_t row = 0;
  for (const MatrixSource::Part& part : source.parts) {
    const StoredMatrix& matrix = part.matrix;
    if (int8 || !place(target, linear.operand, part, row * pitch)) {
      const FormatRow& format = row_of(matrix.format);
      for (int64_t done = 0; done < part.rows; done += step) {
        const int64_t count = std::min(step, part.rows - done);
        decoded.resize(static_cast<size_t>(count * cols));
        std::vector<std::byte> packed(static_cast<size_t>(count * pitch));  // zeros behind the columns
        ops.context().pool.parallel(count, [&](int64_t r) {
          format.decode_row(matrix, part.first + done + r, &decoded[r * cols]);
          scales[row + done + r] = pack_row(linear.operand, &decoded[r * cols], cols, &packed[r * pitch]);
        });
        target.made((row + done) * pitch, std::move(packed));
      }
    }
    row += part.rows;
  }
  if (!int8) return;
  if (linear.out_padded > source.rows) {
    const int64_t padding = (linear.out_padded - source.rows) * pitch;
    target.made(source.rows * pitch, std::vector<std::byte>(static_cast<size_t>(padding)));
  }
  linear.scales = ops.device().allocate(source.rows * 4, linear.label.c_str());
  ops.device().upload(scales.data(), make_view(ops.device(), linear.scales.data(), DType::f32, {source.rows}));
}

void upload_bias(CudaOps& ops, CudaLinear& linear, const std::vector<float>& bias) {
  if (bias.empty()) return;
  const int64_t n = static_cast<int64_t>(bias.size());
  const char* label = linear.label.c_str();
  linear.bias_f32 = ops.device().allocate(n * 4, label);
  ops.device().upload(bias.data(), make_view(ops.device(), linear.bias_f32.data(), DType::f32, {n}));
  if (linear.operand != DType::bf16 && linear.operand != DType::f16) return;
  if (!exact_in(linear.operand, bias)) return;
  std::vector<uint16_t> values(bias.size());
  for (size_t i = 0; i < bias.size(); ++i) values[i] = narrow(linear.operand, bias[i]);
  linear.bias_epilogue = ops.device().allocate(n * 2, label);
  linear.epilogue_type = linear.operand;
  ops.device().upload(values.data(), make_view(ops.device(), linear.bias_epilogue.data(), linear.operand, {n}));
}

}  // namespace h3::cuda
