#include "model/dit/weights.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "base/error.h"

namespace h3::dit {
namespace {

using Resolve = std::function<int64_t(Dim)>;

std::string name_of_row(const std::array<const char*, 3>& names, Names spelling) {
  const char* name = names[static_cast<size_t>(spelling)];
  return name != kAsComfy ? name : names[0];
}

template <typename Owner, size_t kRows>
void bind_table(WeightBinder& binder, Names spelling, const std::string& prefix, const Row<Owner> (&rows)[kRows],
                Owner& owner, const Resolve& resolve) {
  for (const Row<Owner>& row : rows) {
    const std::string name = name_of_row(row.name, spelling);
    owner.*row.field = nullptr;
    if (name.empty()) continue;
    std::vector<int64_t> dims;
    for (Dim dim : row.dims) {
      if (dim != Dim::none) dims.push_back(resolve(dim));
    }
    owner.*row.field =
        (row.flags & kMayBeAbsent) != 0 ? binder.optional(prefix + name, dims) : binder.require(prefix + name, dims);
  }
}

Names spelling_of(const WeightBinder& binder) {
  if (binder.has("proj_in.weight")) return Names::diffusers;
  return binder.has("final_layer.adaln.weight") ? Names::cmf : Names::comfy;
}

// Axis of the tensor that a row names, -1 when it is not there.
int64_t axis(const WeightBinder& binder, const std::string& name, size_t index) {
  const TensorInfo* info = binder.find(name);
  return info != nullptr && index < info->dims.size() ? info->dims[index] : -1;
}

template <typename Owner, size_t kRows>
std::string name_of_field(const Row<Owner> (&rows)[kRows], const TensorInfo* Owner::*field, Names spelling) {
  for (const Row<Owner>& row : rows) {
    if (row.field == field) return name_of_row(row.name, spelling);
  }
  return "";
}

int64_t divided(int64_t n, int64_t by) { return n > 0 && by > 0 ? n / by : -1; }

// One more than the highest block number behind `prefix`.
int64_t count_blocks(const Component& component, const std::string& prefix) {
  constexpr int64_t kMost = 4096;  // far above any release; bounds what a damaged name can ask for
  const std::string start = component.prefix + prefix;
  int64_t count = 0;
  for (const TensorInfo& info : component.source->tensors()) {
    if (info.name.compare(0, start.size(), start) != 0) continue;
    const std::string rest = info.name.substr(start.size());
    const size_t digits = rest.find('.');
    if (digits == 0 || digits == std::string::npos || digits > 4) continue;
    if (rest.find_first_not_of("0123456789") != digits) continue;
    count = std::max(count, std::min<int64_t>(kMost, std::strtoll(rest.c_str(), nullptr, 10) + 1));
  }
  return count;
}

float eps_of(const Json& config, const char* key) {
  const Json* found = config.find(key);
  return found != nullptr && found->is_number() ? static_cast<float>(found->as_double()) : 1e-5f;
}

// Sizes from shapes, so that checkpoints of every size load (spec dit 1.1). Unknown ones stay -1: the binder then
// reports the tensor that is missing.
DitConfig read_config(const Component& component, const WeightBinder& binder, Names spelling) {
  const Prefixes prefixes = kPrefixes[static_cast<size_t>(spelling)];
  const auto trunk = [&](const TensorInfo* TrunkW::*field, size_t index) {
    return axis(binder, name_of_field(kTrunk, field, spelling), index);
  };
  DitConfig config;
  config.layers = count_blocks(component, prefixes.block);
  config.refiner_layers = count_blocks(component, prefixes.refiner);
  const auto block = [&](const TensorInfo* BlockW::*field, size_t index) {
    return axis(binder, prefixes.block + ("0." + name_of_field(kBlock, field, spelling)), index);
  };
  config.hidden = trunk(&TrunkW::video_in, 0);
  config.video_row = trunk(&TrunkW::video_in, 1);
  config.audio_row = trunk(&TrunkW::audio_in, 1);
  config.text_dim = trunk(&TrunkW::text_in, 1);
  config.head_dim = block(&BlockW::q_norm, 0);
  config.heads = spelling == Names::diffusers ? divided(block(&BlockW::q, 0), config.head_dim)
                                              : divided(block(&BlockW::qkv, 0), 3 * config.head_dim);
  config.ffn = divided(block(&BlockW::fc1, 0), 2);
  config.curve_points = std::max<int64_t>(0, trunk(&TrunkW::curve, 0));
  config.curve_rank = std::max<int64_t>(0, trunk(&TrunkW::curve, 1));
  if (spelling == Names::cmf) {
    config.curve_points = std::max<int64_t>(0, trunk(&TrunkW::final_table, 0));
    config.curve_rank = std::max<int64_t>(0, trunk(&TrunkW::final_table, 1));
  }
  config.freq_dim = std::max<int64_t>(0, trunk(&TrunkW::time1, 1));
  config.time_hidden = std::max<int64_t>(0, trunk(&TrunkW::time1, 0));
  config.time_dim = std::max<int64_t>(0, trunk(&TrunkW::time2, 0));
  config.rope_pairs = trunk(&TrunkW::rope, 0);
  if (config.rope_pairs < 0) config.rope_pairs = 16;
  config.norm_eps = eps_of(component.config, "norm_eps");
  config.qk_norm_eps = eps_of(component.config, "qk_norm_eps");
  config.final_norm_eps = eps_of(component.config, "final_norm_eps");
  return config;
}

Resolve resolver(const DitConfig& config) {
  return [config](Dim dim) -> int64_t {
    const auto times = [](int64_t n, int64_t by) { return n > 0 ? n * by : -1; };
    switch (dim) {
      case Dim::none:
      case Dim::any: return -1;
      case Dim::hidden: return config.hidden;
      case Dim::video_row: return config.video_row;
      case Dim::audio_row: return config.audio_row;
      case Dim::text: return config.text_dim;
      case Dim::freq: return times(config.freq_dim, 1);
      case Dim::time_hidden: return times(config.time_hidden, 1);
      case Dim::time: return times(config.time_dim, 1);
      case Dim::block_adaln: return times(config.hidden, 18);
      case Dim::final_adaln: return times(config.hidden, 2);
      case Dim::head_dim: return config.head_dim;
      case Dim::inner: return config.heads > 0 ? config.inner() : -1;
      case Dim::inner3: return config.heads > 0 ? 3 * config.inner() : -1;
      case Dim::ffn: return config.ffn;
      case Dim::ffn2: return times(config.ffn, 2);
      case Dim::rope: return config.rope_pairs;
    }
    return -1;
  };
}

// Without a curve the time embedder is required; with one it is read past.
void bind_trunk(WeightBinder& binder, Names spelling, const Resolve& resolve, TrunkW& trunk) {
  bind_table(binder, spelling, "", kTrunk, trunk, resolve);
  if (trunk.curve != nullptr || trunk.final_table != nullptr) return;
  for (const Row<TrunkW>& row : kTrunk) {
    const bool of_time = row.dims[0] == Dim::time || row.dims[0] == Dim::time_hidden;
    const std::string name = name_of_row(row.name, spelling);
    if (of_time && trunk.*row.field == nullptr && !binder.has(name)) {
      binder.require(name, std::vector<int64_t>(row.dims[1] == Dim::none ? 1 : 2, -1));
    }
  }
}

MatrixSource plain(const WeightBinder& binder, const TensorInfo* info) {
  MatrixSource source;
  if (info == nullptr) return source;
  const StoredMatrix matrix = binder.matrix(info);
  source.name = info->name;
  source.append(matrix, 0, matrix.rows);
  return source;
}

// Rows [q; k; v], whatever the file's order (spec dit 1.3).
MatrixSource qkv_rows(const WeightBinder& binder, const BlockW& block, const DitConfig& config, QkvOrder order) {
  if (block.qkv == nullptr) {
    MatrixSource source;
    for (const TensorInfo* part : {block.q, block.k, block.v}) {
      const StoredMatrix matrix = binder.matrix(part);
      source.append(matrix, 0, matrix.rows);
    }
    source.name = block.q->name;
    return source;
  }
  if (order == QkvOrder::contiguous) return plain(binder, block.qkv);
  MatrixSource source;
  source.name = block.qkv->name;
  const StoredMatrix matrix = binder.matrix(block.qkv);
  for (int64_t part = 0; part < 3; ++part) {
    for (int64_t head = 0; head < config.heads; ++head) {
      source.append(matrix, (head * 3 + part) * config.head_dim, config.head_dim);
    }
  }
  return source;
}

// Rows [gate; value]; diffusers stores [value; gate].
MatrixSource gate_value_rows(const WeightBinder& binder, const BlockW& block, const DitConfig& config, Names spelling) {
  if (spelling != Names::diffusers) return plain(binder, block.fc1);
  MatrixSource source;
  source.name = block.fc1->name;
  const StoredMatrix matrix = binder.matrix(block.fc1);
  source.append(matrix, config.ffn, config.ffn);
  source.append(matrix, 0, config.ffn);
  return source;
}

AdalnSource adaln_source(const WeightBinder& binder, const AdalnW& tensors) {
  AdalnSource source;
  source.weight = plain(binder, tensors.weight);
  source.bias = binder.values(tensors.bias);
  source.table = binder.values(tensors.table);
  return source;
}

// What the projection reads must be as wide as its curve, or as the time embedding.
void check_adaln(WeightBinder& binder, const AdalnW& adaln, const DitConfig& config) {
  if (adaln.weight == nullptr || adaln.weight->dims.size() != 2) return;
  int64_t width = config.curve_rank > 0 ? config.curve_rank : config.time_dim;
  if (adaln.table != nullptr) width = adaln.table->dims[1];
  const bool no_table = adaln.table == nullptr && config.curve_rank > 0 && binder.has("final_layer.adaln.table");
  if (adaln.weight->dims[1] != width || no_table) {
    binder.problem(strf("%s reads %lld values, but its %s has %lld", adaln.weight->name.c_str(),
                        static_cast<long long>(adaln.weight->dims[1]),
                        config.curve_rank > 0 ? "curve" : "time embedding", static_cast<long long>(width)));
  }
}

void check_config(WeightBinder& binder, const DitConfig& config) {
  if (config.layers == 0) binder.problem("there are no transformer blocks");
  if (config.head_dim > 0 && 6 * config.rope_pairs > config.head_dim) {
    binder.problem(strf("%lld rotary frequencies do not fit heads of %lld", static_cast<long long>(config.rope_pairs),
                        static_cast<long long>(config.head_dim)));
  }
  if (config.curve_points == 1) binder.problem("a time curve needs at least 2 points");
  if (config.freq_dim % 2 != 0) binder.problem("the time embedder's sinusoid must have an even width");
}

// 1 / f32(10000^(k / pairs)), for files without the table: the bits that the release ships (spec dit 2.6).
std::vector<float> default_frequencies(int64_t pairs) {
  std::vector<float> out;
  for (int64_t k = 0; k < pairs; ++k) {
    const double power = std::pow(10000.0, static_cast<double>(k) / static_cast<double>(pairs));
    out.push_back(1.0f / static_cast<float>(power));
  }
  return out;
}

// One output row per predicted step instead of one.
void refuse_multi_head(const WeightBinder& binder, const Component& component, const DitConfig& config,
                       Names spelling) {
  const int64_t rows = axis(binder, name_of_field(kTrunk, &TrunkW::video_out, spelling), 0);
  if (config.video_row > 0 && rows > config.video_row) {
    fail(Code::data,
         "%s: its video head has %lld rows instead of %lld: a multi-head (PDD) model, which is not supported; "
         "use the base model or a turbo adapter",
         component.origin.c_str(), static_cast<long long>(rows), static_cast<long long>(config.video_row));
  }
}

// The gate of a sparse-attention variant; dense attention does not read it.
void ignore_gates(WeightBinder& binder, const Component& component, const DitConfig& config, Names spelling, Log& log) {
  int64_t found = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string name =
        kPrefixes[static_cast<size_t>(spelling)].block + std::to_string(i) + ".attn.to_gate_compress.";
    for (const char* part : {"weight", "bias"}) {
      if (!binder.has(name + part)) continue;
      binder.ignore(name + part);
      ++found;
    }
  }
  if (found > 0) {
    log.write(LogLevel::warn,
              "%s: ignoring %lld attn.to_gate_compress tensors (a sparse-attention gate); attention runs dense",
              component.origin.c_str(), static_cast<long long>(found));
  }
}

struct Bound {
  TrunkW trunk;
  AdalnW final_adaln;
  std::vector<BlockW> blocks, refiner;
  std::vector<AdalnW> adaln;
};

Bound bind_all(WeightBinder& binder, const DitConfig& config, Names spelling) {
  const Resolve resolve = resolver(config);
  const Prefixes prefixes = kPrefixes[static_cast<size_t>(spelling)];
  Bound bound;
  bind_trunk(binder, spelling, resolve, bound.trunk);
  bound.final_adaln = {bound.trunk.final_adaln, bound.trunk.final_adaln_bias, bound.trunk.final_table};
  check_adaln(binder, bound.final_adaln, config);
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string prefix = prefixes.block + std::to_string(i) + ".";
    bind_table(binder, spelling, prefix, kBlock, bound.blocks.emplace_back(), resolve);
    bind_table(binder, spelling, prefix, kAdaln, bound.adaln.emplace_back(), resolve);
    check_adaln(binder, bound.adaln.back(), config);
  }
  for (int64_t i = 0; i < config.refiner_layers; ++i) {
    bind_table(binder, spelling, prefixes.refiner + std::to_string(i) + ".", kBlock, bound.refiner.emplace_back(),
               resolve);
  }
  return bound;
}

