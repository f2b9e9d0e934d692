// The GGUF format (spec formats D).
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/json.h"
#include "store/llama_names.h"
#include "store/tensor_source.h"

namespace h3 {
namespace {

using u64 = unsigned long long;

constexpr uint32_t kMaxAxes = 4;
constexpr uint64_t kMaxName = 1024;
constexpr uint64_t kDefaultAlignment = 32;
constexpr int64_t kMaxElements = int64_t{1} << 56;

struct TensorType {
  uint32_t id;
  Format format;
};
constexpr TensorType kTypes[] = {
    {0, Format::f32},   {1, Format::f16},   {2, Format::q4_0},  {3, Format::q4_1},  {6, Format::q5_0},
    {7, Format::q5_1},  {8, Format::q8_0},  {10, Format::q2_k}, {11, Format::q3_k}, {12, Format::q4_k},
    {13, Format::q5_k}, {14, Format::q6_k}, {24, Format::i8},   {25, Format::i16},  {26, Format::i32},
    {27, Format::i64},  {28, Format::f64},  {30, Format::bf16},
};

// Types that exist and cannot be read, so that the message can name them.
struct ForeignType {
  uint32_t id;
  const char* name;
};
constexpr ForeignType kForeign[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {29, "IQ1_M"},  {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},
};

enum ValueType : uint32_t { kString = 8, kArray = 9 };
// Bytes of the other value types: u8 i8 u16 i16 u32 i32 f32 bool - - u64 i64 f64.
constexpr uint64_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// Reads the header front to back; every failure names the file and the byte offset.
class Cursor {
 public:
  Cursor(const std::string& path, std::span<const std::byte> bytes) : path_(path), bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  [[noreturn]] void bad(const std::string& problem, uint64_t offset) const {
    fail(Code::data, "%s: offset %llu: %s", path_.c_str(), static_cast<u64>(offset), problem.c_str());
  }
  [[noreturn]] void bad(const std::string& problem) const { bad(problem, position_); }

  std::span<const std::byte> take(uint64_t count, const std::string& what) {
    if (count > left()) {
      bad(strf("%s needs %llu bytes, but only %llu are left; the file is truncated or damaged", what.c_str(),
               static_cast<u64>(count), static_cast<u64>(left())));
    }
    const auto out = bytes_.subspan(static_cast<size_t>(position_), static_cast<size_t>(count));
    position_ += count;
    return out;
  }

  uint64_t number(int width, const std::string& what) {
    uint64_t value = 0;
    int shift = 0;
    for (const std::byte b : take(static_cast<uint64_t>(width), what)) {
      value |= static_cast<uint64_t>(b) << shift;
      shift += 8;
    }
    return value;
  }
  uint32_t u32(const std::string& what) { return static_cast<uint32_t>(number(4, what)); }

  // A number of things of at least `least` bytes each, all of which must still fit.
  uint64_t count(const std::string& what, uint64_t least) {
    const uint64_t at = position_;
    const uint64_t value = number(8, what);
    if (value > left() / least) {
      bad(strf("%s is %llu, but only %llu bytes follow; the file is truncated or damaged", what.c_str(),
               static_cast<u64>(value), static_cast<u64>(left())),
          at);
    }
    return value;
  }

  std::string_view string(const std::string& what) {
    const uint64_t at = position_;
    const uint64_t length = number(8, what + " length");
    if (length > left()) {
      bad(strf("%s has a length of %llu bytes, but only %llu are left; the file is truncated or damaged", what.c_str(),
               static_cast<u64>(length), static_cast<u64>(left())),
          at);
    }
    const auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  const std::string& path_;
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
};

struct Contents {
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::string merges;  // of a byte-level tokenizer, one a line
  uint64_t header_bytes = 0;
};

class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::span<const std::byte> bytes)
      : path_(path), bytes_(bytes), in_(path, bytes) {}

