#include "pipeline/rates.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/knobs.h"
#include "pipeline/report.h"

namespace h3 {
namespace {

constexpr int kRepeats = 3;

// The best of a few runs: what disturbs a machine only ever makes it slower.
double best_seconds(Ops& ops, const std::function<void()>& run) {
  run();
  ops.sync();
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    ops.sync();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// The line through a small and a large call.
Rate through(double small, double small_amount, double large, double large_amount) {
  Rate rate;
  rate.per_unit = std::max((large - small) / (large_amount - small_amount), large / large_amount * 0.25);
  rate.per_call = std::max(small - rate.per_unit * small_amount, 0.0);
  return rate;
}

DType type_of(const std::string& name) {
  return name == "bf16" ? DType::bf16 : name == "f16" ? DType::f16 : DType::f32;
}

Compute compute_of(const std::string& name) {
  if (name == "bf16") return Compute::bf16;
  if (name == "f16") return Compute::f16;
  if (name == "int8") return Compute::int8;
  return name == "packed" ? Compute::packed : Compute::f32;
}

class Prober {
 public:
  explicit Prober(Ops& ops) : ops_(ops), device_(ops.device()) {}

  Rate probe(const std::string& kind, const Booking& booking) {
    const size_t blank = kind.find(' ');
    const std::string what = kind.substr(0, blank), type = blank == std::string::npos ? "" : kind.substr(blank + 1);
    if (what == "linear") return two([&](bool large) { return linear(compute_of(type), large); });
    if (what == "attention") return two([&](bool large) { return attention(type_of(type), large); });
    if (what == "conv") return two([&](bool large) { return conv(compute_of(type), large); });
    if (what == "snake") return two([&](bool large) { return snake(large); });
    if (what == "rows") return two([&](bool large) { return rows(type_of(type), large); });
    if (what == "exp") return two([&](bool large) { return exponential(type_of(type), large); });
    if (what == "pack") {
      const auto sample = booking.samples.find(kind);
      const std::string compute = kind.substr(kind.rfind(' ') + 1);
      return sample == booking.samples.end() ? Rate{} : pack(sample->second, compute_of(compute));
    }
    return two([&](bool large) { return move(large); });
  }

 private:
  struct Measured {
    double seconds, amount;
  };
  template <typename Run>
  Rate two(const Run& run) {
    const Measured small = run(false), large = run(true);
    return through(small.seconds, small.amount, large.seconds, large.amount);
  }
  Tensor zeros(DType type, std::initializer_list<int64_t> dims) {
    Tensor tensor(device_, type, dims, "rate measurement");
    ops_.fill(tensor, 0);
    return tensor;
  }
  bool host() const { return device_.is_host(); }

  Measured linear(Compute compute, bool large) {
    const int64_t edge = large ? (host() ? 1024 : 8192) : 128, count = large ? (host() ? 384 : 4096) : 32;
    const std::vector<float> values(static_cast<size_t>(edge * edge), 0.01f);
    StoredMatrix stored;
    stored.format = Format::f32;
    stored.rows = stored.cols = edge;
    stored.data = std::as_bytes(std::span(values));
    LinearSpec spec;
    spec.label = "rate";
    spec.weight.append(stored, 0, edge);
    spec.compute = compute;
    spec.max_rows = count;
    const std::unique_ptr<Linear> weight = ops_.make_linear(std::move(spec));
    const DType type = compute == Compute::f32 ? DType::f32 : compute == Compute::f16 ? DType::f16 : DType::bf16;
    const Tensor x = zeros(type, {count, edge}), y = zeros(type, {count, edge});
    return {best_seconds(ops_, [&] { ops_.linear(*weight, x, y); }),
            2.0 * static_cast<double>(count) * static_cast<double>(edge * edge)};
  }

  Measured attention(DType type, bool large) {
    const int64_t length = large ? (host() ? 512 : 8192) : 32, heads = large ? 4 : 2, width = 128;
    const Tensor q = zeros(type, {length, heads, width}), k = zeros(type, {length, heads, width}),
                 v = zeros(type, {length, heads, width}), out = zeros(type, {length, heads, width});
    ops_.reserve(length, heads * width);
    AttentionArgs args;
    args.q = q;
    args.k = k;
    args.v = v;
    args.out = out;
    args.scale = 0.1f;
    return {best_seconds(ops_, [&] { ops_.attention(args); }),
            4.0 * static_cast<double>(length * length) * static_cast<double>(heads * width)};
  }

  Measured conv(Compute compute, bool large) {
    const int64_t channels = large ? 64 : 16, length = large ? 4096 : 256;
    ConvSpec spec;
    spec.label = "rate";
    spec.in = spec.out = channels;
    spec.kernel[2] = 7;
    spec.pad_before[2] = spec.pad_after[2] = 3;
    spec.compute = compute;
    spec.weight.assign(static_cast<size_t>(channels * channels * 7), 0.01f);
    const std::unique_ptr<Conv> weight = ops_.make_conv(std::move(spec));
    const Tensor x = zeros(DType::f32, {channels, length}), y = zeros(DType::f32, {channels, length});
    return {best_seconds(ops_, [&] { ops_.conv(*weight, x, y); }),
            14.0 * static_cast<double>(channels * channels) * static_cast<double>(length)};
  }

  Measured snake(bool large) {
    const int64_t channels = large ? 64 : 4, length = large ? 4096 : 256;
    const Tensor a = zeros(DType::f32, {channels}), taps = zeros(DType::f32, {12});
    const Tensor x = zeros(DType::f32, {channels, length}), y = zeros(DType::f32, {channels, length});
    return {best_seconds(ops_, [&] { ops_.aa_snake(x, a, a, taps, taps, y); }), static_cast<double>(channels * length)};
  }

  Measured rows(DType type, bool large) {
    const int64_t count = large ? 512 : 16, width = large ? 4096 : 256;
    const Tensor x = zeros(type, {count, width}), y = zeros(type, {count, width}), w = zeros(DType::f32, {width});
    return {best_seconds(ops_, [&] { ops_.rms_norm(x, w, 1e-6f, NormRounding::once, y); }),
            static_cast<double>(count * width)};
  }

  Measured exponential(DType type, bool large) {
    const int64_t count = large ? 512 : 16, width = large ? 4096 : 256;
    const Tensor x = zeros(type, {count, width}), y = zeros(type, {count, width});
    return {best_seconds(ops_, [&] { ops_.swiglu(x, y, x); }), static_cast<double>(count * width)};
  }

  Measured move(bool large) {
    const int64_t bytes = large ? int64_t{32} << 20 : int64_t{4} << 10;
    const Tensor from = zeros(DType::f32, {bytes / 4}), to = zeros(DType::f32, {bytes / 4});
    return {best_seconds(ops_, [&] { ops_.copy(from, to); }), 2.0 * static_cast<double>(bytes)};
  }

  Rate pack(const MatrixSource& sample, Compute compute) {
    const double values = static_cast<double>(sample.rows * sample.cols);
    if (values == 0) return {};
    const double seconds = best_seconds(ops_, [&] {
      LinearSpec spec;
      spec.label = "rate";
      spec.weight = sample;
      spec.compute = compute;
      ops_.make_linear(std::move(spec));
    });
    return {0, seconds / values};
  }

  Ops& ops_;
  Device& device_;
};

// What a cached rate belongs to.
std::string machine_key(Ops& ops) {
  std::string processor = "unknown processor";
  const std::string info = std::filesystem::exists("/proc/cpuinfo") ? read_file("/proc/cpuinfo", 1 << 24) : "";
  const size_t at = info.find("model name");
  if (at != std::string::npos) processor = info.substr(at, info.find('\n', at) - at);
  std::string detail;
  for (const BackendInfo& backend : list_backends(ops.context())) {
    if (backend.name == ops.name()) detail = backend.detail;
  }
  return strf("%s, %s, %s, %s, %d threads", engine_version(), ops.name(), detail.c_str(), processor.c_str(),
              ops.context().pool.threads());
}

Rates read_rates(const std::string& path, const std::string& key) {
  Rates rates;
  if (path.empty() || !std::filesystem::exists(path)) return rates;
  try {
    const Json json = Json::parse(read_file(path, 1 << 20), path);
    if (json.at("machine").as_string() != key) return rates;
    for (const auto& [kind, pair] : json.at("seconds").members()) {
      rates[kind] = {pair.items().at(0).as_double(), pair.items().at(1).as_double()};
    }
  } catch (const std::exception&) {  // damaged: measured again
    return {};
  }
  return rates;
}

void write_rates(const std::string& path, const std::string& key, const Rates& rates) {
  Json seconds = Json::object({});
  for (const auto& [kind, rate] : rates) {
    Json pair = Json::array();
    pair.push(rate.per_call);
    pair.push(rate.per_unit);
    seconds.set(kind, std::move(pair));
  }
  try {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    AtomicFile file(path);
    const std::string text = Json::object({{"machine", key}, {"seconds", std::move(seconds)}}).dump(1) + "\n";
    file.write(text.data(), text.size());
    file.commit();
  } catch (const Error&) {
    // Without a cache the next run measures again.
  }
}

}  // namespace

Rates measure_rates(Ops& ops, const Booking& booking, bool fresh) {
  const std::string key = machine_key(ops), folder = cache_folder();
  const uint64_t hash = fnv1a64(std::as_bytes(std::span(key)));
  const std::string path =
      folder.empty() ? "" : folder + strf("/rates-%016llx.json", static_cast<unsigned long long>(hash));
  Rates known = read_rates(path, key);
  Prober prober(ops);
  Rates measured;
  for (const StageBooking& stage : booking.stages) {
    for (const auto& [kind, work] : stage.work) {
      if (measured.count(kind) != 0 || (!fresh && known.count(kind) != 0)) continue;
      measured[kind] = prober.probe(kind, booking);
    }
  }
  for (const auto& [kind, rate] : measured) known[kind] = rate;
  if (!measured.empty() && !path.empty()) write_rates(path, key, known);
  return known;
}

double seconds_of(const WorkByKind& work, const Rates& rates) {
  double seconds = 0;
  for (const auto& [kind, amount] : work) {
    const auto rate = rates.find(kind);
    if (rate != rates.end()) {
      seconds += amount.calls * rate->second.per_call + amount.amount * rate->second.per_unit;
    }
  }
  return seconds;
}

}  // namespace h3
