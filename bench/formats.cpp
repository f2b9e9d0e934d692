#include "bench/formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "bench/ggml_encode.h"
#include "model/dit/dit.h"
#include "model/dit/weights.h"
#include "model/text/weights.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

constexpr int64_t kGaussianRows = 64, kGaussianCols = 4096;

// What people call the files that hold a format, and what codec/NAME.h does not say in a word.
struct Home {
  Format format;
  const char* files;
  const char* blocks;
};
constexpr Home kHomes[] = {
    {Format::f32, "safetensors, GGUF, CMF", "-"},
    {Format::bf16, "safetensors, GGUF, CMF", "-"},
    {Format::f16, "safetensors, GGUF, CMF", "-"},
    {Format::f8_e4m3, "safetensors (ComfyUI fp8 scaled)", "one f32 scale, or one per row"},
    {Format::f8_e5m2, "safetensors (ComfyUI fp8 scaled)", "one f32 scale, or one per row"},
    {Format::q8_row, "CMF", "an f16 scale per row"},
    {Format::q8_2f, "CMF", "an f16 scale per row and per column"},
    {Format::q4tp, "CMF", "32: a rung of 5 bits on the row's ladder"},
    {Format::q2tp, "CMF", "32: a rung of 5 bits on the row's ladder"},
    {Format::int8_convrot, "safetensors (ComfyUI int8_tensorwise)", "rotated; an f32 scale per row"},
    {Format::w4a8, "safetensors (ComfyUI asym_w4a8_int8)", "16: e4m3; rotated; an f32 scale per row, a codebook"},
    {Format::nvfp4, "safetensors (ComfyUI nvfp4, also AWQ)", "16: e4m3; one f32 scale"},
    {Format::q8_0, "GGUF", "32: f16"},
    {Format::q4_0, "GGUF", "32: f16"},
    {Format::q4_1, "GGUF", "32: f16 scale and least value"},
    {Format::q5_0, "GGUF", "32: f16"},
    {Format::q5_1, "GGUF", "32: f16 scale and least value"},
    {Format::q2_k, "GGUF", "16 in 256: 4 bits scale and least value"},
    {Format::q3_k, "GGUF", "16 in 256: 6 bits"},
    {Format::q4_k, "GGUF", "32 in 256: 6 bits scale and least value"},
    {Format::q5_k, "GGUF", "32 in 256: 6 bits scale and least value"},
    {Format::q6_k, "GGUF", "16 in 256: 8 bits"},
};

constexpr Format kWeightFormats[] = {
#define H3_FORMAT(codec, name, bits, block, begin) Format::codec,
    H3_WEIGHT_FORMATS(H3_FORMAT)
#undef H3_FORMAT
};
static_assert(std::size(kHomes) == std::size(kWeightFormats), "every weight format has a row in docs/formats.md");

RowReader reader_of_values(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {rows, cols, [&values, cols](int64_t first, int64_t count, float* out) {
            std::memcpy(out, &values[static_cast<size_t>(first * cols)], static_cast<size_t>(count * cols) * 4);
          }};
}

class EncodedSource final : public TensorSource {
 public:
  explicit EncodedSource(std::shared_ptr<TensorSource> base) : base_(std::move(base)), tensors_(base_->tensors()) {}
  std::vector<TensorInfo>& list() { return tensors_; }
  void keep(std::shared_ptr<const void> bytes) { kept_.push_back(std::move(bytes)); }
  void finish() { index_tensors(); }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return base_->metadata(); }
  const std::vector<std::string>& files() const override { return base_->files(); }
  std::string id() const override { return base_->id(); }

 private:
  std::shared_ptr<TensorSource> base_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::shared_ptr<const void>> kept_;
};

// A matrix of the transformer's or the encoder's blocks that a packer may store in blocks, in any spelling.
bool is_block_matrix(const TensorInfo& info) {
  if (info.dims.size() != 2) return false;
  const auto named = [&](const char* name) {
    return name != nullptr && *name != '\0' && info.name.ends_with("." + std::string(name));
  };
  for (const auto& row : dit::kBlock) {
    if ((row.flags & kQuantise) != 0 && std::any_of(row.name.begin(), row.name.end(), named)) return true;
  }
  for (const auto& row : text::kLayer) {
    if ((row.flags & kQuantise) != 0 && named(row.name)) return true;
  }
  return std::any_of(std::begin(text::kEmbed), std::end(text::kEmbed),
                     [&](const auto& row) { return named(row.name); });
}