BlockSource block_source(const WeightBinder& binder, const BlockW& block, const DitConfig& config,
                         const Component& component, Names spelling) {
  BlockSource source;
  source.qkv = qkv_rows(binder, block, config, component.qkv_order);
  source.out = plain(binder, block.out);
  source.fc1 = gate_value_rows(binder, block, config, spelling);
  source.fc2 = plain(binder, block.fc2);
  source.norm1 = binder.values(block.norm1);
  source.norm2 = binder.values(block.norm2);
  source.q_norm = binder.values(block.q_norm);
  source.k_norm = binder.values(block.k_norm);
  return source;
}

void read_trunk(const WeightBinder& binder, const TrunkW& trunk, Source& source) {
  for (const TrunkSlot& slot : kTrunkSlots) {
    const TensorInfo* tensor = trunk.*slot.field;
    if (slot.matrix != nullptr) {
      source.*slot.matrix = plain(binder, tensor);
    } else {
      source.*slot.values = binder.values(tensor);
    }
  }
}

}  // namespace

std::vector<BlockParameter> parameters_of(const BlockSource& block) {
  std::vector<BlockParameter> out;
  const auto matrix = [&](const std::string& name, const MatrixSource& source) {
    if (!source.parts.empty()) out.push_back({name, source.format(), {source.rows, source.cols}});
  };
  const auto vector = [&](const std::string& name, const std::vector<float>& values) {
    if (!values.empty()) out.push_back({name, Format::f32, {static_cast<int64_t>(values.size())}});
  };
  const auto of_block = [](const TensorInfo* BlockW::*field) { return name_of_field(kBlock, field, Names::comfy); };
  const auto of_adaln = [](const TensorInfo* AdalnW::*field, Names names) {
    return name_of_field(kAdaln, field, names);
  };
  vector(of_block(&BlockW::norm1), block.norm1);
  matrix(of_block(&BlockW::qkv), block.qkv);
  vector(of_block(&BlockW::q_norm), block.q_norm);
  vector(of_block(&BlockW::k_norm), block.k_norm);
  matrix(of_block(&BlockW::out), block.out);
  vector(of_block(&BlockW::norm2), block.norm2);
  matrix(of_block(&BlockW::fc1), block.fc1);
  matrix(of_block(&BlockW::fc2), block.fc2);
  matrix(of_adaln(&AdalnW::weight, Names::comfy), block.adaln.weight);
  vector(of_adaln(&AdalnW::bias, Names::comfy), block.adaln.bias);
  vector(of_adaln(&AdalnW::table, Names::cmf), block.adaln.table);
  return out;
}

