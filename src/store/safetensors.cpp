// The safetensors format (spec formats B).
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "store/comfy_quant.h"
#include "store/safetensors_writer.h"
#include "store/tensor_source.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr uint64_t kMaxBytes = uint64_t{1} << 60;  // of one tensor, axes of length zero taken as one

struct DtypeName {
  const char* name;
  Format format;
};
constexpr DtypeName kDtypes[] = {
    {"F64", Format::f64},      {"F32", Format::f32},         {"F16", Format::f16},         {"BF16", Format::bf16},
    {"I64", Format::i64},      {"I32", Format::i32},         {"I16", Format::i16},         {"I8", Format::i8},
    {"U64", Format::u64},      {"U32", Format::u32},         {"U16", Format::u16},         {"U8", Format::u8},
    {"BOOL", Format::boolean}, {"F8_E4M3", Format::f8_e4m3}, {"F8_E5M2", Format::f8_e5m2}, {"F8_E8M0", Format::f8_e8m0},
};

uint64_t element_bytes(Format format) { return static_cast<uint64_t>(row_of(format).bits_per_weight) / 8; }

// One file's worth of tensors; `bytes` is the whole file.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::span<const std::byte> bytes) : path_(path), bytes_(bytes) {}

  void read(std::vector<TensorInfo>& tensors, std::map<std::string, std::string>& metadata, uint64_t& hash) {
    const std::string_view text = header_text();
    hash = fnv1a64(std::as_bytes(std::span(text)), hash);
    const Json header = Json::parse(text, path_ + " (safetensors header)");
    std::vector<TensorInfo> found;
    for (const auto& [name, entry] : header.members()) {
      if (name == "__metadata__")
        read_metadata(entry, metadata);
      else
        found.push_back(read_entry(name, entry));
    }
    std::sort(found.begin(), found.end(), [](const TensorInfo& a, const TensorInfo& b) {
      return std::tuple(a.offset, a.data.size(), a.name) < std::tuple(b.offset, b.data.size(), b.name);
    });
    check_layout(found);
    std::move(found.begin(), found.end(), std::back_inserter(tensors));
  }

 private:
  [[noreturn]] void bad(const std::string& problem) const {
    fail(Code::data, "%s: %s", path_.c_str(), problem.c_str());
  }
  [[noreturn]] void bad_tensor(const std::string& name, const std::string& problem) const {
    bad("tensor '" + name + "': " + problem);
  }

  std::string_view header_text() {
    if (bytes_.size() < 8) {
      bad(strf("%zu bytes are too few for a safetensors file, which starts with an 8-byte header length",
               bytes_.size()));
    }
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint64_t>(bytes_[static_cast<size_t>(i)]);
    if (length > bytes_.size() - 8 || length > kMaxHeader) {
      bad(strf(
          "the header length is %llu, but %zu bytes follow and at most %llu are allowed; the file is truncated or "
          "not safetensors",
          static_cast<unsigned long long>(length), bytes_.size() - 8, static_cast<unsigned long long>(kMaxHeader)));
    }
    payload_ = bytes_.subspan(8 + static_cast<size_t>(length));
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + 8, static_cast<size_t>(length));
    if (text.empty() || text[0] != '{') bad("the header does not start with '{'; the file is not safetensors");
    return text;
  }

  void read_metadata(const Json& entry, std::map<std::string, std::string>& metadata) const {
    if (!entry.is_object()) bad("__metadata__ must be an object of strings");
    for (const auto& [key, value] : entry.members()) {
      if (!value.is_string()) bad(strf("__metadata__ entry '%s' must be a string", key.c_str()));
      metadata[key] = value.as_string();
    }
  }

  Format read_dtype(const std::string& name, const Json& entry) const {
    const Json* dtype = entry.find("dtype");
    if (dtype == nullptr || !dtype->is_string()) bad_tensor(name, "\"dtype\" must be a string");
    std::string allowed;
    for (const DtypeName& row : kDtypes) {
      if (dtype->as_string() == row.name) return row.format;
      allowed += (allowed.empty() ? "" : ", ") + std::string(row.name);
    }
    bad_tensor(name, "unknown dtype '" + dtype->as_string() + "'; allowed are " + allowed);
  }

  // A non-negative integer of the header.
  uint64_t natural(const std::string& name, const Json& value, const char* what) const {
    if (!value.is_integer() || value.as_int() < 0) {
      bad_tensor(name, strf("%s must hold integers from 0 up, found %s", what, value.dump().c_str()));
    }
    return static_cast<uint64_t>(value.as_int());
  }

  TensorInfo read_entry(const std::string& name, const Json& entry) const {
    if (!entry.is_object()) bad_tensor(name, "its header entry is not an object");
    TensorInfo info;
    info.name = name;
    info.file = path_;
    info.format = read_dtype(name, entry);
    const Json* shape = entry.find("shape");
    if (shape == nullptr || !shape->is_array()) bad_tensor(name, "\"shape\" must be an array");
    uint64_t expected = element_bytes(info.format);
    uint64_t without_zeros = expected;
    bool overflow = false;
    for (const Json& dim : shape->items()) {
      const uint64_t size = natural(name, dim, "\"shape\"");
      info.dims.push_back(static_cast<int64_t>(size));
      expected *= size;
      overflow = overflow || __builtin_mul_overflow(without_zeros, std::max<uint64_t>(1, size), &without_zeros);
    }
    if (overflow || without_zeros > kMaxBytes)
      bad_tensor(name, "shape " + shape_text(info.dims) + " overflows the size of a tensor");
    const Json* offsets = entry.find("data_offsets");
    if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2) {
      bad_tensor(name, "\"data_offsets\" must be an array [begin, end]");
    }
    const uint64_t begin = natural(name, offsets->at(size_t{0}), "\"data_offsets\"");
    const uint64_t end = natural(name, offsets->at(size_t{1}), "\"data_offsets\"");
    if (begin > end || end > payload_.size()) {
      bad_tensor(name,
                 strf("data_offsets [%llu, %llu] must rise and end within the %zu bytes of data; the file is "
                      "truncated or damaged",
                      static_cast<unsigned long long>(begin), static_cast<unsigned long long>(end), payload_.size()));
    }
    if (end - begin != expected) {
      bad_tensor(name, strf("%llu bytes of data, but shape %s of %s needs %llu",
                            static_cast<unsigned long long>(end - begin), shape_text(info.dims).c_str(),
                            row_of(info.format).name, static_cast<unsigned long long>(expected)));
    }
    info.data = payload_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    info.offset = bytes_.size() - payload_.size() + begin;
    return info;
  }

  // The tensors, sorted by offset, must tile the data: a gap or an overlap means that some offset is wrong.
  void check_layout(const std::vector<TensorInfo>& sorted) const {
    const uint64_t start = bytes_.size() - payload_.size();
    uint64_t next = start;
    const TensorInfo* previous = nullptr;
    for (const TensorInfo& info : sorted) {
      if (info.offset != next) {
        const std::string before = previous == nullptr ? "the start of the data" : "tensor '" + previous->name + "'";
        bad_tensor(info.name,
                   strf("starts at data offset %llu, but %s ends at %llu: %s are not allowed",
                        static_cast<unsigned long long>(info.offset - start), before.c_str(),
                        static_cast<unsigned long long>(next - start), info.offset < next ? "overlaps" : "gaps"));
      }
      next += info.data.size();
      previous = &info;
    }
    if (next != bytes_.size()) {
      bad(strf("%llu bytes follow the last tensor; the header must describe all of the data",
               static_cast<unsigned long long>(bytes_.size() - next)));
    }
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  std::span<const std::byte> payload_;
};