// What cortiq's packer gives two bits (spec formats A.6).
bool takes_two_bits(const TensorInfo& info) {
  for (const char* name : {"mlp.fc1.weight", "ff.net.0.proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight"}) {
    if (info.name.ends_with(name)) return true;
  }
  return false;
}

// Relative L2; also over what is not finite.
double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double squares = 0, reference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += std::pow(static_cast<double>(got[i]) - want[i], 2);
    reference += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(squares / reference);
}

// Velocities of one evaluation of a small clip at half time: video, then audio.
std::vector<float> velocities(Ops& ops, const Component& component, const Control& control) {
  const std::unique_ptr<Dit> model = load_dit(ops, component, DitOptions{}, control);
  const DitConfig& config = model->config();
  LayoutSpec spec;
  spec.text_tags.assign(12, 1);
  spec.latent_frames = 2;
  spec.latent_height = spec.latent_width = 8;
  spec.audio_latents = 10;
  const PackedLayout layout = build_layout(spec);
  TorchGenerator generator(5);
  DitRequest request;
  request.layout = &layout;
  request.text = generator.randn(12 * config.text_dim);
  request.video_times = request.audio_times = {0.5f};
  const std::unique_ptr<DitSession> session = model->start(std::move(request), control);
  const std::vector<int64_t> video_dims{layout.target_video_rows(), config.video_row};
  const std::vector<int64_t> audio_dims{layout.target_audio_rows(), config.audio_row};
  const std::vector<float> video_noise = generator.randn(video_dims[0] * video_dims[1]);
  const std::vector<float> audio_noise = generator.randn(audio_dims[0] * audio_dims[1]);
  const Tensor video = upload_f32(ops.device(), video_noise.data(), video_dims, DType::f32, "video rows");
  const Tensor audio = upload_f32(ops.device(), audio_noise.data(), audio_dims, DType::f32, "audio rows");
  const Tensor video_velocity(ops.device(), DType::f32, video_dims, "video velocity");
  const Tensor audio_velocity(ops.device(), DType::f32, audio_dims, "audio velocity");
  session->evaluate(0, video, audio, video_velocity, audio_velocity);
  ops.sync();
  std::vector<float> out = download_f32(video_velocity);
  const std::vector<float> sound = download_f32(audio_velocity);
  out.insert(out.end(), sound.begin(), sound.end());
  return out;
}

bool fits(Format format, int64_t rows, int64_t cols) {
  return has_ggml_encoder(format) ? cols % row_of(format).block_cols == 0 : encode_refusal(format, rows, cols).empty();
}

std::string loss_text(double value) {
  if (value < 0) return "-";
  return value == 0 ? "0" : strf("%.1e", value);
}

}  // namespace

bool can_encode(Format format) { return fits(format, kGaussianRows, kGaussianCols); }

EncodedMatrix encode_for_bench(Format format, const RowReader& source, const std::string& tensor, ThreadPool& pool) {
  if (has_ggml_encoder(format)) return encode_ggml(format, source, tensor);
  return encode_matrix(format, source, tensor, pool);
}

Component encoded_component(const Component& component, Format format, ThreadPool& pool, ErrorStats& error) {
  auto source = std::make_shared<EncodedSource>(component.source);
  for (TensorInfo& info : source->list()) {
    if (!is_block_matrix(info) || !fits(format, info.dims[0], info.dims[1])) continue;
    const StoredMatrix stored = stored_matrix(info);
    const FormatRow& row = row_of(stored.format);
    const RowReader reader{stored.rows, stored.cols, [&](int64_t first, int64_t count, float* out) {
                             for (int64_t r = 0; r < count; ++r)
                               row.decode_row(stored, first + r, out + r * stored.cols);
                           }};
    const Format chosen = format == Format::q2tp && !takes_two_bits(info) ? Format::q4tp : format;
    const EncodedMatrix encoded = encode_for_bench(chosen, reader, info.name, pool);
    error.add(encoded.error);
    info.format = chosen;
    info.data = encoded.matrix.data;
    info.scale = encoded.matrix.scale;
    info.scale2 = encoded.matrix.scale2;
    info.rotation = encoded.matrix.rotation;
    source->keep(encoded.matrix.keep_alive);
  }
  source->finish();
  Component out = component;
  out.source = std::move(source);
  return out;
}