MatrixSource rows_of(const MatrixSource& matrix, int64_t first, int64_t count) {
  H3_ASSERT(first >= 0 && count >= 0 && first + count <= matrix.rows);
  MatrixSource out;
  out.name = matrix.name;
  int64_t start = 0;
  for (const MatrixSource::Part& part : matrix.parts) {
    const int64_t begin = std::max(first, start), end = std::min(first + count, start + part.rows);
    if (begin < end) out.append(part.matrix, part.first + begin - start, end - begin);
    start += part.rows;
  }
  return out;
}

Source read_source(const Component& component, Log& log) {
  WeightBinder binder(component);
  const Names spelling = spelling_of(binder);
  const DitConfig config = read_config(component, binder, spelling);
  refuse_multi_head(binder, component, config, spelling);
  const Bound bound = bind_all(binder, config, spelling);
  ignore_gates(binder, component, config, spelling, log);
  check_config(binder, config);
  binder.finish();

  Source source;
  source.config = config;
  source.origin = component.origin;
  read_trunk(binder, bound.trunk, source);
  if (source.inv_freq.empty()) source.inv_freq = default_frequencies(config.rope_pairs);
  source.final_adaln = adaln_source(binder, bound.final_adaln);
  for (int64_t i = 0; i < config.layers; ++i) {
    source.blocks.push_back(block_source(binder, bound.blocks[i], config, component, spelling));
    source.blocks.back().adaln = adaln_source(binder, bound.adaln[i]);
  }
  for (const BlockW& block : bound.refiner) {
    source.refiner.push_back(block_source(binder, block, config, component, spelling));
  }
  return source;
}

}  // namespace h3::dit
