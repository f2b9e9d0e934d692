// The container of the format's own vectors (tests/data/cmf), and files patched from it.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "apps/parity/codec_vectors.h"
#include "base/file_map.h"
#include "store/cmf.h"

namespace h3 {

struct ToyCmf {
  std::vector<std::byte> bytes;
  Json directory;
};

inline ToyCmf toy_cmf() {
  const std::string path = std::string(H3_SOURCE_DIR) + "/tests/data/cmf/toy_container.json";
  const Json json = Json::parse(read_file(path), path);
  ToyCmf toy;
  toy.bytes.resize(static_cast<size_t>(json.at("size").as_int()));
  for (const Json& segment : json.at("segments").items()) {
    const std::vector<std::byte> bytes = hex_bytes(segment.at(size_t{1}).as_string());
    std::memcpy(&toy.bytes[static_cast<size_t>(segment.at(size_t{0}).as_int())], bytes.data(), bytes.size());
  }
  toy.directory = json.at("directory");
  return toy;
}

template <typename Value>
void patch(std::vector<std::byte>& bytes, size_t offset, Value value) {
  std::memcpy(&bytes.at(offset), &value, sizeof value);
}

}  // namespace h3