std::vector<FormatLoss> measure_formats(Ops& ops, const Component& transformer, const Control& control) {
  const std::vector<float> gaussian = TorchGenerator(3).randn(kGaussianRows * kGaussianCols);
  const RowReader reader = reader_of_values(gaussian, kGaussianRows, kGaussianCols);
  const std::vector<float> exact = velocities(ops, transformer, control);
  std::vector<FormatLoss> out;
  for (const Format format : kWeightFormats) {
    FormatLoss loss;
    loss.format = format;
    if (can_encode(format)) {
      ThreadPool& pool = ops.context().pool;
      loss.gaussian = encode_for_bench(format, reader, "gaussian", pool).error.rel_l2();
      ErrorStats error;
      const Component encoded = encoded_component(transformer, format, pool, error);
      loss.weights = error.rel_l2();
      loss.velocity = distance(velocities(ops, encoded, control), exact);
    }
    out.push_back(loss);
  }
  return out;
}

std::string formats_markdown(const std::vector<FormatLoss>& losses) {
  std::string page =
      "# Storage formats\n\n"
      "`h3 bench formats DEMO` prints this page up to the scores; DEMO is the demo model before it was packed. A "
      "format is a\n"
      "property of a tensor: files mix them, and `h3 info` lists what a file holds. Every back end runs every "
      "format.\n\n"
      "Bits are those of a weight with its block's scale; scales of rows and tensors come on top. The column *CPU* "
      "says how\n"
      "the matmuls of the host read the weights. Their kernels are int8 and bf16 at the levels scalar, AVX2, AVX-512 "
      "and\n"
      "AMX, and f32 at all but the last; at every level *packed* means that a kernel expands the stored bits, a block "
      "of\n"
      "columns at a time, *by rows* that the codec does, *panels* that the weights are copied once, at load, in the "
      "type of\n"
      "the arithmetic, *panels in int8* that they are where that takes no more than the file: the codes of q8_2f and "
      "Q8_0\n"
      "are then made anew with one scale for a row, which `--explain` says beside the kernel; those of rotated "
      "int8_convrot\n"
      "stay what they are, and activations are rotated instead. Cards keep formats of few bits packed and expand them "
      "per\n"
      "matmul; `--precision fp8` and `nvfp4` multiply those two as they are stored, by activations in the same "
      "format.\n\n"
      "Errors are relative L2: of normally distributed weights, of the block matrices of the demo "
      "transformer, and\n"
      "of its velocities in one evaluation with these weights and f32 arithmetic. q2tp is used as its packer uses it: "
      "the\n"
      "first matrices of each MLP, the others q4tp. Q8_0, Q4_0, Q4_K and Q6_K are rounded to nearest here; the tools "
      "that\n"
      "publish such files search for better scales. A dash: read, with no encoder here.\n\n"
      "| format | bits | files | block and scales | CPU | Gaussian weights | demo weights | demo velocities |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const FormatLoss& loss : losses) {
    const Home* home = std::begin(kHomes);
    while (home->format != loss.format) ++home;
    page += strf("| %s | %g | %s | %s | %s | %s | %s | %s |\n", row_of(loss.format).name,
                 row_of(loss.format).bits_per_weight, home->files, home->blocks, host_weights(loss.format),
                 loss_text(loss.gaussian).c_str(), loss_text(loss.weights).c_str(), loss_text(loss.velocity).c_str());
  }
  return page;
}

std::string formats_page(const std::vector<std::string>& models, int threads, Log& log) {
  ThreadPool pool(threads);
  Context context{pool, log};
  const std::unique_ptr<Ops> ops = make_backend("cpu", context);
  OpenOptions open;
  open.paths = models;
  const ModelFiles files = open_model_files(open);
  const Component* transformer = files.find(Role::dit);
  if (transformer == nullptr) fail(Code::usage, "bench formats: the model has no transformer; name one that has");
  return formats_markdown(measure_formats(*ops, *transformer, Control()));
}

}  // namespace h3
