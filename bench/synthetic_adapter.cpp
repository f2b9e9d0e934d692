#include "bench/synthetic_adapter.h"

#include <algorithm>
#include <deque>
#include <span>

#include "codec/scalar.h"
#include "model/lora/targets.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

class SyntheticAdapter final : public TensorSource {
 public:
  SyntheticAdapter(const DitConfig& c, int64_t rank, uint64_t seed) : seed_(seed) {
    using lora::Site;
    // One run of numbers for all: rows of about unit norm of the widest matrix, from another place for every tensor.
    const int64_t most = 3 * rank * std::max({3 * c.inner(), 2 * c.ffn, c.hidden});
    for (const float value : TorchGenerator(seed).randn(1 << 16)) values_.push_back(f32_to_bf16(0.02f * value));
    while (static_cast<int64_t>(values_.size()) < most + kPlaces) values_.push_back(values_[values_.size() - 65521]);
    const auto stack = [&](Site::Stack which, int64_t blocks) {
      for (int64_t i = 0; i < blocks; ++i) {
        pair({which, i, Site::Part::qkv}, c.hidden, 3 * c.inner(), 3 * rank);
        pair({which, i, Site::Part::out}, c.inner(), c.hidden, rank);
        pair({which, i, Site::Part::fc1}, c.hidden, 2 * c.ffn, rank);
        pair({which, i, Site::Part::fc2}, c.ffn, c.hidden, rank);
      }
    };
    stack(Site::Stack::trunk, c.layers);
    stack(Site::Stack::refiner, c.refiner_layers);
    index_tensors();
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  std::string id() const override { return "synthetic adapter " + std::to_string(seed_); }

 private:
  void pair(const lora::Site& site, int64_t in, int64_t out, int64_t rank) {
    const std::string module = "diffusion_model." + lora::name_of(site);
    matrix(module + ".lora_A.weight", rank, in);
    matrix(module + ".lora_B.weight", out, rank);
    const float& alpha = alphas_.emplace_back(static_cast<float>(rank));
    tensors_.push_back({module + ".alpha", Format::f32, {}, std::as_bytes(std::span(&alpha, 1)), "adapter"});
  }
  void matrix(const std::string& name, int64_t rows, int64_t cols) {
    const auto place = static_cast<int64_t>(tensors_.size() * 7 % kPlaces);
    const std::span<const uint16_t> values = std::span(values_).subspan(place, rows * cols);
    tensors_.push_back({name, Format::bf16, {rows, cols}, std::as_bytes(values), "adapter"});
  }

  static constexpr int64_t kPlaces = 4096;
  uint64_t seed_;
  std::vector<uint16_t> values_;  // bf16
  std::deque<float> alphas_;      // a deque: what tensors_ points to stays where it is
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_;
};

}  // namespace

std::shared_ptr<TensorSource> synthetic_adapter(const DitConfig& config, int64_t rank, uint64_t seed) {
  return std::make_shared<SyntheticAdapter>(config, rank, seed);
}

}  // namespace h3
