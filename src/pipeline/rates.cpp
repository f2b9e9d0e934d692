#include "pipeline/rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
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
constexpr double kSeconds = 0.01;          // of one call that is measured, about
constexpr double kMuchMemory = 256 << 20;  // bytes

// The median of a few runs, for a run is disturbed by what disturbs them.
double median_seconds(Ops& ops, const std::function<void()>& run) {
  run();
  ops.sync();
  std::array<double, kRepeats> seconds;
  for (double& each : seconds) {
    const auto start = std::chrono::steady_clock::now();
    run();
    ops.sync();
    each = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[kRepeats / 2];
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

class Prober {
 public:
  explicit Prober(Ops& ops) : ops_(ops), device_(ops.device()) {}

  Rate probe(const std::string& kind, const Booking& booking) {
    const size_t blank = kind.find(' ');
    const std::string what = kind.substr(0, blank), type = blank == std::string::npos ? "" : kind.substr(blank + 1);
    if (what == "linear") {
      const auto weight = booking.weights.find(kind);
      return weight == booking.weights.end() ? large_linear(type) : linear(weight->second);
    }
    if (what == "conv") return conv(booking.weights.at(kind));
    if (what == "attention") {
      const size_t split = type.find(' ');
      const int64_t width = std::atoi(type.c_str() + split);
      return two([&](bool large) { return attention(type_of(type.substr(0, split)), width, large); });
    }
    if (what == "snake") return two([&](bool large) { return snake(large); });
    if (what == "rows") return two([&](bool large) { return rows(type_of(type), large); });
    if (what == "exp") return two([&](bool large) { return exponential(type_of(type), large); });
    if (kind == "pack conv") return pack_conv();
    if (what == "pack") return pack(booking.samples.at(kind), type.substr(type.rfind(' ') + 1));
    if (what == "touch") return touch(booking);
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

  std::unique_ptr<Linear> make_linear(const MatrixSource& weight, Compute compute, int64_t max_rows) {
    LinearSpec spec;
    spec.label = "rate";
    spec.weight = weight;
    spec.compute = compute;
    spec.max_rows = max_rows;
    return ops_.make_linear(std::move(spec));
  }
  Measured linear(const Linear& weight, int64_t count) {
    const DType type = weight.compute == Compute::f32   ? DType::f32
                       : weight.compute == Compute::f16 ? DType::f16
                                                        : DType::bf16;
    const Tensor x = zeros(type, {count, weight.in}), y = zeros(type, {count, weight.out});
    return {median_seconds(ops_, [&] { ops_.linear(weight, x, y); }),
            2.0 * static_cast<double>(count) * static_cast<double>(weight.in * weight.out)};
  }
  // What a few rows cost above their operations is what the weight costs.
  Rate linear(const MeasuredWeight& measured) {
    constexpr int64_t kFew = 8, kMany = 384, kLeast = 16;
    const std::vector<float> values(static_cast<size_t>(measured.stored.parts.empty() ? measured.in * measured.out : 0),
                                    0.01f);
    const bool made = !values.empty();
    const std::unique_ptr<Linear> weight =
        make_linear(made ? constant(values, measured.out, measured.in) : measured.stored, measured.compute, kMany);
    const Measured few = linear(*weight, kFew);
    const auto affordable = static_cast<int64_t>(kFew * kSeconds / few.seconds);
    const Measured many = linear(*weight, std::clamp(affordable, kLeast, kMany));
    return through(few.seconds, few.amount, many.seconds, many.amount);
  }
  Rate large_linear(const std::string& type) {
    const Compute compute = compute_named(type).value_or(Compute::f32);
    return two([&](bool large) {
      const int64_t edge = large ? 8192 : 128, count = large ? 4096 : 32;
      const std::vector<float> values(static_cast<size_t>(edge * edge), 0.01f);
      return linear(*make_linear(constant(values, edge, edge), compute, count), count);
    });
  }
  static MatrixSource constant(const std::vector<float>& values, int64_t rows, int64_t cols) {
    StoredMatrix stored;
    stored.rows = rows;
    stored.cols = cols;
    stored.data = std::as_bytes(std::span(values));
    MatrixSource source;
    source.append(stored, 0, rows);
    return source;
  }

  Measured attention(DType type, int64_t width, bool large) {
    const int64_t length = large ? (host() ? 512 : 8192) : 32, heads = large ? 4 : 2;
    const Tensor q = zeros(type, {length, heads, width}), k = zeros(type, {length, heads, width}),
                 v = zeros(type, {length, heads, width}), out = zeros(type, {length, heads, width});
    ops_.reserve(length, heads * width);
    AttentionArgs args;
    args.q = q;
    args.k = k;
    args.v = v;
    args.out = out;
    args.scale = 0.1f;
    return {median_seconds(ops_, [&] { ops_.attention(args); }),
            4.0 * static_cast<double>(length * length) * static_cast<double>(heads * width)};
  }

  Rate conv(const MeasuredWeight& measured) {
    ConvSpec spec = measured.conv;
    spec.label = "rate";
    const int64_t taps = int64_t{1} * spec.kernel[0] * spec.kernel[1] * spec.kernel[2];
    const double per_position = 2.0 * static_cast<double>(spec.in * spec.out * taps);
    spec.weight.assign(static_cast<size_t>(spec.in * spec.out * taps), 0.01f);
    const bool line = spec.kind != ConvKind::conv3d;
    const std::unique_ptr<Conv> weight = ops_.make_conv(std::move(spec));
    // Few positions first: how many more a slow back end can afford follows from their time.
    const double few = std::clamp(1e7 / per_position, 64.0, 512.0);
    double seconds_of_few = 0;
    return two([&](bool large) {
      const double affordable = large ? few * kSeconds / seconds_of_few : 0;
      const auto positions = static_cast<int64_t>(large ? std::clamp(affordable, 2 * few, 65536.0) : few) / 16 * 16;
      const int64_t extents[3] = {line ? 1 : weight->spec.kernel[0], line ? 1 : 16, line ? positions : positions / 16};
      int64_t results[3];
      weight->output_extent(extents, results);
      const Tensor x = line ? zeros(DType::f32, {weight->spec.in, extents[2]})
                            : zeros(DType::f32, {weight->spec.in, extents[0], extents[1], extents[2]});
      const Tensor y = line ? zeros(DType::f32, {weight->spec.out, results[2]})
                            : zeros(DType::f32, {weight->spec.out, results[0], results[1], results[2]});
      const double share = weight->spec.kind == ConvKind::transposed1d ? weight->spec.stride[2] : 1;
      const double seconds = median_seconds(ops_, [&] { ops_.conv(*weight, x, y); });
      if (!large) seconds_of_few = seconds;
      return Measured{seconds, per_position / share * static_cast<double>(y.view.elements()) /
                                   static_cast<double>(weight->spec.out)};
    });
  }

  Measured snake(bool large) {
    const int64_t channels = large ? 64 : 4, length = large ? 4096 : 256;
    const Tensor a = zeros(DType::f32, {channels}), taps = zeros(DType::f32, {12});
    const Tensor x = zeros(DType::f32, {channels, length}), y = zeros(DType::f32, {channels, length});
    return {median_seconds(ops_, [&] { ops_.aa_snake(x, a, a, taps, taps, y); }),
            static_cast<double>(channels * length)};
  }

  Measured rows(DType type, bool large) {
    const int64_t count = large ? 512 : 16, width = large ? 4096 : 256;
    const Tensor x = zeros(type, {count, width}), y = zeros(type, {count, width}), w = zeros(DType::f32, {width});
    return {median_seconds(ops_, [&] { ops_.rms_norm(x, w, 1e-6f, NormRounding::once, y); }),
            static_cast<double>(count * width)};
  }

  Measured exponential(DType type, bool large) {
    const int64_t count = large ? 512 : 16, width = large ? 4096 : 256;
    const Tensor x = zeros(type, {count, width}), y = zeros(type, {count, width});
    return {median_seconds(ops_, [&] { ops_.swiglu(x, y, x); }), static_cast<double>(count * width)};
  }

  Measured move(bool large) {
    const int64_t bytes = large ? int64_t{32} << 20 : int64_t{4} << 10;
    const Tensor from = zeros(DType::f32, {bytes / 4}), to = zeros(DType::f32, {bytes / 4});
    return {median_seconds(ops_, [&] { ops_.copy(from, to); }), 2.0 * static_cast<double>(bytes)};
  }

  Rate pack(const MatrixSource& sample, const std::string& type) {
    const double values = static_cast<double>(sample.rows * sample.cols);
    if (values == 0) return {};
    const Compute compute = compute_named(type).value_or(Compute::f32);
    return {0, median_seconds(ops_, [&] { make_linear(sample, compute, 0); }) / values};
  }
  Rate pack_conv() {
    constexpr int64_t kChannels = 256, kTaps = 7;
    const std::vector<float> values(kChannels * kChannels * kTaps, 0.01f);
    const double seconds = median_seconds(ops_, [&] {
      ConvSpec spec;
      spec.label = "rate";
      spec.in = spec.out = kChannels;
      spec.kernel[2] = kTaps;
      spec.weight = values;
      ops_.make_conv(std::move(spec));
    });
    return {0, seconds / static_cast<double>(values.size())};
  }
  // Memory costs when it is first written: the system finds and clears pages then. As much as the clip will hold,
  // within reason, because what lies ready is soon used up.
  Rate touch(const Booking& booking) {
    constexpr int64_t kPiece = int64_t{8} << 20, kRounds = 4, kMost = int64_t{64} << 20;
    int64_t peak = 0;
    for (const StageBooking& stage : booking.stages) peak = std::max(peak, stage.peak);
    const int64_t bytes = std::clamp(peak / kRounds, kPiece, kMost) / kPiece * kPiece;
    std::vector<Buffer> held;
    std::array<double, kRounds> seconds;
    for (double& each : seconds) {
      held.push_back(device_.allocate(bytes, "rate measurement"));
      auto* const data = static_cast<std::byte*>(held.back().data());
      const auto start = std::chrono::steady_clock::now();
      ops_.context().pool.parallel(bytes / kPiece,
                                   [&](int64_t i) { std::memset(data + i * kPiece, 0, static_cast<size_t>(kPiece)); });
      each = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    std::sort(seconds.begin(), seconds.end());
    return {0, seconds[kRounds / 2] / static_cast<double>(bytes)};
  }

  Ops& ops_;
  Device& device_;
};

// What a cached rate belongs to.
std::string machine_key(Ops& ops) {
  std::string processor = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    processor = line;
    break;
  }
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
    rates = rates_from_json(json.at("seconds"));
  } catch (const std::exception&) {  // damaged: measured again
    return {};
  }
  return rates;
}

void write_rates(const std::string& path, const std::string& key, const Rates& rates) {
  Json seconds = rates_json(rates);
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
      // What memory costs depends on how much the machine has lying ready.
      const bool changes = kind == "touch" && work.amount > kMuchMemory;
      if (measured.count(kind) != 0 || (!fresh && !changes && known.count(kind) != 0)) continue;
      measured[kind] = prober.probe(kind, booking);
    }
  }
  for (const auto& [kind, rate] : measured) known[kind] = rate;
  if (!measured.empty() && !path.empty()) write_rates(path, key, known);
  return known;
}

Json rates_json(const Rates& rates) {
  Json seconds = Json::object();
  for (const auto& [kind, rate] : rates) seconds.set(kind, Json::array({rate.per_call, rate.per_unit}));
  return seconds;
}

Rates rates_from_json(const Json& json) {
  Rates rates;
  if (json.is_null()) return rates;
  for (const auto& [kind, pair] : json.members()) {
    rates[kind] = {pair.items().at(0).as_double(), pair.items().at(1).as_double()};
  }
  return rates;
}

bool knows_all(const Rates& rates, const WorkByKind& work) {
  return std::all_of(work.begin(), work.end(), [&](const auto& kind) { return rates.count(kind.first) != 0; });
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