class SafetensorsSource final : public TensorSource {
 public:
  explicit SafetensorsSource(const std::string& path) {
    add_file(path);
    fold_quantised_layers(path, tensors_, metadata_, owned_);
    index_tensors();
  }

  SafetensorsSource(const std::string& name, std::span<const std::byte> bytes) {
    add_bytes(name, bytes);
    fold_quantised_layers(name, tensors_, metadata_, owned_);
    index_tensors();
  }

  // Shards named by a weight map {tensor: file}.
  SafetensorsSource(const std::string& index_path, const Json& index) {
    const std::map<std::string, std::string> shard_of = read_weight_map(index_path, index);
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
    const std::string folder = fs::path(index_path).parent_path().string();
    for (const std::string& shard : shards) {
      const std::string path = folder.empty() ? shard : folder + "/" + shard;
      const size_t first = tensors_.size();
      if (!fs::exists(path)) {
        fail(Code::io, "%s: shard '%s' is missing; all %zu shards must lie beside the index", index_path.c_str(),
             shard.c_str(), shards.size());
      }
      add_file(path);
      check_shard(index_path, shard_of, shard, first);
    }
    check_complete(index_path, shard_of);
    check_total(index_path, index);
    fold_quantised_layers(index_path, tensors_, metadata_, owned_);
    index_tensors();
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  const char* container() const override { return "safetensors"; }
  std::string id() const override {
    return strf("%016llx-%llu", static_cast<unsigned long long>(hash_), static_cast<unsigned long long>(size_));
  }

 private:
  void add_file(const std::string& path) {
    maps_.emplace_back(path);
    add_bytes(path, maps_.back().bytes());
  }

  void add_bytes(const std::string& path, std::span<const std::byte> bytes) {
    files_.push_back(path);
    size_ += bytes.size();
    HeaderReader(path, bytes).read(tensors_, metadata_, hash_);
  }

  static std::map<std::string, std::string> read_weight_map(const std::string& path, const Json& index) {
    const Json* weight_map = index.find("weight_map");
    if (weight_map == nullptr || !weight_map->is_object() || weight_map->size() == 0) {
      fail(Code::data, "%s: not an index of a sharded checkpoint: it needs a \"weight_map\" of tensor to file name",
           path.c_str());
    }
    std::map<std::string, std::string> shard_of;
    for (const auto& [tensor, shard] : weight_map->members()) {
      if (!shard.is_string())
        fail(Code::data, "%s: the shard of tensor '%s' must be a file name", path.c_str(), tensor.c_str());
      const std::string& name = shard.as_string();
      if (name.empty() || name == "." || name == ".." ||
          name.find_first_of(std::string_view("/\\\0", 3)) != name.npos) {
        fail(Code::data, "%s: tensor '%s' names shard '%s'; shards must lie in the folder of the index", path.c_str(),
             tensor.c_str(), name.c_str());
      }
      shard_of[tensor] = name;
    }
    return shard_of;
  }

  void check_shard(const std::string& index_path, const std::map<std::string, std::string>& shard_of,
                   const std::string& shard, size_t first) const {
    for (size_t i = first; i < tensors_.size(); ++i) {
      const auto entry = shard_of.find(tensors_[i].name);
      if (entry == shard_of.end()) {
        fail(Code::data,
             "%s: shard '%s' holds tensor '%s', which the index does not list; index and shards are not from "
             "the same release",
             index_path.c_str(), shard.c_str(), tensors_[i].name.c_str());
      }
      if (entry->second != shard) {
        fail(Code::data,
             "%s: tensor '%s' lies in shard '%s', but the index says '%s'; index and shards are not from the "
             "same release",
             index_path.c_str(), tensors_[i].name.c_str(), shard.c_str(), entry->second.c_str());
      }
    }
  }

  void check_complete(const std::string& index_path, const std::map<std::string, std::string>& shard_of) const {
    std::set<std::string> found;
    for (const TensorInfo& info : tensors_) found.insert(info.name);
    for (const auto& [tensor, shard] : shard_of) {
      if (found.count(tensor) != 0) continue;
      fail(Code::data, "%s: tensor '%s' is not in its shard '%s'; index and shards are not from the same release",
           index_path.c_str(), tensor.c_str(), shard.c_str());
    }
  }

  void check_total(const std::string& index_path, const Json& index) const {
    const Json* metadata = index.find("metadata");
    const Json* total = metadata == nullptr ? nullptr : metadata->find("total_size");
    if (total == nullptr || !total->is_number()) return;
    uint64_t sum = 0;
    for (const TensorInfo& info : tensors_) sum += info.data.size();
    if (total->as_double() != static_cast<double>(sum)) {
      fail(Code::data,
           "%s: total_size is %s, but the tensors of the shards have %llu bytes; index and shards are not from "
           "the same release",
           index_path.c_str(), total->dump().c_str(), static_cast<unsigned long long>(sum));
    }
  }

  std::vector<FileMap> maps_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_;
  std::vector<std::vector<std::byte>> owned_;  // scales that the file has in another type
  uint64_t hash_ = kFnvStart;
  uint64_t size_ = 0;
};

// The index of a folder, else its only safetensors file.
std::unique_ptr<TensorSource> open_folder(const std::string& folder) {
  std::vector<std::string> indices, files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    if (path.ends_with(".safetensors.index.json")) indices.push_back(path);
    if (path.ends_with(".safetensors")) files.push_back(path);
  }
  if (error) fail(Code::io, "cannot read folder %s: %s", folder.c_str(), error.message().c_str());
  std::vector<std::string>& candidates = indices.empty() ? files : indices;
  std::sort(candidates.begin(), candidates.end());
  if (candidates.empty()) fail(Code::data, "%s: this folder holds no safetensors file", folder.c_str());
  if (candidates.size() > 1) {
    fail(Code::data, "%s: this folder holds %zu checkpoints (%s, %s, ...); name the file to use", folder.c_str(),
         candidates.size(), candidates[0].c_str(), candidates[1].c_str());
  }
  if (indices.empty()) return std::make_unique<SafetensorsSource>(files[0]);
  return open_safetensors_index(indices[0]);
}

}  // namespace

