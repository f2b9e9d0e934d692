// Writes a safetensors file tensor by tensor: nothing but the piece at hand is in memory (spec formats B).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file_map.h"
#include "quant/formats.h"

namespace h3 {

struct SafetensorsEntry {
  std::string name;
  Format format = Format::f32;  // of whole bytes: packed codes are u8
  std::vector<int64_t> dims;
};

class SafetensorsWriter {
 public:
  // Places follow from the entries: larger elements first, then by name, back to back.
  SafetensorsWriter(const std::string& path, const std::vector<SafetensorsEntry>& entries,
                    const std::map<std::string, std::string>& metadata);

  // The next bytes of an entry, in any order of entries.
  void write(size_t entry, std::span<const std::byte> bytes);
  void commit();  // every entry is complete; the file appears under its name
  const AtomicFile& file() const { return file_; }

 private:
  struct Place {
    uint64_t at = 0, end = 0;  // where the next bytes go, and where they end
  };
  AtomicFile file_;
  std::vector<Place> places_;
};

}  // namespace h3
