// A weight matrix as it lies in a checkpoint: its storage format, its bytes, and the order in which its rows are to be
// read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codec/packed.h"
#include "quant/formats.h"

namespace h3 {

// One tensor of a file, 2-D [rows, cols] (higher ranks flattened behind the first axis). Non-owning: the file map or
// container outlives it (`keep_alive` holds it when the bytes were made at load time). Planes are little-endian and
// need no alignment; codec/NAME.h says what they hold.
struct StoredMatrix {
  Format format = Format::f32;
  int64_t rows = 0, cols = 0;
  std::span<const std::byte> data;   // payload in the format's canonical layout
  std::span<const std::byte> scale;  // side tensors of ComfyUI formats, empty otherwise
  std::span<const std::byte> scale2;
  std::span<const std::byte> codebook;
  std::span<const std::byte> pre_scale;  // AWQ pre_quant_scale, f32 [cols]: part of the decoded weights
  int32_t rotation = 0;                  // ConvRot group size; 0 = not rotated
  std::shared_ptr<const void> keep_alive;

  int64_t bytes() const;  // of all planes
};

// The planes as the codecs take them. Only of a matrix that check_matrix accepted.
PackedRows packed_rows(const StoredMatrix& matrix);

// Rows of a stored matrix in another order, still packed and not copied: every plane as the pieces that lie behind each
// other in it. What loads a weight copies them once, to where they are used.
struct GatheredMatrix {
  using Pieces = std::vector<std::span<const std::byte>>;
  Format format = Format::f32;
  PackedRows rows;                         // without its planes
  std::array<Pieces, 5> planes;            // data, scale, scale2, codebook, pre_scale
  std::shared_ptr<const void> keep_alive;  // of the pieces
  int64_t plane_bytes(size_t plane) const;
};

// `rows` need not be distinct.
GatheredMatrix gather_rows(const StoredMatrix& matrix, std::span<const int64_t> rows);

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
  // The rows in order as few matrices, still packed: one for each run of parts of one stored matrix.
  std::vector<GatheredMatrix> segments() const;
};

}  // namespace h3
