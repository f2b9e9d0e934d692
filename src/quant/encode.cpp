#include "quant/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "codec/rotation.h"
#include "quant/codecs.h"

namespace h3 {
namespace {

constexpr int64_t kChunkFloats = int64_t{4} << 20;  // weights read at a time
constexpr int64_t kColumnBlock = 256;               // rows of a partial sum of q8_2f, columns of a task of it

int64_t chunk_of(const RowReader& source) {
  return std::max<int64_t>(1, kChunkFloats / std::max<int64_t>(1, source.cols));
}

// The largest magnitude that the scales of a format hold (they are f16 or the values themselves).
float limit_of(Format format) {
  switch (format) {
    case Format::f16: return 65520.0f;
    case Format::q8_row: return 65520.0f * 127;
    case Format::q4tp: return 65520.0f * 7;
    case Format::q2tp: return 65520.0f * 1.5f;
    case Format::bf16: return 3.39617752923046e38f;  // half way to the next power of two
    default: return INFINITY;
  }
}

class Encoder {
 public:
  Encoder(Format format, const RowReader& source, const std::string& tensor, ThreadPool& pool,
          const EncodeOptions& options)
      : format_(format), source_(source), tensor_(tensor), pool_(pool), options_(options) {
    const std::string refusal = encode_refusal(format, source.rows, source.cols, options);
    if (!refusal.empty()) {
      fail(Code::data, "tensor '%s' [%lld, %lld] cannot be stored as %s: %s", tensor.c_str(),
           static_cast<long long>(source.rows), static_cast<long long>(source.cols), row_of(format).name,
           refusal.c_str());
    }
  }

  EncodedMatrix run() {
    make_planes();
    if (format_ == Format::nvfp4) find_global();
    if (format_ == Format::q8_2f) find_column_scales();
    EncodedMatrix result;
    std::vector<ErrorStats> errors;
    for_chunks([&](int64_t first, int64_t count, float* weights) {
      errors.assign(static_cast<size_t>(count), {});
      pool_.parallel(count, [&](int64_t r) { errors[r] = encode_row(first + r, weights + r * source_.cols); });
      for (const ErrorStats& e : errors) result.error.add(e);
    });
    result.matrix = matrix_;
    return result;
  }

 private:
  template <typename F>
  void for_chunks(F f) {
    const int64_t step = chunk_of(source_);
    std::vector<float> weights(static_cast<size_t>(std::min(step, source_.rows) * source_.cols));
    for (int64_t first = 0; first < source_.rows; first += step) {
      const int64_t count = std::min(step, source_.rows - first);
      source_.read(first, count, weights.data());
      f(first, count, weights.data());
    }
  }

  void make_planes() {
    const int64_t rows = source_.rows, cols = source_.cols, data = row_of(format_).data_bytes(rows, cols);
    const int64_t scale = format_ == Format::nvfp4          ? nvfp4_scale_bytes(rows, cols)
                          : format_ == Format::int8_convrot ? 4 * rows
                                                            : 0;
    const int64_t scale2 = format_ == Format::nvfp4 ? 4 : 0;
    auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(data + scale + scale2));
    matrix_.format = format_;
    matrix_.rows = rows;
    matrix_.cols = cols;
    std::byte* p = bytes->data();
    matrix_.data = {p, static_cast<size_t>(data)};
    matrix_.scale = {p + data, static_cast<size_t>(scale)};
    matrix_.scale2 = {p + data + scale, static_cast<size_t>(scale2)};
    if (format_ == Format::int8_convrot) matrix_.rotation = options_.rotation;
    matrix_.keep_alive = bytes;
    check_matrix(matrix_, tensor_);
    data_ = reinterpret_cast<uint8_t*>(p);
    scale_ = data_ + data;
    scale2_ = scale_ + scale;
  }