std::unique_ptr<TensorSource> open_safetensors(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return open_folder(path);
  if (path.ends_with(".json")) return open_safetensors_index(path);
  return std::make_unique<SafetensorsSource>(path);
}

std::unique_ptr<TensorSource> open_safetensors_index(const std::string& path) {
  return std::make_unique<SafetensorsSource>(path, Json::parse(read_file(path), path));
}

std::unique_ptr<TensorSource> open_safetensors(const std::string& name, std::span<const std::byte> bytes) {
  return std::make_unique<SafetensorsSource>(name, bytes);
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<SafetensorsEntry>& entries,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), places_(entries.size()) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const uint64_t size_a = element_bytes(entries[a].format), size_b = element_bytes(entries[b].format);
    return size_a != size_b ? size_a > size_b : entries[a].name < entries[b].name;
  });
  std::vector<Json::Member> members;
  if (!metadata.empty()) {
    std::vector<Json::Member> strings;
    for (const auto& [key, value] : metadata) strings.emplace_back(key, Json(value));
    members.emplace_back("__metadata__", Json::object(std::move(strings)));
  }
  uint64_t offset = 0;
  for (const size_t i : order) {
    const SafetensorsEntry& entry = entries[i];
    uint64_t bytes = element_bytes(entry.format);
    Json shape = Json::array();
    for (const int64_t dim : entry.dims) {
      bytes *= static_cast<uint64_t>(dim);
      shape.push(dim);
    }
    const auto dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                    [&](const DtypeName& row) { return row.format == entry.format; });
    H3_ASSERT(dtype != std::end(kDtypes));
    Json json;
    json.set("dtype", dtype->name).set("shape", std::move(shape));
    json.set("data_offsets", Json::array({Json(offset), Json(offset + bytes)}));
    members.emplace_back(entry.name, std::move(json));
    places_[i] = {offset, offset + bytes};
    offset += bytes;
  }
  std::string header = Json::object(std::move(members)).dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  unsigned char prefix[8];
  for (int i = 0; i < 8; ++i) prefix[i] = static_cast<unsigned char>(length >> (8 * i));
  file_.write(prefix, sizeof prefix);
  file_.write(header.data(), header.size());
  for (Place& place : places_) {
    place.at += sizeof prefix + length;
    place.end += sizeof prefix + length;
  }
}

void SafetensorsWriter::write(size_t entry, std::span<const std::byte> bytes) {
  Place& place = places_.at(entry);
  H3_ASSERT(bytes.size() <= place.end - place.at);
  file_.write_at(place.at, bytes.data(), bytes.size());
  place.at += bytes.size();
}

void SafetensorsWriter::commit() {
  for (const Place& place : places_) H3_ASSERT(place.at == place.end);
  file_.commit();
}

void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const TensorToWrite& tensor : tensors) entries.push_back({tensor.name, tensor.format, tensor.dims});
  SafetensorsWriter writer(path, entries, metadata);
  for (size_t i = 0; i < tensors.size(); ++i) writer.write(i, tensors[i].data);
  writer.commit();
}

}  // namespace h3
