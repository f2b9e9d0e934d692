// One synthetic adapter written under each spelling, without files.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/lora/adapter.h"
#include "sampling/rng.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3::testing {

struct AdapterShape {
  DitConfig config;
  int64_t rank = 2;  // of one projection; the fused QKV pair has three times that
  float alpha = 1;   // of one projection
  bool refiner = true;
  uint64_t seed = 5;
};

inline DitConfig config_of(const ToySize& n) {
  DitConfig config;
  config.hidden = n.hidden;
  config.layers = n.layers;
  config.refiner_layers = n.refiner;
  config.heads = n.heads;
  config.head_dim = n.head_dim;
  config.ffn = n.ffn;
  config.time_dim = n.time;
  return config;
}

// The low-rank pairs of one matrix, rows in the order of the forward.
struct SyntheticPair {
  std::string block, part;  // "blocks.0.", "q", "k", "v", "out", "fc1" or "fc2"
  int64_t rank, in, out;
  std::vector<float> down, up;
};

inline std::vector<SyntheticPair> synthetic_pairs(const AdapterShape& shape) {
  TorchGenerator generator(shape.seed);
  std::vector<SyntheticPair> out;
  const DitConfig& c = shape.config;
  const auto stack = [&](const std::string& prefix, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto add = [&](const char* part, int64_t in, int64_t rows) {
        SyntheticPair pair{prefix + std::to_string(i) + ".", part, shape.rank, in, rows, {}, {}};
        pair.down = generator.randn(shape.rank * in);
        pair.up = generator.randn(rows * shape.rank);
        out.push_back(std::move(pair));
      };
      for (const char* part : {"q", "k", "v"}) add(part, c.hidden, c.inner());
      add("out", c.inner(), c.hidden);
      add("fc1", c.hidden, 2 * c.ffn);
      add("fc2", c.ffn, c.hidden);
    }
  };
  stack("blocks.", c.layers);
  if (shape.refiner) stack("token_refiner.blocks.", c.refiner_layers);
  return out;
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

enum class AdapterSpelling { comfy, native, peft, kohya };

// [value; gate] for [gate; value].
inline std::vector<float> swapped_halves(const std::vector<float>& rows) {
  std::vector<float> out(rows.begin() + static_cast<int64_t>(rows.size() / 2), rows.end());
  out.insert(out.end(), rows.begin(), rows.begin() + static_cast<int64_t>(rows.size() / 2));
  return out;
}

class AdapterWriter {
 public:
  AdapterWriter(const AdapterShape& shape, AdapterSpelling spelling)
      : shape_(shape), spelling_(spelling), source_(std::make_shared<MemorySource>()) {
    const std::vector<SyntheticPair> pairs = synthetic_pairs(shape);
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (pairs[i].part == "q" && spelling != AdapterSpelling::native) {
        fused({pairs[i], pairs[i + 1], pairs[i + 2]});
        i += 2;
      } else {
        write(pairs[i].block, pairs[i].part, pairs[i], shape.alpha);
      }
    }
    source_->done();
  }
  std::shared_ptr<MemorySource> source() const { return source_; }

 private:
  void fused(const std::vector<SyntheticPair>& parts) {
    SyntheticPair all{parts[0].block, "qkv", 3 * shape_.rank, parts[0].in, 3 * parts[0].out, {}, {}};
    all.up.assign(static_cast<size_t>(all.out * all.rank), 0.0f);
    for (size_t p = 0; p < 3; ++p) {
      all.down.insert(all.down.end(), parts[p].down.begin(), parts[p].down.end());
      for (int64_t r = 0; r < parts[p].out; ++r) {
        std::copy_n(
            &parts[p].up[r * shape_.rank], shape_.rank,
            &all.up[(static_cast<int64_t>(p) * parts[p].out + r) * all.rank + static_cast<int64_t>(p) * shape_.rank]);
      }
    }
    write(all.block, "qkv", all, 3 * shape_.alpha);
  }

  void write(const std::string& block, const std::string& part, const SyntheticPair& pair, float alpha) {
    std::string module, down = ".lora_A.weight", up = ".lora_B.weight";
    const bool native = spelling_ == AdapterSpelling::native;
    std::vector<float> rows = pair.up;
    if (native) {
      module = replaced(replaced(block, "token_refiner.blocks.", "token_refiner.refiner_blocks."), "blocks.",
                        block.starts_with("token") ? "blocks." : "transformer_blocks.");
      module += part == "out"   ? "attn.to_out.0"
                : part == "fc1" ? "ff.net.0.proj"
                : part == "fc2" ? "ff.net.2"
                                : "attn.to_" + part;
      if (part == "fc1") rows = swapped_halves(rows);
    } else {
      module = block + (part == "qkv" ? "attn.qkv_proj" : part == "out" ? "attn.out_proj" : "mlp." + part);
    }
    if (spelling_ == AdapterSpelling::comfy) module = "diffusion_model." + module;
    if (spelling_ == AdapterSpelling::peft) {
      module = "base_model.model." + module;
      down = ".lora_A.default.weight";
      up = ".lora_B.default.weight";
    }
    if (spelling_ == AdapterSpelling::kohya) {
      std::replace(module.begin(), module.end(), '.', '_');
      module = "lora_unet_" + module;
      down = ".lora_down.weight";
      up = ".lora_up.weight";
    }
    source_->add(module + down, {pair.rank, pair.in}, pair.down);
    source_->add(module + up, {pair.out, pair.rank}, rows);
    source_->add(module + ".alpha", {}, {alpha});
  }

  AdapterShape shape_;
  AdapterSpelling spelling_;
  std::shared_ptr<MemorySource> source_;
};

inline std::shared_ptr<MemorySource> adapter_source(const AdapterShape& shape, AdapterSpelling spelling) {
  return AdapterWriter(shape, spelling).source();
}

}  // namespace h3::testing
