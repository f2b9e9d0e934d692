// The video autoencoder as CMF files hold it: names of the original release shortened, rows per head, pictures' taps
// apart from the earlier ones.
#include <algorithm>
#include <memory>

#include "base/error.h"
#include "model/export.h"
#include "model/vae/video_weights.h"

namespace h3 {
namespace {

struct Origin {
  explicit Origin(const Component& from)
      : component(from),
        config(video_vae_config(component)),
        tensors(bind_video_vae(component, config)),
        binder(component) {}
  Component component;
  VideoVaeConfig config;
  VideoVaeTensors tensors;
  WeightBinder binder;
};
using SharedOrigin = std::shared_ptr<const Origin>;

// Where the rows of a tensor come from in the file at hand.
using Pieces = std::vector<std::pair<TensorField, std::pair<int64_t, int64_t>>>;  // tensor, first row, rows

// Rows [head by head: q, k, v] from three tensors.
Pieces interleaved(const VideoVaeConfig& c, TensorField q, TensorField k, TensorField v) {
  Pieces pieces;
  for (int64_t head = 0; head < c.heads; ++head) {
    for (const TensorField part : {q, k, v}) pieces.push_back({part, {head * c.head_dim, c.head_dim}});
  }
  return pieces;
}

class Exporter {
 public:
  explicit Exporter(SharedOrigin origin) : origin_(std::move(origin)), c_(origin_->config) {}

  Exported run(const VaeExportOptions& options) {
    if (options.decoder && c_.has_decoder) decoder();
    if (options.encoder && c_.has_encoder) encoder();
    vector("latents_mean", c_.mean, Keep::exact);
    vector("latents_std", c_.std, Keep::exact);
    out_.configs.emplace_back("vvae.config_json", config());
    return std::move(out_);
  }

 private:
  void vector(const std::string& name, std::vector<float> values, Keep keep) {
    const int64_t n = static_cast<int64_t>(values.size());
    out_.tensors.push_back(export_values("vvae." + name, "vvae", keep, {n}, std::move(values)));
  }

  void add(const std::string& original, const std::string& family, std::vector<int64_t> dims, Keep keep,
           const Pieces& pieces) {
    const std::string name = "vvae." + compact_video_name(original);
    const SharedOrigin origin = origin_;
    out_.tensors.push_back({name, std::move(dims), keep, family, [origin, pieces, name] {
                              MatrixSource rows;
                              rows.name = name;
                              for (const auto& [tensor, range] : pieces) {
                                const StoredMatrix matrix = origin->binder.matrix(tensor);
                                const bool all = range.second < 0;
                                rows.append(matrix, all ? 0 : range.first, all ? matrix.rows : range.second);
                              }
                              return rows;
                            }});
  }

  static Pieces all(TensorField tensor) { return {{tensor, {0, -1}}}; }

  // The tensors of a table that no special case takes, under their original names.
  template <class Group, size_t N>
  void table(const VideoRow<Group> (&rows)[N], const Group& group, const std::string& prefix, const char* family,
             int64_t in = 0, int64_t out = 0) {
    for (const VideoRow<Group>& row : rows) {
      const TensorField tensor = group.*row.field;
      if (tensor == nullptr || row.original == nullptr) continue;
      std::vector<int64_t> dims;
      for (const VideoDim dim : row.dims) {
        if (dim != VideoDim::none) dims.push_back(dim_value(dim, c_, in, out));
      }
      const std::string name = prefix + row.original;
      if (dims.size() == 5) {
        kernel(name, dims, tensor);
        continue;
      }
      const bool matrix = (row.flags & kQuantise) != 0;
      add(name, family, dims, matrix ? Keep::quantised : dims.size() == 1 ? Keep::half : Keep::exact, all(tensor));
    }
  }

  // The last tap under the name that pictures are encoded by, the earlier ones beside it.
  void kernel(const std::string& original, std::vector<int64_t> dims, TensorField tensor) {
    const std::string name = "vvae." + compact_video_name(original);
    const bool small = name.find("quant_conv") != std::string::npos;
    const std::vector<int64_t> last =
        small ? std::vector<int64_t>{dims[0], dims[1]} : std::vector<int64_t>{dims[0], dims[1], dims[3], dims[4]};
    const Keep keep = small ? Keep::exact : Keep::half;
    const SharedOrigin origin = origin_;
    out_.tensors.push_back({name, last, keep, "vvae.enc", [origin, tensor, name, dims] {
                              VideoKernel k = read_kernel(origin->binder, origin->tensors, tensor, true);
                              return owned_rows(name, std::move(k.values), dims[0]);
                            }});
    if (dims[2] == 1 || (c_.compact && origin_->tensors.past.count(tensor) == 0)) return;
    --dims[2];
    const std::string past = name + kPastTaps;
    out_.tensors.push_back({past, dims, keep, "vvae.enc", [origin, tensor, past, dims] {
                              return owned_rows(past, earlier_taps(*origin, tensor), dims[0]);
                            }});
  }

