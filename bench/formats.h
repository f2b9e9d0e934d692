// What every storage format costs and loses: the tables of docs/formats.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/control.h"
#include "base/log.h"
#include "ops/ops.h"
#include "quant/encode.h"
#include "store/model_files.h"

namespace h3 {

// The weights of a matrix in a format; also the GGUF formats that bench/ggml_encode.h can make.
bool can_encode(Format format);
EncodedMatrix encode_for_bench(Format format, const RowReader& source, const std::string& tensor, ThreadPool& pool);

// A transformer or conditioner whose matrices are encoded in memory, those of its blocks that a packer may store in
// blocks and that fit the format; the embedding too. q2tp goes to what its packer gives it, the first matrices of each
// MLP; the others are then q4tp. `error` sums over them.
Component encoded_component(const Component& component, Format format, ThreadPool& pool, ErrorStats& error);

struct FormatLoss {
  Format format = Format::f32;
  double gaussian = -1;  // relative L2 of normally distributed weights; -1 = no encoder here
  double weights = -1;   // of the matrices of a transformer
  double velocity = -1;  // of its velocities, one evaluation at half time, against the weights as they are
};

// Every weight format, in the order of quant/formats.h; f32 arithmetic throughout.
std::vector<FormatLoss> measure_formats(Ops& ops, const Component& transformer, const Control& control);

// docs/formats.md up to its measured part.
std::string formats_markdown(const std::vector<FormatLoss>& losses);

// The same, measured on the host with the transformer of `models`; none = the embedded demo, whose own rounding then
// comes first. threads: 0 = one per CPU.
std::string formats_page(const std::vector<std::string>& models, int threads, Log& log);

}  // namespace h3
