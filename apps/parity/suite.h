// h3-parity: runs every case of a golden folder and judges it. Stages enumerate their cases from the files themselves,
// so the same program serves folders with other dimensions, seeds and prompts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/compare.h"
#include "base/context.h"
#include "base/json.h"
#include "ops/ops.h"
#include "store/tensor_source.h"

namespace h3 {

struct Verdict {
  std::string stage, name;
  Comparison comparison;
  Limits limits;
  bool passed = false, skipped = false;
  std::string note;  // why it failed or was skipped
};

// One golden safetensors file with typed access. A missing tensor is an Error(data).
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path);
  bool has(const std::string& name) const { return source_->find(name) != nullptr; }
  const TensorInfo& info(const std::string& name) const;
  std::vector<float> f32(const std::string& name) const;      // any float or integer format, converted
  std::vector<double> f64(const std::string& name) const;     // F64 tensors without loss
  std::vector<int64_t> i64(const std::string& name) const;    // any integer format
  std::vector<std::string> names() const;
  const std::map<std::string, std::string>& metadata() const { return source_->metadata(); }
  Json json_metadata(const std::string& key) const;           // metadata value parsed as JSON

 private:
  std::string path_;
  std::unique_ptr<TensorSource> source_;
};

class Suite {
 public:
  Suite(std::string folder, Ops& ops, std::function<void(const Verdict&)> on_verdict);

  Ops& ops() { return ops_; }
  const std::string& folder() const { return folder_; }
  bool exists(const std::string& relative) const;
  std::string path(const std::string& relative) const { return folder_ + "/" + relative; }
  // Marks a top-level file or folder of the golden folder as known; whatever nobody claimed fails the run.
  void claim(const std::string& relative);
  GoldenFile open(const std::string& relative);   // claims and opens
  Json json(const std::string& relative);         // claims and parses
  std::vector<std::string> files(const std::string& prefix, const std::string& suffix) const;  // top level, sorted

  // Judgements.
  void check(const std::string& name, std::span<const float> got, std::span<const float> want, const Limits& limits);
  void exact(const std::string& name, bool equal, const std::string& note = "");
  void fail(const std::string& name, const std::string& why);
  // Only for what this build or back end cannot run by design, e.g. non-ASCII text without Unicode tables.
  void skip(const std::string& name, const std::string& why);

  void begin_stage(const std::string& stage) { stage_ = stage; }
  int passed() const { return passed_; }
  int failed() const { return failed_; }
  int skipped() const { return skipped_; }
  std::vector<std::string> unclaimed() const;

 private:
  void add(Verdict verdict);

  std::string folder_;
  Ops& ops_;
  std::function<void(const Verdict&)> on_verdict_;
  std::string stage_;
  std::set<std::string> claimed_;
  int passed_ = 0, failed_ = 0, skipped_ = 0;
};

struct StageRow {
  const char* name;
  void (*run)(Suite& suite);  // runs the cases it finds; finding none is not an error
};
std::span<const StageRow> parity_stages();

// Hashes of golden/README section 2.
uint64_t poly64(const void* data, int64_t elements, int element_bytes);
uint32_t crc32_of(const void* data, size_t bytes);
std::string hex64(uint64_t value);

}  // namespace h3
