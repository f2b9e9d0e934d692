// A weight matrix as it lies in a checkpoint: its storage format, its bytes, and the order in which its rows are to be
// read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quant/formats.h"

namespace h3 {

// One tensor of a file, 2-D [rows, cols] (higher ranks flattened behind the first axis). Non-owning: the file map or
// container outlives it (`keep_alive` holds it when the bytes were made at load time).
struct StoredMatrix {
  Format format = Format::f32;
  int64_t rows = 0, cols = 0;
  std::span<const std::byte> data;   // payload in the format's canonical layout
  std::span<const std::byte> scale;  // side tensors of ComfyUI formats, empty otherwise (see the format's codec)
  std::span<const std::byte> scale2;
  std::span<const std::byte> pre_scale;  // AWQ pre_quant_scale, [cols] bf16
  int32_t flags = 0;                     // format specific (e.g. convrot group size)
  std::shared_ptr<const void> keep_alive;
};

// The matrix a Linear multiplies by: rows gathered from one or more stored matrices. Fusing q/k/v, de-interleaving
// QKV and swapping gate/up are row orders, done here, once, in the loader (dit.md 1.3).
struct MatrixSource {
  struct Part {
    StoredMatrix matrix;
    int64_t first = 0;  // first row of `matrix`
    int64_t rows = 0;   // consecutive rows taken
  };
  std::string name;  // canonical name, for messages and labels
  int64_t rows = 0, cols = 0;
  std::vector<Part> parts;

  void append(const StoredMatrix& matrix, int64_t first, int64_t count);
  Format format() const;                                             // of the first part
  int64_t stored_bytes() const;                                      // bytes of the rows taken
  void decode_rows(int64_t first, int64_t count, float* out) const;  // [count, cols], exact values of the format
};

}  // namespace h3
