#include "pipeline/stage_sink.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "store/tensor_source.h"

namespace h3 {
namespace {

TensorToWrite to_write(const StageTensor& tensor) {
  TensorToWrite out;
  out.name = tensor.name;
  out.dims = tensor.dims;
  if (!tensor.i32.empty()) {
    out.format = Format::i32;
    out.data = std::as_bytes(std::span(tensor.i32));
  } else if (!tensor.u8.empty()) {
    out.format = Format::u8;
    out.data = std::as_bytes(std::span(tensor.u8));
  } else {
    out.format = Format::f32;
    out.data = std::as_bytes(std::span(tensor.f32));
  }
  return out;
}

std::vector<float> decode(const TensorInfo& info) {
  StoredMatrix matrix;
  matrix.format = info.format;
  matrix.rows = info.dims.empty() ? 1 : info.dims[0];
  int64_t count = 1;
  for (int64_t dim : info.dims) count *= dim;
  matrix.cols = matrix.rows > 0 ? count / matrix.rows : 0;
  matrix.data = info.data;
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    row_of(info.format).decode_row(matrix, row, values.data() + row * matrix.cols);
  }
  return values;
}

std::vector<int32_t> integers(const TensorSource& source, const std::string& name, int64_t rows,
                              const std::string& path) {
  const TensorInfo* const info = source.find(name);
  if (info == nullptr) return {};
  const bool fits = info->dims.size() == 1 && info->dims[0] == rows;
  if (!fits || (info->format != Format::i32 && info->format != Format::i64)) {
    fail(Code::data, "prompt_embeds: %s: %s must hold %lld whole numbers, one per row", path.c_str(), name.c_str(),
         static_cast<long long>(rows));
  }
  std::vector<int32_t> values(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    int64_t wide = 0;
    int32_t narrow = 0;
    const std::byte* const at = info->data.data();
    if (info->format == Format::i64) {
      std::memcpy(&wide, at + i * 8, 8);
      narrow = static_cast<int32_t>(wide);
    } else {
      std::memcpy(&narrow, at + i * 4, 4);
    }
    values[static_cast<size_t>(i)] = narrow;
  }
  return values;
}

const TensorInfo& embeds_of(const TensorSource& source, const std::string& path) {
  const TensorInfo* const info = source.find("prompt_embeds");
  if (info == nullptr) {
    fail(Code::data, "prompt_embeds: %s has no tensor prompt_embeds, write one with --dump text=FILE", path.c_str());
  }
  if (info->dims.size() != 2 || info->dims[0] < 1 || info->dims[1] < 1) {
    fail(Code::data, "prompt_embeds: %s: prompt_embeds must have two axes, rows and features", path.c_str());
  }
  return *info;
}

}  // namespace

double rms(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return values.empty() ? 0 : std::sqrt(squares / static_cast<double>(values.size()));
}

void write_stage(const std::string& path, const StageResult& result) {
  std::vector<TensorToWrite> tensors;
  for (const StageTensor& tensor : result.tensors) tensors.push_back(to_write(tensor));
  std::map<std::string, std::string> metadata = result.metadata;
  metadata["stage"] = result.stage;
  write_safetensors(path, tensors, metadata);
}

SavedText read_saved_text(const std::string& path) {
  const std::unique_ptr<TensorSource> source = open_safetensors(path);
  const TensorInfo& info = embeds_of(*source, path);
  SavedText saved;
  saved.rows = info.dims[0];
  saved.width = info.dims[1];
  saved.embeds = decode(info);
  saved.tags = integers(*source, "text_token_tags", saved.rows, path);
  saved.ids = integers(*source, "token_ids", saved.rows, path);
  if (saved.tags.empty()) saved.tags.assign(static_cast<size_t>(saved.rows), 1);
  for (const int32_t tag : saved.tags) {
    if (tag != 0 && tag != 1)
      fail(Code::data, "prompt_embeds: %s: a tag is %d, allowed are 0 and 1", path.c_str(), tag);
  }
  return saved;
}

int64_t saved_text_rows(const std::string& path) { return embeds_of(*open_safetensors(path), path).dims[0]; }

}  // namespace h3