  Contents run() {
    read_start();
    const uint64_t tensors = in_.count("the number of tensors", 24);
    const uint64_t values = in_.count("the number of metadata entries", 13);
    for (uint64_t i = 0; i < values; ++i) read_value();
    refuse_split();
    if (tensors == 0) in_.bad("the file holds no tensors");
    for (uint64_t i = 0; i < tensors; ++i) read_tensor();
    place_data();
    return std::move(out_);
  }

 private:
  [[noreturn]] void bad_tensor(const TensorInfo& info, const std::string& problem) const {
    fail(Code::data, "%s: tensor '%s' at offset %llu: %s", path_.c_str(), info.name.c_str(),
         static_cast<u64>(info.offset), problem.c_str());
  }

  void read_start() {
    const auto magic = in_.take(4, "the magic 'GGUF'");
    if (std::memcmp(magic.data(), "GGUF", 4) != 0) in_.bad("not a GGUF file: it does not start with 'GGUF'", 0);
    const uint32_t version = in_.u32("the version");
    if (version == 2 || version == 3) return;
    const bool swapped = (version & 0xffffu) == 0 && version != 0;
    in_.bad(strf("GGUF version %u%s; versions 2 and 3 are read", version, swapped ? " (a big-endian file)" : ""), 4);
  }

  void read_value() {
    const uint64_t at = in_.position();
    const std::string key(in_.string("a metadata key"));
    const std::string what = "metadata entry '" + key + "'";
    const uint32_t type = in_.u32(what);
    std::string text;
    if (type == kArray) {
      text = read_array(key, what);
    } else if (type == kString) {
      text = std::string(in_.string(what));
    } else {
      text = read_scalar(type, what);
    }
    if (key == "general.alignment") set_alignment(type, text, at);
    if (!out_.metadata.emplace(key, std::move(text)).second) in_.bad(what + " occurs twice", at);
  }

  std::string read_scalar(uint32_t type, const std::string& what) {
    const uint64_t at = in_.position();
    if (type >= std::size(kValueBytes) || kValueBytes[type] == 0) {
      in_.bad(strf("%s has the unknown value type %u; allowed are 0 to 12", what.c_str(), type), at - 4);
    }
    const int width = static_cast<int>(kValueBytes[type]);
    const uint64_t raw = in_.number(width, what);
    switch (type) {
      case 1:
      case 3:
      case 5:
      case 11: return std::to_string(static_cast<int64_t>(raw << (64 - 8 * width)) >> (64 - 8 * width));
      case 6: return Json(static_cast<double>(f32_from_bits(static_cast<uint32_t>(raw)))).dump();
      case 7: return raw != 0 ? "true" : "false";
      case 12: {
        double value = 0;
        std::memcpy(&value, &raw, sizeof value);
        return Json(value).dump();
      }
      default: return std::to_string(raw);
    }
  }

  // Arrays are passed over; of a tokenizer, the merges are kept.
  std::string read_array(const std::string& key, const std::string& what) {
    const uint64_t at = in_.position();
    const uint32_t type = in_.u32(what);
    if (type == kArray || type >= std::size(kValueBytes)) {
      in_.bad(strf("%s is an array of the value type %u; allowed are 0 to 12 without 9", what.c_str(), type), at);
    }
    const uint64_t each = type == kString ? 8 : kValueBytes[type];
    const uint64_t items = in_.count("the length of " + what, each);
    if (type != kString) {
      in_.take(items * each, what);
    } else {
      for (uint64_t i = 0; i < items; ++i) {
        const std::string_view item = in_.string(what);
        if (key == "tokenizer.ggml.merges") out_.merges.append(item).push_back('\n');
      }
    }
    return strf("%llu values", static_cast<u64>(items));
  }

  void set_alignment(uint32_t type, const std::string& text, uint64_t at) {
    const uint64_t value = type == 4 ? std::strtoull(text.c_str(), nullptr, 10) : 0;
    if (value == 0 || (value & (value - 1)) != 0) {
      in_.bad("general.alignment is " + text + "; it must be a u32 and a power of two", at);
    }
    alignment_ = value;
  }

