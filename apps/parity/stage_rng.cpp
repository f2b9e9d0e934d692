// Random streams. rng_native holds what a vectorised x86 build of torch draws: bit for bit. rng_default holds the build
// without vector code, whose logarithms and sines differ by a few ulp. Only f32 is drawn by the pipeline, so the
// streams of other types are not cases.
#include <algorithm>
#include <bit>
#include <map>

#include "apps/parity/suite.h"
#include "base/error.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

constexpr double kDefaultBuild = 2e-6;  // golden/README 6
constexpr int64_t kSequenceSeed = 42;   // golden/README 6: the seq.* streams

struct Name {
  std::string kind;
  uint64_t seed = 0;
  int64_t count = 0;
};

// "f32.seed42.n1000"
bool parse(const std::string& text, Name& name) {
  const size_t seed = text.find(".seed"), count = text.rfind(".n");
  if (seed == std::string::npos || count == std::string::npos || count < seed) return false;
  name.kind = text.substr(0, seed);
  name.seed = std::strtoull(text.c_str() + seed + 5, nullptr, 10);
  name.count = std::strtoll(text.c_str() + count + 2, nullptr, 10);
  return true;
}

void judge(Suite& suite, const std::string& name, const std::vector<float>& got, const std::vector<float>& want,
           bool bits) {
  if (!bits) {
    suite.check(name, got, want, {.max_abs = kDefaultBuild});
    return;
  }
  bool equal = got.size() == want.size();
  for (size_t i = 0; equal && i < got.size(); ++i) {
    equal = std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(want[i]);
  }
  suite.exact(name, equal, "bits differ");
}

void run_single(Suite& suite, const std::string& prefix, const GoldenFile& file, const std::string& name, bool bits) {
  Name parts;
  if (!parse(name, parts)) return;
  TorchGenerator generator(parts.seed);
  if (parts.kind == "f32") {
    judge(suite, prefix + name, generator.randn(parts.count), file.f32(name), bits);
  } else if (parts.kind == "rand_f32") {
    std::vector<float> got;
    for (int64_t i = 0; i < parts.count; ++i) got.push_back(generator.uniform());
    judge(suite, prefix + name, got, file.f32(name), true);
  } else if (parts.kind == "raw31") {
    const std::vector<int64_t> want = file.i64(name);
    bool equal = true;
    for (int64_t value : want) equal = equal && static_cast<int64_t>(generator.next_u32() & 0x7fffffffu) == value;
    suite.exact(prefix + name, equal);
  }
}

// "seq.<case>.<k>": consecutive draws of one generator.
void run_sequences(Suite& suite, const std::string& prefix, const GoldenFile& file, bool bits) {
  std::map<std::string, std::map<int64_t, std::string>> sequences;
  for (const std::string& name : file.names()) {
    const size_t dot = name.rfind('.');
    if (name.starts_with("seq."))
      sequences[name.substr(0, dot)][std::strtoll(name.c_str() + dot + 1, nullptr, 10)] = name;
  }
  for (const auto& [sequence, draws] : sequences) {
    TorchGenerator generator(kSequenceSeed);
    for (const auto& [k, name] : draws) {
      const std::vector<float> want = file.f32(name);
      judge(suite, prefix + name, generator.randn(static_cast<int64_t>(want.size())), want, bits);
    }
  }
}

uint64_t hash_of(const std::vector<float>& values) {
  return poly64(values.data(), static_cast<int64_t>(values.size()), 4);
}

void check_ends(Suite& suite, const std::string& name, const std::vector<float>& got, const Json& head,
                const Json& tail) {
  std::vector<float> want, ours(got.begin(), got.begin() + static_cast<int64_t>(head.size()));
  ours.insert(ours.end(), got.end() - static_cast<int64_t>(tail.size()), got.end());
  for (const Json* part : {&head, &tail}) {
    for (const Json& bits : part->items()) {
      want.push_back(std::bit_cast<float>(static_cast<uint32_t>(std::strtoul(bits.as_string().c_str(), nullptr, 16))));
    }
  }
  suite.check(name, ours, want, {.max_abs = kDefaultBuild});
}

// Full-size draws: hashes for the vectorised build, first and last values for the other.
void run_large(Suite& suite, const std::string& prefix, const Json& json, bool bits) {
  for (const Json& row : json.at("large").items()) {
    TorchGenerator generator(static_cast<uint64_t>(row.at("seed").as_int()));
    for (const char* stream : {"video", "audio"}) {
      const Json& info = row.at(stream);
      int64_t count = 1;
      std::string shape;
      for (const Json& dim : info.at("shape").items()) {
        count *= dim.as_int();
        shape += (shape.empty() ? "" : "x") + std::to_string(dim.as_int());
      }
      const std::vector<float> got = generator.randn(count);
      const std::string name =
          prefix + "large.seed" + std::to_string(row.at("seed").as_int()) + "." + stream + "." + shape;
      const std::string key = stream;
      if (bits) {
        suite.exact(name, hex64(hash_of(got)) == info.at("poly64").as_string(), "poly64 " + hex64(hash_of(got)));
      } else {
        check_ends(suite, name, got, row.at(key + "_head_bits"), row.at(key + "_tail_bits"));
      }
    }
  }
}

}  // namespace

void run_rng(Suite& suite) {
  for (const char* build : {"native", "default"}) {
    const std::string file_name = std::string("rng_") + build + ".safetensors";
    const std::string json_name = std::string("rng_") + build + ".json";
    const bool bits = std::string(build) == "native";
    const std::string prefix = std::string(build) + ".";
    if (suite.exists(file_name)) {
      const GoldenFile file = suite.open(file_name);
      for (const std::string& name : file.names()) run_single(suite, prefix, file, name, bits);
      run_sequences(suite, prefix, file, bits);
    }
    if (suite.exists(json_name)) run_large(suite, prefix, suite.json(json_name), bits);
  }
}

}  // namespace h3
