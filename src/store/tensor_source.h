// Checkpoint files as named tensors. A reader (store/open.h lists them) yields TensorInfo entries; nothing above this
// layer knows a byte layout.
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
  std::span<const std::byte> data;  // mapped; empty for zero elements
  std::string file;                 // path, for messages
  uint64_t offset = 0;              // of data in the file
  // Planes of formats that spread a matrix over several tensors of the file, as StoredMatrix has them.
  std::span<const std::byte> scale, scale2, codebook, pre_scale;
  int32_t rotation = 0;

  int64_t bytes() const;  // of all planes
};

// Where tokenizer data was found; texts are file contents, empty when absent.
struct TokenizerFiles {
  std::string origin;
  std::string tokenizer_json, vocab_json, merges_txt, tokenizer_config_json;
};

// One component's worth of files: a single file, or the shards of one folder with their index.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const std::vector<TensorInfo>& tensors() const = 0;  // in file order
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  virtual const std::vector<std::string>& files() const = 0;
  virtual std::string id() const = 0;                                  // model id of design.md 6 (header hash + size)
  virtual const char* container() const { return "memory"; }           // "safetensors", "GGUF", ...
  virtual const TokenizerFiles* tokenizer() const { return nullptr; }  // inside the file; nullptr = none
  const TensorInfo* find(const std::string& name) const;               // nullptr when absent

 protected:
  void index_tensors();  // every reader calls it last in its constructor

 private:
  std::map<std::string, const TensorInfo*> index_;
};

// "tensor 'x' [2, 3] bf16": how messages name a tensor.
std::string describe(const TensorInfo& info);
std::string shape_text(const std::vector<int64_t>& dims);  // "[2, 3]"; -1 is written as "any"

// The whole tensor as a 2-D matrix [dims[0], rest]; a scalar is one row. Checked (check_matrix): Error(data) naming
// file, tensor and offset. Without keep_alive: the source owns the bytes.
StoredMatrix stored_matrix(const TensorInfo& info);

// A safetensors file, a sharded one through its *.index.json, or the folder that holds one of these. Everything is
// validated: header length, JSON, dtypes, shapes against byte counts, tensors gap-free and without overlap up to the
// end of the file, unique names, index and shards agreeing, shards inside the folder. Error(data) names file, tensor,
// value and what is allowed. The header may list tensors in any order; tensors() is in order of offset.
std::unique_ptr<TensorSource> open_safetensors(const std::string& path);

// The shards that an index names, whatever the index itself is called.
std::unique_ptr<TensorSource> open_safetensors_index(const std::string& path);

// The same for a whole file in memory, which the caller keeps alive. `name` stands for the path.
std::unique_ptr<TensorSource> open_safetensors(const std::string& name, std::span<const std::byte> bytes);

// A GGUF file, version 2 or 3, with or without metadata (spec formats D). Names are the canonical ones: those of
// llama.cpp's converters are translated (store/llama_names.h), kernels of five axes are put together again. Validated:
// counts and strings against the length of the file, at most four axes, known types, rows that divide into blocks,
// offsets aligned, inside the file and without overlap, unique names. Error(data) names file, tensor and offset.
std::unique_ptr<TensorSource> open_gguf(const std::string& path);
std::unique_ptr<TensorSource> open_gguf(const std::string& name, std::span<const std::byte> bytes);

// Writes one safetensors file (dumps, caches, tests): tensors by falling element size, then by name. Error(io) when the
// disk is full; an interrupted write leaves no file.
struct TensorToWrite {
  std::string name;
  Format format = Format::f32;
  std::vector<int64_t> dims;
  std::span<const std::byte> data;
};
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace h3