  float row_absmax(int64_t row, const float* w) const {
    float top = 0;
    for (int64_t i = 0; i < source_.cols; ++i) {
      const float a = std::fabs(w[i]);
      if (!(a < limit_of(format_))) {
        fail(Code::data, "tensor '%s': weight [%lld, %lld] is %g; %s holds finite values below %g", tensor_.c_str(),
             static_cast<long long>(row), static_cast<long long>(i), static_cast<double>(w[i]), row_of(format_).name,
             static_cast<double>(limit_of(format_)));
      }
      top = std::max(top, a);
    }
    return top;
  }

  void find_global() {
    global_ = options_.global;
    if (global_ == 0) {
      float top = 0;
      for_chunks([&](int64_t first, int64_t count, const float* weights) {
        for (int64_t r = 0; r < count; ++r) top = std::max(top, row_absmax(first + r, weights + r * source_.cols));
      });
      global_ = nvfp4_global(top);
    }
    store_f32(scale2_, global_);
  }

  // f16 of the root mean square of every column; sums in double over blocks of rows, then over the blocks.
  void find_column_scales() {
    const int64_t cols = source_.cols;
    std::vector<double> total(static_cast<size_t>(cols)), block(static_cast<size_t>(cols));
    int64_t in_block = 0;
    const auto flush = [&] {
      for (int64_t c = 0; c < cols; ++c) total[c] += block[c];
      std::fill(block.begin(), block.end(), 0.0);
      in_block = 0;
    };
    for_chunks([&](int64_t first, int64_t count, const float* weights) {
      for (int64_t r = 0; r < count; ++r) {
        const float* w = weights + r * cols;
        row_absmax(first + r, w);
        for (int64_t c = 0; c < cols; ++c) block[c] += static_cast<double>(w[c]) * static_cast<double>(w[c]);
        if (++in_block == kColumnBlock) flush();
      }
    });
    flush();
    uint8_t* column = data_ + source_.rows * (cols + 2);
    for (int64_t c = 0; c < cols; ++c) {
      const float rms = static_cast<float>(std::max(std::sqrt(total[c] / static_cast<double>(source_.rows)), 1e-12));
      if (!(rms < 65520.0f)) {
        fail(Code::data, "tensor '%s': column %lld has the mean magnitude %g; the column scales of %s end at 65504",
             tensor_.c_str(), static_cast<long long>(c), static_cast<double>(rms), row_of(format_).name);
      }
      store_u16(column + 2 * c, scale_to_f16_cmf(rms));
    }
  }

  void encode_nvfp4(int64_t row, const float* w) {
    const int64_t cols = source_.cols, width = nvfp4_row_bytes(cols);
    for (int64_t block = 0; block < width / 8; ++block) {
      float padded[16] = {};
      std::copy_n(w + 16 * block, std::min<int64_t>(16, cols - 16 * block), padded);
      scale_[nvfp4_scale_offset(row, block, cols)] =
          nvfp4_encode_block(padded, global_, data_ + row * width + 8 * block);
    }
  }

  void encode_convrot(int64_t row, const float* w) {
    const int64_t cols = source_.cols;
    std::vector<float> rotated(w, w + cols);
    for (int64_t g = 0; options_.rotation > 0 && g < cols; g += options_.rotation) {
      rotate_group(&rotated[g], options_.rotation);
    }
    float top = 0;
    for (const float v : rotated) top = std::max(top, std::fabs(v));
    const float scale = int8_convrot_scale(top);
    store_f32(scale_ + 4 * row, scale);
    for (int64_t i = 0; i < cols; ++i)
      data_[row * cols + i] = static_cast<uint8_t>(int8_convrot_quantise(rotated[i], scale));
  }

