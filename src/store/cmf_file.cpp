// Reading CMF files (spec formats A.1 to A.4).
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "store/cmf.h"

namespace h3 {
namespace {

constexpr uint8_t kMagic[4] = {'C', 'M', 'F', 1};
constexpr uint32_t kVersion = 2;
constexpr uint64_t kRecordBytes = 56;
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr int kMaxDims = 6;

// Feature bits (A.1): directory, masks, two-field q8, loop masks. Masks change nothing for this model.
constexpr uint32_t kReadable = 1u << 0 | 1u << 1 | 1u << 2 | 1u << 5;

constexpr CmfDtype kDtypes[] = {
    {0, "f32", Format::f32},
    {1, "f16", Format::f16},
    {2, "bf16", Format::bf16},
    {3, "q8_row", Format::q8_row},
    {4, "q4_block", {}},
    {5, "mix8_4", {}},
    {kCmfRaw, "bytes", Format::u8},
    {7, "q4_col", {}},
    {8, "vbit", {}},
    {9, "q8_2f", Format::q8_2f},
    {10, "vbit_ro", {}},
    {11, "q4_tiled", {}},
    {12, "q1", {}},
    {13, "q1s", {}},
    {14, "q1t", {}},
    {15, "q4tp", Format::q4tp},
    {16, "q2tp", Format::q2tp},
};

constexpr bool ids_in_order() {
  uint8_t next = 0;
  for (const CmfDtype& row : kDtypes) {
    if (row.id != next++) return false;
  }
  return true;
}
static_assert(ids_in_order(), "the table is indexed by the id");

uint64_t load(const uint8_t* from, int count) {
  uint64_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | from[i];
  return value;
}

unsigned long long print(uint64_t value) { return value; }

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_sequence(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Rows and columns as the formats see a tensor.
std::pair<int64_t, int64_t> matrix_shape(const std::vector<int64_t>& dims) {
  int64_t rows = dims.empty() ? 1 : dims[0], cols = 1;
  for (size_t i = 1; i < dims.size(); ++i) cols *= dims[i];
  return {rows, cols};
}

}  // namespace

std::span<const CmfDtype> cmf_dtypes() { return kDtypes; }

std::optional<uint8_t> cmf_dtype_of(Format format) {
  for (const CmfDtype& row : kDtypes) {
    if (row.format == format) return row.id;
  }
  return std::nullopt;
}

bool CmfFile::is_cmf(std::span<const std::byte> start) {
  return start.size() >= sizeof kMagic && std::memcmp(start.data(), kMagic, sizeof kMagic) == 0;
}

CmfFile::CmfFile(const std::string& path, bool open_damaged) : path_(path), map_(path), bytes_(map_.bytes()) {
  parse(open_damaged);
}

CmfFile::CmfFile(const std::string& name, std::span<const std::byte> bytes, bool open_damaged)
    : path_(name), bytes_(bytes) {
  parse(open_damaged);
}

void CmfFile::parse(bool open_damaged) {
  read_envelope(open_damaged);
  read_header();
  read_directory(open_damaged);
}

void CmfFile::read_envelope(bool open_damaged) {
  if (!is_cmf(bytes_))
    fail(Code::data, "%s: offset 0: not a CMF file: it does not start with 'CMF' and 1", path_.c_str());
  if (bytes_.size() < CmfEnvelope::kBytes) {
    fail(Code::data, "%s: truncated: %zu bytes, a CMF file starts with an envelope of %llu", path_.c_str(),
         bytes_.size(), print(CmfEnvelope::kBytes));
  }
  const uint8_t* raw = reinterpret_cast<const uint8_t*>(bytes_.data());
  const uint64_t version = load(raw + 4, 4);
  if (version != kVersion) {
    fail(Code::data, "%s: offset 4: CMF version %llu; only %u is known", path_.c_str(), print(version), kVersion);
  }
  envelope_.flags = static_cast<uint32_t>(load(raw + 8, 4));
  envelope_.features = static_cast<uint32_t>(load(raw + 12, 4));
  if (const uint32_t unknown = envelope_.features & ~kReadable; unknown != 0) {
    fail(Code::data, "%s: offset 12: the file needs features 0x%x, of which 0x%x are not supported", path_.c_str(),
         envelope_.features, unknown);
  }
  CmfSection* const sections[] = {&envelope_.header, &envelope_.directory, &envelope_.data,
                                  &envelope_.masks,  &envelope_.vocab,     &envelope_.index};
  for (size_t i = 0; i < std::size(sections); ++i) {
    CmfSection& section = *sections[i];
    section.offset = load(raw + 16 + 16 * i, 8);
    section.bytes = load(raw + 24 + 16 * i, 8);
    if (section.bytes == 0) continue;
    const bool head = i < 2;
    const bool inside = section.offset <= bytes_.size() && section.bytes <= bytes_.size() - section.offset;
    const bool overflows = section.bytes > UINT64_MAX - section.offset;
    if (section.offset < CmfEnvelope::kBytes || overflows || (!inside && (head || !open_damaged))) {
      fail(Code::data,
           "%s: envelope offset %zu: the %s lies at %llu with %llu bytes, but the file has %zu; it is truncated or "
           "damaged",
           path_.c_str(), 16 + 16 * i, section.name, print(section.offset), print(section.bytes), bytes_.size());
    }
  }
  envelope_.header.hash = load(raw + 0x70, 8);
  envelope_.directory.hash = load(raw + 0x78, 8);
  if (envelope_.header.bytes == 0 || envelope_.header.bytes > kMaxHeader) {
    fail(Code::data, "%s: envelope offset 24: a header of %llu bytes; allowed are 1 to %llu", path_.c_str(),
         print(envelope_.header.bytes), print(kMaxHeader));
  }
  if (envelope_.data.bytes > 0 && envelope_.data.offset % kCmfAlignment != 0) {
    fail(Code::data, "%s: envelope offset 48: the data start at %llu, which is no multiple of %llu", path_.c_str(),
         print(envelope_.data.offset), print(kCmfAlignment));
  }
}

void CmfFile::read_header() {
  header_ = Json::parse(header_text(), path_ + " (CMF header)");
  for (const char* key : {"version", "arch", "quant_type"}) {
    if (header_.find(key) == nullptr) fail(Code::data, "%s: the CMF header has no '%s'", path_.c_str(), key);
  }
  const Json* hashes = header_.find("section_hashes");
  if (hashes == nullptr || !hashes->is_object()) return;
  const std::pair<const char*, CmfSection*> rows[] = {
      {"masks", &envelope_.masks}, {"vocab", &envelope_.vocab}, {"index", &envelope_.index}};
  for (const auto& [key, section] : rows) {
    const Json* text = hashes->find(key);
    if (text == nullptr || !text->is_string()) continue;
    section->hash = std::strtoull(text->as_string().c_str(), nullptr, 16);
  }
}

void CmfFile::read_directory(bool open_damaged) {
  const std::string_view directory = text_of(envelope_.directory);
  const uint8_t* raw = reinterpret_cast<const uint8_t*>(directory.data());
  if (directory.size() < 16) {
    fail(Code::data, "%s: envelope offset 40: a directory of %zu bytes; it needs at least 16", path_.c_str(),
         directory.size());
  }
  const uint64_t count = load(raw, 8), pool_offset = load(raw + 8, 8);
  if (count > (directory.size() - 16) / kRecordBytes || pool_offset < 16 + kRecordBytes * count ||
      pool_offset > directory.size()) {
    fail(Code::data,
         "%s: offset %llu: %llu tensors with names at %llu do not fit a directory of %zu bytes; the file is damaged",
         path_.c_str(), print(envelope_.directory.offset), print(count), print(pool_offset), directory.size());
  }
  const std::string_view pool = directory.substr(pool_offset);
  for (uint64_t i = 0; i < count; ++i) {
    CmfTensor tensor = read_record(raw + 16 + kRecordBytes * i, pool, i, open_damaged);
    if (!index_.emplace(tensor.name, i).second) {
      fail(Code::data, "%s: tensor '%s' is in the directory twice", path_.c_str(), tensor.name.c_str());
    }
    tensors_.push_back(std::move(tensor));
  }
}

CmfTensor CmfFile::read_record(const uint8_t* record, std::string_view pool, size_t number, bool open_damaged) const {
  const uint64_t place = envelope_.directory.offset + 16 + kRecordBytes * number;
  const auto bad = [&](const std::string& problem) {
    fail(Code::data, "%s: directory record %zu at offset %llu: %s", path_.c_str(), number, print(place),
         problem.c_str());
  };
  CmfTensor tensor;
  const uint64_t name_offset = load(record, 4), name_bytes = load(record + 4, 2);
  if (name_offset > pool.size() || name_bytes > pool.size() - name_offset) {
    bad(strf("a name of %llu bytes at %llu lies outside the pool of %zu", print(name_bytes), print(name_offset),
             pool.size()));
  }
  tensor.name = pool.substr(name_offset, name_bytes);
  if (!valid_utf8(tensor.name)) bad("the name is not UTF-8");
  tensor.dtype = record[6];
  if (tensor.dtype >= std::size(kDtypes)) {
    bad(strf("tensor '%s' has dtype %d; 0 to %zu are known", tensor.name.c_str(), tensor.dtype,
             std::size(kDtypes) - 1));
  }
  const int ndim = record[7];
  if (ndim > kMaxDims)
    bad(strf("tensor '%s' has %d axes; at most %d are allowed", tensor.name.c_str(), ndim, kMaxDims));
  int64_t elements = 1;
  for (int i = 0; i < ndim; ++i) {
    tensor.dims.push_back(static_cast<int64_t>(load(record + 8 + 4 * i, 4)));
    if (__builtin_mul_overflow(elements, tensor.dims.back(), &elements) || elements > (int64_t{1} << 56)) {
      bad(strf("the shape of tensor '%s' overflows", tensor.name.c_str()));
    }
  }
  const uint64_t offset = load(record + 32, 8);
  tensor.bytes = load(record + 40, 8);
  tensor.hash = load(record + 48, 8);
  if (offset % 64 != 0)
    bad(strf("tensor '%s' at data offset %llu; it must be a multiple of 64", tensor.name.c_str(), print(offset)));
  if (offset > envelope_.data.bytes || tensor.bytes > envelope_.data.bytes - offset) {
    bad(strf("tensor '%s' with %llu bytes at data offset %llu ends beyond the %llu bytes of data", tensor.name.c_str(),
             print(tensor.bytes), print(offset), print(envelope_.data.bytes)));
  }
  tensor.offset = envelope_.data.offset + offset;
  if (!open_damaged || tensor.offset + tensor.bytes <= bytes_.size()) check_payload(tensor);
  return tensor;
}

// Sizes that follow from the shape. Formats that are not decoded keep theirs.
void CmfFile::check_payload(const CmfTensor& tensor) const {
  const CmfDtype& dtype = kDtypes[tensor.dtype];
  if (!dtype.format) return;
  const FormatRow& format = row_of(*dtype.format);
  const auto [rows, cols] = matrix_shape(tensor.dims);
  const auto bad = [&](const std::string& problem) {
    fail(Code::data, "%s: tensor '%s' in format %s at offset %llu: %s", path_.c_str(), tensor.name.c_str(), dtype.name,
         print(tensor.offset), problem.c_str());
  };
  if (cols % format.block_cols != 0) {
    bad(strf("%lld columns are not a multiple of %d, the block of this format", static_cast<long long>(cols),
             format.block_cols));
  }
  const bool plain = tensor.dtype <= 2 || tensor.dtype == kCmfRaw;
  if (!plain && tensor.dims.size() != 2) bad(strf("%zu axes; this format stores matrices", tensor.dims.size()));
  const uint64_t needed = static_cast<uint64_t>(format.data_bytes(rows, cols));
  const bool fits = tensor.dtype == kCmfRaw ? needed <= tensor.bytes : needed == tensor.bytes;
  if (!fits) {
    bad(strf("%llu bytes, but its shape needs %llu", print(tensor.bytes), print(needed)));
  }
}

const CmfTensor* CmfFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

uint64_t CmfFile::declared_size() const {
  uint64_t end = CmfEnvelope::kBytes;
  for (const CmfSection* section : {&envelope_.header, &envelope_.directory, &envelope_.data, &envelope_.masks,
                                    &envelope_.vocab, &envelope_.index}) {
    if (section->bytes > 0) end = std::max(end, section->offset + section->bytes);
  }
  return end;
}

std::span<const std::byte> CmfFile::payload(const CmfTensor& tensor) const {
  if (tensor.offset + tensor.bytes > bytes_.size()) return {};
  return bytes_.subspan(tensor.offset, tensor.bytes);
}

std::span<const std::byte> CmfFile::bytes_of(const CmfSection& section) const {
  if (section.bytes == 0 || section.offset + section.bytes > bytes_.size()) return {};
  return bytes_.subspan(section.offset, section.bytes);
}

std::string_view CmfFile::text_of(const CmfSection& section) const {
  const std::span<const std::byte> bytes = bytes_of(section);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Json CmfFile::config(const std::string& name) const {
  const CmfTensor* tensor = find(name);
  if (tensor == nullptr) return {};
  if (tensor->dtype != kCmfRaw || tensor->dims.size() != 1) {
    fail(Code::data, "%s: tensor '%s' at offset %llu must be text: dtype %d with one axis", path_.c_str(), name.c_str(),
         print(tensor->offset), kCmfRaw);
  }
  const std::span<const std::byte> bytes = payload(*tensor).first(static_cast<size_t>(tensor->dims[0]));
  return Json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path_ + " (" + name + ")");
}

std::string CmfFile::strong_hash_of(const std::string& tensor) const {
  const Json* own = header_.find("h3");
  const Json* hashes = own == nullptr ? nullptr : own->find("xxh3_128");
  const Json* text = hashes == nullptr ? nullptr : hashes->find(tensor);
  return text != nullptr && text->is_string() ? text->as_string() : std::string();
}

std::string CmfFile::id() const {
  return strf("%016llx-%llu", print(hash64(bytes_of(envelope_.directory))), print(bytes_.size()));
}

}  // namespace h3
