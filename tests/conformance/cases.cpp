#include "tests/conformance/cases.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "codec/scalar.h"
#include "tests/support/packed_matrix.h"

namespace h3::conformance {

double Env::uniform() {
  state_ += 0x9e3779b97f4a7c15u;  // SplitMix64
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

int64_t Env::below(int64_t n) { return std::min(n - 1, static_cast<int64_t>(uniform() * static_cast<double>(n))); }

std::vector<float> Env::values(int64_t n, float low, float high) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& e : v) e = low + (high - low) * static_cast<float>(uniform());
  return v;
}

View Env::make(const std::vector<int64_t>& dims, DType type, Layout layout, float low, float high, bool activation) {
  std::vector<int64_t> whole = dims;
  constexpr int64_t kBefore = 3, kAfter = 2;  // elements around each row
  if (layout == Layout::strided) whole.back() += kBefore + kAfter;
  int64_t n = 1;
  for (int64_t d : whole) n *= d;
  std::vector<float> v = values(n, low, high);
  if (activation && nan_) {
    const int64_t row = below(n / whole.back()), offset = layout == Layout::strided ? kBefore : 0;
    v[row * whole.back() + offset + below(dims.back())] = std::numeric_limits<float>::quiet_NaN();
    nan_ = false;
  }
  View view = tensors_.emplace_back(upload_f32(ops.device(), v.data(), whole, type, "operand")).view;
  if (layout == Layout::strided) view = view.slice(view.rank - 1, kBefore, dims.back());
  return view;
}

View Env::in(const std::vector<int64_t>& dims, DType type, Layout layout, float scale) {
  return make(dims, type, layout, -scale, scale, true);
}

View Env::out(const std::vector<int64_t>& dims, DType type, Layout layout) {
  return also_output(make(dims, type, layout, -1000, 1000, false));
}

View Env::inout(const std::vector<int64_t>& dims, DType type, Layout layout, float scale) {
  return also_output(make(dims, type, layout, -scale, scale, true));
}

View Env::parameter(const std::vector<int64_t>& dims, float low, float high, DType type) {
  return make(dims, type, Layout::packed, low, high, false);
}

View Env::integers(const std::vector<int32_t>& values) {
  return tensors_.emplace_back(upload_i32(ops.device(), values, "ids")).view;
}

View Env::bytes(const std::vector<int64_t>& dims, const std::vector<uint8_t>& values) {
  const View view = tensors_.emplace_back(ops.device(), DType::u8, dims, "mask").view;
  ops.device().upload(values.data(), view);
  return view;
}

View Env::ids(int64_t count, int64_t limit) {
  std::vector<int32_t> v(static_cast<size_t>(count));
  for (int32_t& id : v) id = static_cast<int32_t>(below(limit));
  return integers(v);
}

View Env::distinct_ids(int64_t count, int64_t limit) {
  H3_ASSERT(count <= limit);
  std::vector<int32_t> v(static_cast<size_t>(limit));
  for (int64_t i = 0; i < limit; ++i) v[i] = static_cast<int32_t>(i);
  for (int64_t i = 0; i < count; ++i) std::swap(v[i], v[i + below(limit - i)]);
  v.resize(static_cast<size_t>(count));
  return integers(v);
}

namespace {

// Rows 1 .. out, the second half first.
MatrixSource take_rows(const StoredMatrix& stored, int64_t out) {
  MatrixSource source;
  const int64_t half = out / 2;
  source.append(stored, 1 + half, out - half);
  if (half > 0) source.append(stored, 1, half);
  return source;
}

}  // namespace

MatrixSource Env::weight(int64_t out, int64_t in, Format format) {
  const int64_t rows = out + 1;  // one row is never taken
  if (format != Format::f32 && format != Format::bf16) {
    PackedMaker maker(static_cast<uint64_t>(below(int64_t{1} << 40)));
    return take_rows(maker.make(format, rows, in), out);
  }
  const std::vector<float> v = values(rows * in, -1, 1);
  const int64_t size = format == Format::f32 ? 4 : 2;
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(rows * in * size));
  for (int64_t i = 0; i < rows * in; ++i) {
    const uint16_t narrow = f32_to_bf16(v[i]);
    std::memcpy(bytes->data() + i * size, format == Format::f32 ? static_cast<const void*>(&v[i]) : &narrow,
                static_cast<size_t>(size));
  }
  StoredMatrix stored;
  stored.format = format;
  stored.rows = rows;
  stored.cols = in;
  stored.data = *bytes;
  stored.keep_alive = bytes;
  return take_rows(stored, out);
}

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string text;
  for (int64_t d : dims) text += (text.empty() ? "" : "x") + std::to_string(d);
  return text;
}

const char* layout_text(Layout layout) { return layout == Layout::packed ? "" : " strided"; }

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    add_move_cases(all);
    add_pointwise_cases(all);
    add_norm_cases(all);
    add_linear_cases(all);
    add_attention_cases(all);
    add_conv_cases(all);
    return all;
  }();
  return cases;
}

}  // namespace h3::conformance
