#include "apps/parity/suite.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file_map.h"

namespace h3 {
namespace fs = std::filesystem;

namespace {

int64_t elements_of(const TensorInfo& info) {
  int64_t n = 1;
  for (int64_t d : info.dims) n *= d;
  return n;
}

template <typename T>
T element(const TensorInfo& info, size_t i) {
  T value;
  std::memcpy(&value, info.data.data() + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

GoldenFile::GoldenFile(const std::string& path) : path_(path), source_(open_safetensors(path)) {}

const TensorInfo& GoldenFile::info(const std::string& name) const {
  const TensorInfo* found = source_->find(name);
  if (found == nullptr) h3::fail(Code::data, "%s has no tensor %s", path_.c_str(), name.c_str());
  return *found;
}

std::vector<float> GoldenFile::f32(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  StoredMatrix matrix;
  matrix.format = tensor.format;
  matrix.rows = 1;
  matrix.cols = elements_of(tensor);
  matrix.data = tensor.data;
  std::vector<float> out(static_cast<size_t>(matrix.cols));
  if (matrix.cols > 0) row_of(tensor.format).decode_row(matrix, 0, out.data());
  return out;
}

std::vector<double> GoldenFile::f64(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  if (tensor.format != Format::f64) {
    const std::vector<float> narrow = f32(name);
    return std::vector<double>(narrow.begin(), narrow.end());
  }
  std::vector<double> out(static_cast<size_t>(elements_of(tensor)));
  std::memcpy(out.data(), tensor.data.data(), out.size() * sizeof(double));
  return out;
}

std::vector<int64_t> GoldenFile::i64(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  std::vector<int64_t> out(static_cast<size_t>(elements_of(tensor)));
  for (size_t i = 0; i < out.size(); ++i) {
    switch (tensor.format) {
      case Format::i64: out[i] = element<int64_t>(tensor, i); break;
      case Format::i32: out[i] = element<int32_t>(tensor, i); break;
      case Format::i8: out[i] = element<int8_t>(tensor, i); break;
      case Format::u8: out[i] = element<uint8_t>(tensor, i); break;
      default: h3::fail(Code::data, "%s: tensor %s is not an integer tensor", path_.c_str(), name.c_str());
    }
  }
  return out;
}

std::vector<std::string> GoldenFile::names() const {
  std::vector<std::string> out;
  for (const TensorInfo& tensor : source_->tensors()) out.push_back(tensor.name);
  return out;
}

Json GoldenFile::json_metadata(const std::string& key) const {
  const auto found = metadata().find(key);
  if (found == metadata().end()) h3::fail(Code::data, "%s has no metadata %s", path_.c_str(), key.c_str());
  return Json::parse(found->second, path_ + " metadata " + key);
}

Suite::Suite(std::string folder, Ops& ops, std::function<void(const Verdict&)> on_verdict)
    : folder_(std::move(folder)), ops_(ops), on_verdict_(std::move(on_verdict)) {
  if (!fs::is_directory(folder_)) h3::fail(Code::usage, "golden folder %s does not exist", folder_.c_str());
}

bool Suite::exists(const std::string& relative) const { return fs::exists(path(relative)); }

void Suite::claim(const std::string& relative) { claimed_.insert(relative); }

GoldenFile Suite::open(const std::string& relative) {
  claim(relative);
  return GoldenFile(path(relative));
}

Json Suite::json(const std::string& relative) {
  claim(relative);
  return Json::parse(read_file(path(relative)), relative);
}

std::vector<std::string> Suite::files(const std::string& prefix, const std::string& suffix) const {
  std::vector<std::string> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name.starts_with(prefix) && name.ends_with(suffix)) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> Suite::unclaimed() const {
  std::vector<std::string> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (!claimed_.contains(name)) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

void Suite::add(Verdict verdict) {
  verdict.stage = stage_;
  if (verdict.skipped)
    ++skipped_;
  else if (verdict.passed)
    ++passed_;
  else
    ++failed_;
  on_verdict_(verdict);
}

void Suite::check(const std::string& name, std::span<const float> got, std::span<const float> want,
                  const Limits& limits) {
  Verdict verdict;
  verdict.name = name;
  verdict.limits = limits;
  verdict.comparison = compare_values(got, want, limits);
  verdict.passed = verdict.comparison.passed;
  verdict.note = verdict.comparison.failure;
  add(std::move(verdict));
}

void Suite::exact(const std::string& name, bool equal, const std::string& note) {
  Verdict verdict;
  verdict.name = name;
  verdict.passed = equal;
  if (!equal) verdict.note = note.empty() ? "differs" : note;
  add(std::move(verdict));
}

void Suite::fail(const std::string& name, const std::string& why) { exact(name, false, why); }

void Suite::skip(const std::string& name, const std::string& why) {
  Verdict verdict;
  verdict.name = name;
  verdict.skipped = true;
  verdict.note = why;
  add(std::move(verdict));
}

uint64_t poly64(const void* data, int64_t elements, int element_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = 0xcbf29ce484222325ull;
  for (int64_t i = 0; i < elements; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i * element_bytes, static_cast<size_t>(element_bytes));
    hash = hash * 6364136223846793005ull + word;
  }
  return hash;
}

uint32_t crc32_of(const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

std::string hex64(uint64_t value) { return strf("%016llx", static_cast<unsigned long long>(value)); }

}  // namespace h3
