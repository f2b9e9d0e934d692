#include "model/vae/audio_weights.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "base/error.h"

namespace h3 {
namespace {

// Statistics of the released latents (spec vae 1), for files that carry none.
constexpr double kReleaseMean[32] = {
    -0.020211687488382354, 0.3876466479950502,    -0.04398279799186767, -0.28591514936373,     0.08179686214561671,
    -0.35782641352446604,  0.040623809960919084,  -0.01552534501956604, -0.223362481667332,    0.1821006842509091,
    0.2941778783780663,    -0.07901167601970885,  -0.056815072777201,   -0.3699028221860095,   -0.31616315591624855,
    0.5905951377425391,    -0.052139568068853864, 0.013673160263486295, -0.03691647864630577,  0.09732660653298163,
    -0.3394662328788498,   -0.30685677538541667,  -0.24504598907458763, -0.034698524462007344, 0.02868032184767538,
    -0.21217779266454084,  -0.1678263169941987,   0.3221287889040614,   -0.1223055851554907,   0.4356604928128464,
    -0.0502599202236253,   0.3979258376211797};
constexpr double kReleaseStd[32] = {1.6895524230479284, 2.76263727217653,   1.7945344281264435, 1.6801681847309828,
                                    1.6390226546605453, 2.7788298348882177, 1.7659090095747236, 1.6199757612137327,
                                    2.6336525640336896, 1.8539356672817833, 2.5056497896915633, 1.811019237886178,
                                    1.9579657790720237, 1.6685498243529284, 1.4922469314453364, 3.298670198067373,
                                    1.9491804496832168, 1.8720003270431442, 1.8334080103291832, 1.6488070416529093,
                                    1.6176957696319716, 1.9131449234774398, 1.5695245398428617, 1.6943659940415912,
                                    1.8318420762504692, 1.5540637421583379, 1.9344930328968526, 1.599198216109855,
                                    1.718045989838149,  1.6307219190837705, 1.8661226051202384, 1.5613768203168363};

constexpr int64_t kMaxStages = 64;  // bounds what a hostile file can make us count

std::string text(const std::string& prefix, int64_t index, const std::string& rest) {
  return prefix + std::to_string(index) + rest;
}

// ---- the table ------------------------------------------------------------------------------------------------------

class Table {
 public:
  void conv(const std::string& module, std::vector<int64_t> dims, int64_t bias) {
    rows.push_back({module, std::move(dims), true, kKeepF32});
    if (bias > 0) rows.push_back({module + ".bias", {bias}, false, kKeepF32});
  }
  void plain(const std::string& name, std::vector<int64_t> dims, int flags = kKeepF32) {
    rows.push_back({name, std::move(dims), false, flags});
  }
  void affine(const std::string& module, std::vector<int64_t> dims, int flags = kKeepF32) {
    const int64_t out = dims[0];
    plain(module + ".weight", std::move(dims), flags);
    plain(module + ".bias", {out}, flags);
  }
  void activation(const std::string& module, int64_t width) {
    plain(module + ".act.alpha", {width});
    plain(module + ".act.beta", {width});
    for (const char* filter : {".upsample.filter", ".downsample.lowpass.filter"}) {
      plain(module + filter, {1, 1, kFilterTaps}, kKeepF32 | kMayBeAbsent);
    }
  }
  std::vector<AudioRow> rows;
};

void add_decoder(Table& table, const AudioVaeConfig& c) {
  table.affine("dec_in_proj", {c.latent_dim, c.latent, 1});
  table.conv("decoder.conv_pre", {c.decoder_dim, c.latent_dim, 7}, c.decoder_dim);
  for (int64_t i = 0; i < c.stages(); ++i) {
    const int64_t width = c.decoder_width(i);
    table.conv(text("decoder.ups.", i, ".0"), {2 * width, width, c.decoder_kernels[i]}, width);
    for (int64_t m = 0; m < c.blocks(); ++m) {
      const std::string block = text("decoder.resblocks.", c.blocks() * i + m, ".");
      const int64_t steps = static_cast<int64_t>(c.block_dilations.size());
      for (int64_t q = 0; q < steps; ++q) {
        for (const char* list : {"convs1.", "convs2."}) {
          table.conv(block + text(list, q, ""), {width, width, c.block_kernels[m]}, width);
        }
      }
      for (int64_t a = 0; a < 2 * steps; ++a) table.activation(block + text("activations.", a, ""), width);
    }
  }
  const int64_t last = c.decoder_width(c.stages() - 1);
  table.activation("decoder.activation_post", last);
  table.conv("decoder.conv_post", {1, last, 7}, 0);
}

void add_encoder(Table& table, const AudioVaeConfig& c) {
  const int64_t stages = static_cast<int64_t>(c.encoder_rates.size());
  table.conv("encoder.block.0", {c.encoder_dim, 1, 7}, c.encoder_dim);
  for (int64_t s = 0; s < stages; ++s) {
    const std::string stage = text("encoder.block.", s + 1, ".block.");
    const int64_t width = c.encoder_width(s);
    for (int64_t j = 0; j < 3; ++j) {
      const std::string unit = text(stage, j, ".block.");
      table.plain(unit + "0.alpha", {1, width, 1});
      table.conv(unit + "1", {width, width, 7}, width);
      table.plain(unit + "2.alpha", {1, width, 1});
      table.conv(unit + "3", {width, width, 1}, width);
    }
    table.plain(stage + "3.alpha", {1, width, 1});
    table.conv(stage + "4", {2 * width, width, 2 * c.encoder_rates[s]}, 2 * width);
  }
  const int64_t width = c.encoder_width(stages);
  table.plain(text("encoder.block.", stages + 1, ".alpha"), {1, width, 1});
  table.conv(text("encoder.block.", stages + 2, ""), {c.latent_dim, width, 3}, c.latent_dim);

  const int64_t wide = c.latent_dim, narrow = c.latent;
  table.affine("pre_block.norm1", {wide});
  table.affine("pre_block.norm3", {wide});
  table.plain("pre_block.attn.qkv.weight", {3 * wide, wide});
  table.plain("pre_block.attn.q_bias", {wide});
  table.plain("pre_block.attn.zero_k_bias", {wide}, kKeepF32 | kMayBeAbsent);
  table.plain("pre_block.attn.v_bias", {wide});
  table.affine("pre_block.attn.proj", {narrow, narrow});
  table.affine("pre_block.proj", {narrow, wide});
  table.affine("pre_block.norm2", {narrow});
  table.affine("pre_block.mlp.norm", {narrow});
  table.affine("pre_block.mlp.w0", {2 * narrow, narrow});
  table.affine("pre_block.mlp.w1", {2 * narrow, narrow});
  table.affine("pre_block.mlp.w2", {narrow, 2 * narrow});
  table.affine("mean_proj", {narrow, narrow, 1});
  table.affine("logs_proj", {narrow, narrow, 1}, kKeepF32 | kMayBeAbsent);
}

// ---- dimensions -----------------------------------------------------------------------------------------------------

constexpr const char* kFolded = ".weight";
constexpr std::pair<const char*, const char*> kNormSpellings[] = {
    // magnitude, direction
    {".weight_g", ".weight_v"},
    {".parametrizations.weight.original0", ".parametrizations.weight.original1"},
};

// The shape of a convolution's weight in whichever spelling; empty when there is none.
std::vector<int64_t> weight_shape(const WeightBinder& binder, const std::string& module) {
  const TensorInfo* info = binder.find(module + kFolded);
  for (const auto& [magnitude, direction] : kNormSpellings) {
    if (info == nullptr) info = binder.find(module + direction);
  }
  return info != nullptr && info->dims.size() == 3 ? info->dims : std::vector<int64_t>();
}

int64_t count_modules(const WeightBinder& binder, const std::string& prefix, const std::string& suffix, int64_t first) {
  int64_t count = 0;
  while (count < kMaxStages && !weight_shape(binder, text(prefix, first + count, suffix)).empty()) ++count;
  return count;
}

template <typename Value>
void read_list(const Json& config, std::initializer_list<const char*> keys, std::vector<Value>& out) {
  for (const char* key : keys) {
    const Json* list = config.find(key);
    if (list == nullptr || list->is_null()) continue;
    if (list->size() > 0 && list->at(size_t{0}).is_array()) list = &list->at(size_t{0});  // one list per block kernel
    out.clear();
    for (const Json& item : list->items()) out.push_back(static_cast<Value>(item.as_double()));
    return;
  }
}

void read_decoder_shapes(const WeightBinder& binder, AudioVaeConfig& c) {
  const std::vector<int64_t> in = weight_shape(binder, "dec_in_proj"), pre = weight_shape(binder, "decoder.conv_pre");
  if (!in.empty()) c.latent = in[1];
  if (!pre.empty()) c.decoder_dim = pre[0], c.latent_dim = pre[1];
  const int64_t stages = count_modules(binder, "decoder.ups.", ".0", 0);
  if (stages == 0) return;
  c.decoder_kernels.clear();
  c.decoder_rates.clear();
  for (int64_t i = 0; i < stages; ++i) {
    const int kernel = static_cast<int>(weight_shape(binder, text("decoder.ups.", i, ".0"))[2]);
    c.decoder_kernels.push_back(kernel);
    c.decoder_rates.push_back((kernel + 1) / 2);  // the release's pairs, 9 to 5 and 4 to 2; a config overrules it
  }
  const int64_t blocks = count_modules(binder, "decoder.resblocks.", ".convs1.0", 0) / stages;
  if (blocks == 0) return;
  c.block_kernels.clear();
  for (int64_t m = 0; m < blocks; ++m) {
    c.block_kernels.push_back(static_cast<int>(weight_shape(binder, text("decoder.resblocks.", m, ".convs1.0"))[2]));
  }
}

void read_encoder_shapes(const WeightBinder& binder, AudioVaeConfig& c) {
  const std::vector<int64_t> first = weight_shape(binder, "encoder.block.0");
  if (!first.empty()) c.encoder_dim = first[0];
  const int64_t stages = count_modules(binder, "encoder.block.", ".block.4", 1);
  if (stages == 0) return;
  c.encoder_rates.clear();
  for (int64_t s = 0; s < stages; ++s) {
    const std::vector<int64_t> shape = weight_shape(binder, text("encoder.block.", s + 1, ".block.4"));
    c.encoder_rates.push_back(static_cast<int>(shape[2] / 2));  // kernels are twice the stride
  }
  const std::vector<int64_t> last = weight_shape(binder, text("encoder.block.", stages + 2, ""));
  const std::vector<int64_t> mean = weight_shape(binder, "mean_proj");
  if (!c.has_decoder && !last.empty()) c.latent_dim = last[0];
  if (!c.has_decoder && !mean.empty()) c.latent = mean[0];
}

void expect(bool good, const Component& component, const std::string& found, const char* allowed) {
  if (!good) fail(Code::data, "audio autoencoder %s: %s; %s", component.origin.c_str(), found.c_str(), allowed);
}

int64_t product(const std::vector<int>& values) {
  int64_t result = 1;
  for (const int value : values) result = std::min<int64_t>(result * std::max(value, 0), 1 << 20);
  return result;
}

constexpr int64_t kHop = 800;  // samples per latent, fixed by the rates of both halves and the pipeline's clock

void check_config(const Component& component, const AudioVaeConfig& c) {
  expect(c.latent > 0 && c.latent_dim > 0 && c.decoder_dim > 0 && c.encoder_dim > 0, component,
         "a dimension is not positive", "the release has 32 latent channels, 2048 latent features, widths 1024 and 64");
  if (c.has_decoder) {
    expect(c.decoder_rates.size() == c.decoder_kernels.size() && c.stages() <= 30 &&
               c.decoder_width(c.stages() - 1) > 0 && product(c.decoder_rates) == kHop,
           component,
           strf("its decoder makes %lld samples of a latent", static_cast<long long>(product(c.decoder_rates))),
           "the rates must give 800");
    for (int64_t i = 0; i < c.stages(); ++i) {
      const int extra = c.decoder_kernels[i] - c.decoder_rates[i];
      expect(extra >= 0 && extra % 2 == 0, component,
             strf("decoder.ups.%d has kernel %d and rate %d", static_cast<int>(i), c.decoder_kernels[i],
                  c.decoder_rates[i]),
             "the kernel must exceed the rate by an even number");
    }
    for (const int kernel : c.block_kernels) {
      expect(kernel > 0 && kernel % 2 == 1, component, strf("a residual block has kernel %d", kernel),
             "it must be odd");
    }
    for (const int dilation : c.block_dilations) {
      expect(dilation > 0, component, strf("a dilation is %d", dilation), "it must be positive");
    }
  }
  if (c.has_encoder) {
    expect(product(c.encoder_rates) == kHop, component,
           strf("its encoder makes a latent of %lld samples", static_cast<long long>(product(c.encoder_rates))),
           "the rates must give 800");
    expect(c.heads > 0 && c.latent_dim % c.heads == 0 && c.latent_dim / c.heads >= c.latent, component,
           strf("%lld heads for %lld features", static_cast<long long>(c.heads), static_cast<long long>(c.latent_dim)),
           "heads must divide the features and leave at least one per latent channel");
  }
}

bool any_with_prefix(const Component& component, const std::string& prefix) {
  const std::string whole = component.prefix + prefix;
  return std::any_of(component.source->tensors().begin(), component.source->tensors().end(),
                     [&](const TensorInfo& info) { return info.name.starts_with(whole); });
}

}  // namespace

std::vector<AudioRow> audio_vae_rows(const AudioVaeConfig& config) {
  Table table;
  if (config.has_encoder) add_encoder(table, config);
  if (config.has_decoder) add_decoder(table, config);
  return std::move(table.rows);
}

AudioVaeConfig audio_vae_config(const Component& component) {
  const WeightBinder binder(component);
  AudioVaeConfig c;
  c.has_decoder = any_with_prefix(component, "decoder.");
  c.has_encoder = any_with_prefix(component, "encoder.");
  expect(c.has_decoder || c.has_encoder, component, "it has neither decoder.* nor encoder.* tensors",
         "give an audio autoencoder");
  if (c.has_decoder) read_decoder_shapes(binder, c);
  if (c.has_encoder) read_encoder_shapes(binder, c);
  const Json& config = component.config;
  read_list(config, {"decoder_rates", "upsample_rates"}, c.decoder_rates);
  read_list(config, {"resblock_dilation_sizes"}, c.block_dilations);
  read_list(config, {"latents_mean"}, c.mean);
  read_list(config, {"latents_std"}, c.std);
  if (const Json* heads = config.find("num_attention_heads")) c.heads = heads->as_int();
  check_config(component, c);
  return c;
}

AudioVaeTensors::AudioVaeTensors(const Component& component, AudioVaeConfig& config) : binder_(component) {
  for (const AudioRow& row : audio_vae_rows(config)) {
    Bound bound;
    const auto bind = [&](const std::string& name, const std::vector<int64_t>& dims) {
      return (row.flags & kMayBeAbsent) != 0 ? binder_.optional(name, dims) : binder_.require(name, dims);
    };
    if (row.weight_norm) {
      for (const auto& [magnitude, direction] : kNormSpellings) {
        if (binder_.has(row.name + kFolded) || !binder_.has(row.name + direction)) continue;
        bound.direction = bind(row.name + direction, row.dims);
        bound.magnitude = bind(row.name + magnitude, {row.dims[0], 1, 1});
        break;
      }
      if (bound.direction == nullptr) bound.value = bind(row.name + kFolded, row.dims);
    } else {
      bound.value = bind(row.name, row.dims);
    }
    bound_.emplace(row.name, bound);
  }
  // A file of one half may keep parts of the other (spec vae 19).
  if (!config.has_encoder) {
    for (const char* prefix : {"pre_block.", "mean_proj.", "logs_proj.", "enc_"}) binder_.ignore_prefix(prefix);
  }
  if (!config.has_decoder) binder_.ignore_prefix("dec_in_proj.");
  const TensorInfo* mean = binder_.optional("latents_mean", {config.latent});
  const TensorInfo* std = binder_.optional("latents_std", {config.latent});
  binder_.finish();
  if (mean != nullptr) config.mean = binder_.values(mean);
  if (std != nullptr) config.std = binder_.values(std);
  if (config.mean.empty() && config.std.empty() && config.latent == 32) {
    config.mean.assign(std::begin(kReleaseMean), std::end(kReleaseMean));
    config.std.assign(std::begin(kReleaseStd), std::end(kReleaseStd));
  }
  const auto complete = [&](const std::vector<float>& values) {
    return static_cast<int64_t>(values.size()) == config.latent;
  };
  expect(complete(config.mean) && complete(config.std), component,
         strf("latents_mean has %zu and latents_std %zu values", config.mean.size(), config.std.size()),
         "one per latent channel is needed");
  expect(std::all_of(config.std.begin(), config.std.end(), [](float s) { return s > 0; }), component,
         "latents_std is not positive everywhere", "every value must be above 0");
}

const AudioVaeTensors::Bound& AudioVaeTensors::bound(const std::string& name) const {
  const auto found = bound_.find(name);
  H3_ASSERT(found != bound_.end());
  return found->second;
}

bool AudioVaeTensors::has(const std::string& name) const { return bound(name).value != nullptr; }

std::vector<float> AudioVaeTensors::values(const std::string& name) const {
  const Bound& b = bound(name);
  if (b.direction == nullptr) return binder_.values(b.value);
  return fold_weight_norm(binder_.values(b.direction), binder_.values(b.magnitude));
}

MatrixSource AudioVaeTensors::matrix(const std::string& name) const {
  const StoredMatrix stored = binder_.matrix(bound(name).value);
  MatrixSource source;
  source.name = name;
  source.append(stored, 0, stored.rows);
  return source;
}

std::vector<float> fold_weight_norm(const std::vector<float>& direction, const std::vector<float>& magnitude) {
  std::vector<float> out(direction.size());
  const size_t inner = direction.size() / std::max<size_t>(magnitude.size(), 1);
  for (size_t row = 0; row < magnitude.size(); ++row) {
    const float* v = direction.data() + row * inner;
    double squares = 0;
    for (size_t i = 0; i < inner; ++i) squares += static_cast<double>(v[i]) * v[i];
    const float scale = magnitude[row] / static_cast<float>(std::sqrt(squares));
    for (size_t i = 0; i < inner; ++i) out[row * inner + i] = v[i] * scale;
  }
  return out;
}

std::vector<float> default_filter() {
  // A windowed sinc: cutoff 0.25, half width 0.3 give the attenuation, and that the Kaiser beta.
  constexpr double kPi = 3.14159265358979323846, kCutoff = 0.25, kHalfWidth = 0.3;
  const double attenuation = 2.285 * (kFilterTaps / 2 - 1) * kPi * 4 * kHalfWidth + 7.95;
  const double beta = 0.1102 * (attenuation - 8.7);
  const auto bessel = [](double x) {  // I0 by its power series
    double sum = 1, term = 1;
    for (int k = 1; k < 50; ++k) {
      term *= (x / 2 / k) * (x / 2 / k);
      sum += term;
    }
    return sum;
  };
  double taps[kFilterTaps], sum = 0;
  for (int i = 0; i < kFilterTaps; ++i) {
    const double t = i - (kFilterTaps - 1) / 2.0, position = 2 * t / (kFilterTaps - 1);
    const double window = bessel(beta * std::sqrt(1 - position * position)) / bessel(beta);
    const double x = 2 * kCutoff * t * kPi;
    taps[i] = 2 * kCutoff * window * std::sin(x) / x;
    sum += taps[i];
  }
  std::vector<float> filter;
  for (const double tap : taps) filter.push_back(static_cast<float>(tap / sum));
  return filter;
}

}  // namespace h3
