// GGUF files for tests, and their bytes for tests that damage them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "store/tensor_source.h"

namespace h3::testing {

class GgufFile {
 public:
  explicit GgufFile(uint32_t version = 3) : version_(version) {}

  GgufFile& text(const std::string& key, const std::string& value) { return raw_value(key, 8, string(value)); }
  GgufFile& u32(const std::string& key, uint32_t value) { return raw_value(key, 4, number(value, 4)); }
  // Any value: its type and its bytes.
  GgufFile& raw_value(const std::string& key, uint32_t type, const std::string& bytes) {
    values_ += string(key) + number(type, 4) + bytes;
    ++value_count_;
    return *this;
  }
  static std::string strings(const std::vector<std::string>& items) {
    std::string out = number(8, 4) + number(items.size(), 8);
    for (const std::string& item : items) out += string(item);
    return out;
  }

  // `dims` as the model sees them, outermost first.
  GgufFile& tensor(const std::string& name, uint32_t type, const std::vector<int64_t>& dims, const std::string& data) {
    while (data_.size() % alignment != 0) data_.push_back('\0');
    entry(name, type, dims, data_.size());
    data_ += data;
    return *this;
  }
  GgufFile& entry(const std::string& name, uint32_t type, const std::vector<int64_t>& dims, uint64_t offset) {
    entries_ += string(name) + number(dims.size(), 4);
    for (size_t i = dims.size(); i-- > 0;) entries_ += number(static_cast<uint64_t>(dims[i]), 8);
    entries_ += number(type, 4) + number(offset, 8);
    ++tensor_count_;
    return *this;
  }

  std::string header() const {
    return "GGUF" + number(version_, 4) + number(tensor_count_, 8) + number(value_count_, 8) + values_ + entries_;
  }
  std::string bytes() const {
    std::string out = header();
    while (out.size() % alignment != 0) out.push_back('\0');
    return out + data_;
  }

  static std::string number(uint64_t value, int width) {
    std::string out;
    for (int i = 0; i < width; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
    return out;
  }
  static std::string string(const std::string& text) { return number(text.size(), 8) + text; }
  static std::string floats(const std::vector<float>& values) {
    std::string out(values.size() * 4, '\0');
    if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
    return out;
  }

  uint64_t alignment = 32;

 private:
  uint32_t version_;
  uint64_t value_count_ = 0, tensor_count_ = 0;
  std::string values_, entries_, data_;
};

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace h3::testing
