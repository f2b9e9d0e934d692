// Checkpoint files as named tensors. A reader (safetensors, later CMF and GGUF) yields TensorInfo entries; nothing above
// this layer knows a byte layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "quant/matrix.h"

namespace h3 {

struct TensorInfo {
  std::string name;
  Format format = Format::f32;
  std::vector<int64_t> dims;
  std::span<const std::byte> data;   // mapped; empty for zero elements
  std::string file;                  // path, for messages
  uint64_t offset = 0;               // of data in the file
};

// One component's worth of files: a single file, or the shards of one folder with their index.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const std::vector<TensorInfo>& tensors() const = 0;   // in file order
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  virtual const std::vector<std::string>& files() const = 0;
  virtual std::string id() const = 0;                           // model id of design.md 6 (header hash + size)
  const TensorInfo* find(const std::string& name) const;        // nullptr when absent

 private:
  mutable std::map<std::string, const TensorInfo*> index_;
};

// A safetensors file, or a sharded one through its *.index.json. Everything is validated: header length, JSON, dtypes,
// shapes against byte counts, offsets sorted, gap-free and inside the file, unique names, index and shards agreeing.
// Error(data) names file, tensor, value and what is allowed.
std::unique_ptr<TensorSource> open_safetensors(const std::string& path);

// Writes one safetensors file (dumps, caches, tests).
struct TensorToWrite {
  std::string name;
  Format format = Format::f32;
  std::vector<int64_t> dims;
  std::span<const std::byte> data;
};
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace h3