  static std::vector<float> earlier_taps(const Origin& origin, TensorField tensor) {
    const VideoKernel k = read_kernel(origin.binder, origin.tensors, tensor, false);
    const int64_t area = static_cast<int64_t>(k.side) * k.side, taps = k.taps;
    std::vector<float> values;
    for (int64_t i = 0; i < k.out * k.in; ++i) {
      const auto first = k.values.begin() + i * taps * area;
      values.insert(values.end(), first, first + (taps - 1) * area);
    }
    return values;
  }

  void decoder() {
    const VideoVaeTensors& t = origin_->tensors;
    table(video_rows::kDecoder, t.decoder, "", "vvae.out");
    for (size_t i = 0; i < t.blocks.size(); ++i)
      block(t.blocks[i], "decoder.transformer_blocks." + std::to_string(i) + ".");
  }

  void block(const DecoderBlockTensors& b, const std::string& prefix) {
    const int64_t inner3 = 3 * c_.inner();
    for (const auto& row : video_rows::kDecoderBlock) {
      if (row.original == nullptr) continue;
      const std::string name = prefix + row.original;
      const bool bias = name.ends_with("bias");
      const std::string base = row.original;
      const std::string family = "vvae." + base.substr(0, base.rfind('.'));  // "vvae.attn.to_qkv", "vvae.ff.w1"
      const bool fused = row.field == &DecoderBlockTensors::qkv || row.field == &DecoderBlockTensors::qkv_bias;
      const bool gated = row.field == &DecoderBlockTensors::w1 || row.field == &DecoderBlockTensors::w1_bias;
      const bool matrix = (row.flags & kQuantise) != 0;
      const Keep keep = matrix ? Keep::quantised : Keep::half;
      Pieces pieces = all(b.*row.field);
      if (fused && !c_.original) {
        pieces = bias ? interleaved(c_, b.q_bias, b.k_bias, b.v_bias) : interleaved(c_, b.q, b.k, b.v);
      } else if (gated && !c_.original) {
        pieces = {{b.*row.field, {c_.ffn, c_.ffn}}, {b.*row.field, {0, c_.ffn}}};
      }
      std::vector<int64_t> dims;
      for (const VideoDim dim : row.dims) {
        if (dim != VideoDim::none) dims.push_back(dim_value(dim, c_, 0, 0));
      }
      H3_ASSERT(!fused || dims[0] == inner3);
      add(name, family, dims, keep, pieces);
    }
  }

  void encoder() {
    const VideoVaeTensors& t = origin_->tensors;
    table(video_rows::kEncoder, t.encoder, "", "vvae.enc");
    for (size_t level = 0; level < t.levels.size(); ++level) {
      const std::string prefix = "encoder.down." + std::to_string(level) + ".";
      const VideoVaeTensors::Level& l = t.levels[level];
      const int64_t out = c_.channels[level];
      for (size_t b = 0; b < l.resnets.size(); ++b) {
        const int64_t in = b == 0 ? c_.level_input(level) : out;
        const std::string resnet = prefix + "block." + std::to_string(b) + ".";
        table(video_rows::kResnet, l.resnets[b], resnet, "vvae.enc", in, out);
        table(video_rows::kShortcut, l.shortcuts[b], resnet, "vvae.enc", in, out);
      }
      table(video_rows::kDownsample, l.down, prefix, "vvae.enc", out, out);
    }
  }

  // The keys that other programs write, and after a release's defaults those that only toys need.
  Json config() const {
    const auto list = [](const std::vector<int>& values) {
      Json array = Json::array();
      for (const int value : values) array.push(value);
      return array;
    };
    Json json = Json::object();
    json.set("clip_length", c_.clip.clip).set("dim", c_.hidden).set("dim_head", c_.head_dim);
    json.set("eps", decimal_of(c_.norm_eps)).set("heads", c_.heads).set("norm_eps", decimal_of(c_.group_eps));
    json.set("norm_num_groups", c_.groups).set("num_layers", c_.layers);
    json.set("num_levels", static_cast<int64_t>(c_.channels.size())).set("num_register_tokens", c_.registers);
    json.set("num_res_blocks", c_.blocks_per_level).set("patch_size", c_.ratio).set("patch_size_t", c_.clip.ratio);
    json.set("rope_dim_ratio", c_.rope_ratio).set("rope_theta", c_.rope_theta);
    json.set("space_down", list(c_.space_down)).set("time_down", list(c_.time_down));
    return json.set("token_drop", c_.clip.drop).set("z_channels", c_.latent);
  }

  SharedOrigin origin_;
  const VideoVaeConfig& c_;
  Exported out_;
};

}  // namespace

Exported export_video_vae(const Component& component, const VaeExportOptions& options) {
  return Exporter(std::make_shared<const Origin>(component)).run(options);
}

}  // namespace h3