  void refuse_split() const {
    const auto count = out_.metadata.find("split.count");
    if (count == out_.metadata.end() || std::strtoull(count->second.c_str(), nullptr, 10) <= 1) return;
    fail(Code::data, "%s: one of %s parts of a split model, which are not read; join them with gguf-split --merge",
         path_.c_str(), count->second.c_str());
  }

  void read_tensor() {
    const uint64_t at = in_.position();
    TensorInfo info;
    info.file = path_;
    info.name = in_.string("a tensor name");
    const auto printable = [](char c) { return c > ' ' && c <= '~'; };
    if (info.name.empty() || info.name.size() > kMaxName ||
        !std::all_of(info.name.begin(), info.name.end(), printable)) {
      in_.bad(strf("the name of tensor %zu has %zu bytes or is not plain text; the file is damaged",
                   out_.tensors.size(), info.name.size()),
              at);
    }
    info.offset = at;  // of its entry, until place_data knows better
    const uint32_t axes = in_.u32("the axes of tensor '" + info.name + "'");
    if (axes > kMaxAxes) bad_tensor(info, strf("%u axes; GGUF allows at most %u", axes, kMaxAxes));
    int64_t elements = 1;
    for (uint32_t i = 0; i < axes; ++i) {
      const uint64_t dim = in_.number(8, "the shape of tensor '" + info.name + "'");
      if (dim > static_cast<uint64_t>(kMaxElements) ||
          __builtin_mul_overflow(elements, std::max<int64_t>(1, static_cast<int64_t>(dim)), &elements) ||
          elements > kMaxElements) {
        bad_tensor(info, strf("axis %u has %llu elements; the shape is out of range", i, static_cast<u64>(dim)));
      }
      info.dims.insert(info.dims.begin(), static_cast<int64_t>(dim));  // innermost first in the file
    }
    info.format = type_of(info, in_.u32("the type of tensor '" + info.name + "'"));
    offsets_.push_back(in_.number(8, "the offset of tensor '" + info.name + "'"));
    if (!names_.insert(info.name).second) bad_tensor(info, "the name occurs twice");
    check_blocks(info);
    out_.tensors.push_back(std::move(info));
  }

  Format type_of(const TensorInfo& info, uint32_t id) const {
    std::string allowed;
    for (const TensorType& type : kTypes) {
      if (type.id == id) return type.format;
      allowed += (allowed.empty() ? "" : ", ") + std::string(row_of(type.format).name);
    }
    const char* name = "unknown";
    for (const ForeignType& type : kForeign) {
      if (type.id == id) name = type.name;
    }
    bad_tensor(info, strf("ggml type %u (%s) is not supported; allowed are %s", id, name, allowed.c_str()));
  }

  void check_blocks(const TensorInfo& info) const {
    const FormatRow& row = row_of(info.format);
    if (row.block_cols == 1) return;
    if (info.dims.size() < 2) bad_tensor(info, strf("a vector cannot be stored in %s, which packs rows", row.name));
    if (info.dims.back() % row.block_cols != 0) {
      bad_tensor(info, strf("rows of %lld do not divide into the blocks of %s, which hold %d",
                            static_cast<long long>(info.dims.back()), row.name, row.block_cols));
    }
  }

  void place_data() {
    const uint64_t start = (in_.position() + alignment_ - 1) / alignment_ * alignment_;
    out_.header_bytes = in_.position();
    for (size_t i = 0; i < out_.tensors.size(); ++i) place(out_.tensors[i], offsets_[i], start);
    std::stable_sort(out_.tensors.begin(), out_.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
      return std::tuple(a.offset, a.data.size()) < std::tuple(b.offset, b.data.size());
    });
    for (size_t i = 1; i < out_.tensors.size(); ++i) {
      const TensorInfo& before = out_.tensors[i - 1];
      if (before.offset + before.data.size() > out_.tensors[i].offset) {
        bad_tensor(out_.tensors[i], strf("its data overlap those of tensor '%s', which end at %llu",
                                         before.name.c_str(), static_cast<u64>(before.offset + before.data.size())));
      }
    }
  }

