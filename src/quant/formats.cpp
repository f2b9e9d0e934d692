#include "quant/formats.h"

#include "base/error.h"
#include "codec/rotation.h"
#include "quant/codecs.h"
#include "quant/matrix.h"

namespace h3 {
namespace {

template <typename Codec>
void decode_row(const StoredMatrix& matrix, int64_t row, float* out) {
  const PackedRows m = packed_rows(matrix);
  float table[Codec::kTable ? kRowTable : 1];
  if (Codec::kTable) Codec::begin(m, row, table);
  int64_t col = 0;
  for (; col + 8 <= m.cols; col += 8) Codec::decode(m, table, row, col, 8, out + col);
  if (col < m.cols) Codec::decode(m, table, row, col, static_cast<int>(m.cols - col), out + col);
  if (Codec::kRotates && m.rotation > 0) {
    for (int64_t group = 0; group < m.cols; group += m.rotation) rotate_group(out + group, m.rotation);
  }
  if (m.pre_scale != nullptr) {
    for (int64_t i = 0; i < m.cols; ++i) out[i] *= load_f32(m.pre_scale + 4 * i);
  }
}

constexpr FormatRow kFormats[] = {
#define H3_ROW(codec, name, bits, block, begin) \
  {Format::codec, name, bits, block, codec##_bytes, decode_row<codec##_codec>},
    H3_WEIGHT_FORMATS(H3_ROW) H3_NUMBER_FORMATS(H3_ROW)
#undef H3_ROW
};

constexpr bool rows_in_order() {
  int i = 0;
  for (const FormatRow& row : kFormats) {
    if (static_cast<int>(row.format) != i++) return false;
  }
  return true;
}
static_assert(rows_in_order(), "row_of indexes the table by the enumerator");

// What check_matrix compares: the planes of a format and the bytes they must have.
class Checker {
 public:
  Checker(const StoredMatrix& matrix, const std::string& tensor) : m_(matrix), tensor_(tensor) {}

  void run() const {
    const FormatRow& row = row_of(m_.format);
    if (m_.rows < 0 || m_.cols < 0 || (m_.cols > 0 && m_.rows > (int64_t{1} << 56) / m_.cols)) {
      bad("the shape is out of range");
    }
    if (m_.cols % row.block_cols != 0) {
      bad(strf("%lld columns are not a multiple of %d, the block of this format", static_cast<long long>(m_.cols),
               row.block_cols));
    }
    expect("data", m_.data, {row.data_bytes(m_.rows, m_.cols)});
    expect("scale", m_.scale, scale_sizes());
    expect("second scale", m_.scale2, {m_.format == Format::nvfp4 ? 4 : m_.format == Format::w4a8 ? 4 * m_.rows : 0});
    expect("codebook", m_.codebook, {0, m_.format == Format::w4a8 ? 64 : 0});
    expect("pre_quant_scale", m_.pre_scale, {0, 4 * m_.cols});
    check_rotation();
  }

 private:
  [[noreturn]] void bad(const std::string& problem) const {
    fail(Code::data, "tensor '%s' [%lld, %lld] in format %s: %s", tensor_.c_str(), static_cast<long long>(m_.rows),
         static_cast<long long>(m_.cols), row_of(m_.format).name, problem.c_str());
  }

  std::vector<int64_t> scale_sizes() const {
    switch (m_.format) {
      case Format::f8_e4m3:
      case Format::f8_e5m2: return {0, 4, 4 * m_.rows};
      case Format::int8_convrot: return {4, 4 * m_.rows};
      case Format::w4a8: return {m_.rows * (m_.cols / 16)};
      case Format::nvfp4: return {nvfp4_scale_bytes(m_.rows, m_.cols)};
      default: return {0};
    }
  }

  void expect(const char* plane, std::span<const std::byte> found, const std::vector<int64_t>& sizes) const {
    std::string allowed;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (static_cast<int64_t>(found.size()) == sizes[i]) return;
      allowed += (i > 0 ? " or " : "") + std::to_string(sizes[i]);
    }
    bad(strf("%zu bytes of %s, %s are needed; the file is damaged or the format is declared wrongly", found.size(),
             plane, allowed.c_str()));
  }

  void check_rotation() const {
    if (m_.rotation == 0) return;
    const bool rotates = m_.format == Format::int8_convrot || m_.format == Format::w4a8;
    if (!rotates) bad("rows of this format are never rotated");
    int32_t group = m_.rotation;
    while (group > 1 && group % 4 == 0) group /= 4;
    if (group == 1 && m_.rotation >= 4 && m_.rotation <= kMaxRotation && m_.cols % m_.rotation == 0) return;
    bad(strf("a rotation group of %d columns; allowed are powers of 4 from 4 to %d that divide the columns",
             m_.rotation, kMaxRotation));
  }

  const StoredMatrix& m_;
  const std::string& tensor_;
};

}  // namespace

const FormatRow& row_of(Format format) {
  H3_ASSERT(static_cast<size_t>(format) < std::size(kFormats));
  return kFormats[static_cast<size_t>(format)];
}

void check_matrix(const StoredMatrix& matrix, const std::string& tensor) { Checker(matrix, tensor).run(); }

}  // namespace h3