  void encode_bytes(int64_t row, const float* w) {
    const int64_t rows = source_.rows, cols = source_.cols, groups = cols / 32;
    switch (format_) {
      case Format::f32: std::memcpy(data_ + row * cols * 4, w, static_cast<size_t>(cols) * 4); break;
      case Format::f16:
        for (int64_t i = 0; i < cols; ++i) store_u16(data_ + 2 * (row * cols + i), f32_to_f16_cmf(w[i]));
        break;
      case Format::bf16:
        for (int64_t i = 0; i < cols; ++i) store_u16(data_ + 2 * (row * cols + i), f32_to_bf16(w[i]));
        break;
      case Format::q8_row: q8_row_encode_row(w, cols, data_ + row * cols, data_ + rows * cols + 2 * row); break;
      case Format::q8_2f:
        q8_2f_encode_row(w, cols, data_ + rows * (cols + 2), data_ + row * cols, data_ + rows * cols + 2 * row);
        break;
      case Format::q4tp:
        q4tp_encode_row(w, cols, options_.search, data_ + row * groups * 16, data_ + rows * groups * 16 + 4 * row,
                        data_ + rows * (groups * 16 + 4) + row * rung_bytes(groups));
        break;
      case Format::q2tp:
        q2tp_encode_row(w, cols, options_.search, data_ + row * groups * 8, data_ + rows * groups * 8 + 4 * row,
                        data_ + rows * (groups * 8 + 4) + row * rung_bytes(groups));
        break;
      case Format::int8_convrot: encode_convrot(row, w); break;
      case Format::nvfp4: encode_nvfp4(row, w); break;
      default: H3_ASSERT(false);
    }
  }

  ErrorStats encode_row(int64_t row, const float* w) {
    row_absmax(row, w);
    encode_bytes(row, w);
    std::vector<float> decoded(static_cast<size_t>(source_.cols));
    row_of(format_).decode_row(matrix_, row, decoded.data());
    ErrorStats error;
    for (int64_t i = 0; i < source_.cols; ++i) {
      const double v = static_cast<double>(w[i]), d = static_cast<double>(decoded[i]) - v;
      error.squares += d * d;
      error.reference += v * v;
      error.max_abs = std::max(error.max_abs, std::fabs(d));
    }
    return error;
  }

  Format format_;
  const RowReader& source_;
  const std::string& tensor_;
  ThreadPool& pool_;
  const EncodeOptions& options_;
  StoredMatrix matrix_;
  uint8_t *data_ = nullptr, *scale_ = nullptr, *scale2_ = nullptr;
  float global_ = 0;
};

bool has_encoder(Format format) {
  switch (format) {
    case Format::f32:
    case Format::f16:
    case Format::bf16:
    case Format::q8_row:
    case Format::q8_2f:
    case Format::q4tp:
    case Format::q2tp:
    case Format::int8_convrot:
    case Format::nvfp4: return true;
    default: return false;
  }
}

}  // namespace

double ErrorStats::rel_l2() const { return reference > 0 ? std::sqrt(squares / reference) : std::sqrt(squares); }

void ErrorStats::add(const ErrorStats& other) {
  squares += other.squares;
  reference += other.reference;
  max_abs = std::max(max_abs, other.max_abs);
}

std::string encode_refusal(Format format, int64_t rows, int64_t cols, const EncodeOptions& options) {
  const FormatRow& row = row_of(format);
  if (!has_encoder(format)) return "this format is read, not written";
  if (rows < 1 || cols < 1) return "it has no weights";
  if (cols % row.block_cols != 0) {
    return strf("%lld columns are not a multiple of %d", static_cast<long long>(cols), row.block_cols);
  }
  if (format == Format::q8_2f && rows < 2) return "one row has no use for column scales";
  if (format == Format::int8_convrot && options.rotation > 0 && cols % options.rotation != 0) {
    return strf("%lld columns are not a multiple of the rotation group of %d", static_cast<long long>(cols),
                options.rotation);
  }
  return {};
}

EncodedMatrix encode_matrix(Format format, const RowReader& source, const std::string& tensor, ThreadPool& pool,
                            const EncodeOptions& options) {
  return Encoder(format, source, tensor, pool, options).run();
}

RowReader reader_of(const MatrixSource& source) {
  return {source.rows, source.cols,
          [&source](int64_t first, int64_t count, float* out) { source.decode_rows(first, count, out); }};
}

}  // namespace h3