  void place(TensorInfo& info, uint64_t offset, uint64_t start) const {
    const int64_t cols = info.dims.empty() ? 1 : info.dims.back();
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < info.dims.size(); ++i) rows *= info.dims[i];
    const uint64_t bytes = static_cast<uint64_t>(row_of(info.format).data_bytes(rows, cols));
    if (offset % alignment_ != 0) {
      bad_tensor(info, strf("its data start at %llu, which is not a multiple of the alignment %llu",
                            static_cast<u64>(offset), static_cast<u64>(alignment_)));
    }
    const uint64_t room = bytes_.size() > start ? bytes_.size() - start : 0;
    if (offset > room || bytes > room - offset) {
      bad_tensor(info, strf("%s %s needs %llu bytes from %llu on, but the data part of the file has %llu; the file is "
                            "truncated or damaged",
                            shape_text(info.dims).c_str(), row_of(info.format).name, static_cast<u64>(bytes),
                            static_cast<u64>(offset), static_cast<u64>(room)));
    }
    info.offset = start + offset;
    info.data = bytes_.subspan(static_cast<size_t>(start + offset), static_cast<size_t>(bytes));
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  Cursor in_;
  Contents out_;
  std::vector<uint64_t> offsets_;
  std::set<std::string> names_;
  uint64_t alignment_ = kDefaultAlignment;
};

// GGUF has four axes at most. Kernels of five are stored with the first two merged, or, over time, as two tensors.
class KernelMender {
 public:
  KernelMender(std::vector<TensorInfo>& tensors, std::vector<std::vector<std::byte>>& owned)
      : tensors_(tensors), owned_(owned) {}

  void run() {
    for (size_t i = 0; i < tensors_.size(); ++i) places_.emplace(tensors_[i].name, i);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].dims.size() != 4) continue;
      split_first_axis(tensors_[i]);
      join_frames(i);
    }
    tensors_.erase(std::remove_if(tensors_.begin(), tensors_.end(), [](const TensorInfo& t) { return t.name.empty(); }),
                   tensors_.end());
  }

 private:
  static bool ends_with(const std::string& text, std::string_view end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
  }

  TensorInfo* find(const std::string& name) {
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : &tensors_[found->second];
  }

  // [n c, t, h, w] with a bias of n is [n, c, t, h, w].
  void split_first_axis(TensorInfo& info) {
    if (!ends_with(info.name, ".weight")) return;
    const TensorInfo* bias = find(info.name.substr(0, info.name.size() - 6) + "bias");
    if (bias == nullptr || bias->dims.size() != 1 || bias->dims[0] == 0) return;
    const int64_t outputs = bias->dims[0];
    if (info.dims[0] == outputs || info.dims[0] % outputs != 0) return;
    info.dims[0] /= outputs;
    info.dims.insert(info.dims.begin(), outputs);
  }

  // X.weight with X.weight.1, or X.0.weight with X.1.weight: frames 0 and 1 of [n, c, 2, h, w].
  void join_frames(size_t index) {
    const std::string name = tensors_[index].name;
    std::string whole, second;
    if (ends_with(name, ".0.weight")) {
      whole = name.substr(0, name.size() - 9) + ".weight";
      second = name.substr(0, name.size() - 9) + ".1.weight";
    } else if (ends_with(name, ".weight")) {
      whole = name;
      second = name + ".1";
    } else {
      return;
    }
    TensorInfo* other = find(second);
    TensorInfo& first = tensors_[index];
    if (other == nullptr || first.dims.size() != 4 || other->dims != first.dims || other->format != first.format ||
        other->name.empty() || row_of(first.format).block_cols != 1) {
      return;
    }
    const size_t plane = static_cast<size_t>(row_of(first.format).data_bytes(first.dims[2], first.dims[3]));
    std::vector<std::byte>& bytes = owned_.emplace_back();
    bytes.reserve(2 * first.data.size());
    for (size_t at = 0; plane > 0 && at < first.data.size(); at += plane) {
      for (const TensorInfo* frame : {static_cast<const TensorInfo*>(&first), static_cast<const TensorInfo*>(other)}) {
        const auto part = frame->data.subspan(at, plane);
        bytes.insert(bytes.end(), part.begin(), part.end());
      }
    }
    first.name = whole;
    first.dims.insert(first.dims.begin() + 2, 2);
    first.data = bytes;
    other->name.clear();
  }

  std::vector<TensorInfo>& tensors_;
  std::vector<std::vector<std::byte>>& owned_;
  std::map<std::string, size_t> places_;  // by the names in the file
};

// llama.cpp numbers the merged blocks by the layer they come from; the list counts from 0.
void to_canonical_names(std::vector<TensorInfo>& tensors) {
  const auto known = [](const TensorInfo& info) { return is_llama_name(info.name); };
  if (std::none_of(tensors.begin(), tensors.end(), known)) return;
  std::set<int> layers;
  for (TensorInfo& info : tensors) {
    info.name = canonical_llama_name(info.name);
    if (const int number = deepstack_number(info.name); number >= 0) layers.insert(number);
  }
  for (TensorInfo& info : tensors) {
    const int number = deepstack_number(info.name);
    if (number < 0) continue;
    info.name = with_deepstack_number(info.name, static_cast<int>(std::distance(layers.begin(), layers.find(number))));
  }
}

class GgufSource final : public TensorSource {
 public:
  explicit GgufSource(const std::string& path) : map_(path), files_{path} { read(map_.bytes()); }
  GgufSource(const std::string& name, std::span<const std::byte> bytes) : files_{name} { read(bytes); }

  const std::vector<TensorInfo>& tensors() const override { return contents_.tensors; }
  const std::map<std::string, std::string>& metadata() const override { return contents_.metadata; }
  const std::vector<std::string>& files() const override { return files_; }
  const char* container() const override { return "GGUF"; }
  const TokenizerFiles* tokenizer() const override { return tokenizer_ ? &*tokenizer_ : nullptr; }
  std::string id() const override { return strf("%016llx-%llu", static_cast<u64>(hash_), static_cast<u64>(size_)); }

 private:
  void read(std::span<const std::byte> bytes) {
    contents_ = HeaderReader(files_[0], bytes).run();
    size_ = bytes.size();
    hash_ = fnv1a64(bytes.first(static_cast<size_t>(contents_.header_bytes)), kFnvStart);
    if (!contents_.merges.empty()) {
      tokenizer_.emplace();
      tokenizer_->origin = files_[0];
      tokenizer_->merges_txt = std::move(contents_.merges);
    }
    to_canonical_names(contents_.tensors);
    KernelMender(contents_.tensors, owned_).run();
    std::set<std::string> names;
    for (const TensorInfo& info : contents_.tensors) {
      if (names.insert(info.name).second) continue;
      fail(Code::data, "%s: offset %llu: two spellings of tensor '%s' in one file", files_[0].c_str(),
           static_cast<u64>(info.offset), info.name.c_str());
    }
    index_tensors();
  }

  FileMap map_;
  std::vector<std::string> files_;
  Contents contents_;
  std::vector<std::vector<std::byte>> owned_;  // kernels put together from two tensors
  std::optional<TokenizerFiles> tokenizer_;
  uint64_t hash_ = 0, size_ = 0;
};

}  // namespace

std::unique_ptr<TensorSource> open_gguf(const std::string& path) { return std::make_unique<GgufSource>(path); }

std::unique_ptr<TensorSource> open_gguf(const std::string& name, std::span<const std::byte> bytes) {
  return std::make_unique<GgufSource>(name, bytes);
}

}  // namespace h3
