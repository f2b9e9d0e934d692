#include "backends/list.h"

#include <map>
#include <mutex>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/isa_level.h"
#include "backends/cpu/packed_weights.h"
#include "backends/cpu/peak.h"
#include "backends/cpu/plan.h"
#include "backends/ref/ref_ops.h"
#include "backends/start_check.h"
#include "base/error.h"
#ifdef H3_HAVE_CUDA
#include "backends/cuda/cuda_ops.h"
#endif

namespace h3 {
namespace {

struct BackendRow {
  BackendInfo info;
  bool automatic = true;  // a candidate for "auto"
  std::unique_ptr<Ops> (*make)(Context& context, int index) = nullptr;
  int index = 0;
  bool card = false;  // believed only after a start-up check
};

#ifdef H3_HAVE_CUDA
void add_cuda(std::vector<BackendRow>& rows) {
  for (const CudaCard& card : list_cuda_cards()) {
    BackendRow row;
    row.info.name = strf("cuda:%d", card.index);
    if (!card.name.empty()) {
      row.info.detail = strf("%s, compute capability %d.%d, %.1f GiB, %s", card.name.c_str(), card.major, card.minor,
                             static_cast<double>(card.total_bytes) / (1 << 30), card.libraries.c_str());
    }
    row.info.refused = card.refused;
    row.make = make_cuda_ops;
    row.index = card.index;
    row.card = true;
    rows.push_back(row);
  }
}
#else
void add_cuda(std::vector<BackendRow>& rows) {
  BackendRow row;
  row.info.name = "cuda:0";
  row.info.refused = "this program was built without CUDA";
  rows.push_back(row);
}
#endif

// In order of preference: "auto" takes the first that is not refused.
std::vector<BackendRow> backend_rows() {
  std::vector<BackendRow> rows;
  add_cuda(rows);
  rows.push_back({{"cpu", cpu_isa_detail(), ""}, true, [](Context& context, int) { return make_cpu_ops(context); }, 0});
  rows.push_back({{"ref", "plain loops with double accumulators: the oracle, slow", ""},
                  false,
                  [](Context& context, int) { return make_ref_ops(context); },
                  0});
  return rows;
}

// "" when the card computes as the oracle does. Each is asked once in a process.
std::string checked(const BackendRow& row, Context& context) {
  static std::mutex mutex;
  static std::map<std::string, std::string> verdicts;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = verdicts.find(row.info.name);
  if (found != verdicts.end()) return found->second;
  std::string verdict;
  try {
    verdict = start_check(row.make(context, row.index));
  } catch (const Error& error) {
    verdict = error.what();
  }
  if (!verdict.empty()) verdict = "it fails the start-up check: " + verdict;
  return verdicts.emplace(row.info.name, verdict).first->second;
}

// Of every back end, with those refused that exist and do not compute right.
std::vector<BackendRow> checked_rows(Context& context, const std::string& wanted) {
  std::vector<BackendRow> rows = backend_rows();
  for (BackendRow& row : rows) {
    const bool asked = wanted.empty() || wanted == row.info.name || wanted == "auto";
    if (asked && row.card && row.info.refused.empty()) row.info.refused = checked(row, context);
  }
  return rows;
}

}  // namespace

std::vector<BackendInfo> list_backends(Context& context) {
  std::vector<BackendInfo> out;
  for (BackendRow& row : checked_rows(context, "")) out.push_back(row.info);
  return out;
}

std::unique_ptr<Ops> make_backend(const std::string& name, Context& context) {
  const std::string wanted = name == "cuda" ? "cuda:0" : name;
  std::string names = "auto";
  for (const BackendRow& row : checked_rows(context, wanted)) {
    names += ", " + row.info.name;
    if (wanted != row.info.name && !(wanted == "auto" && row.automatic)) continue;
    if (row.info.refused.empty()) return row.make(context, row.index);
    if (wanted != "auto") {
      fail(Code::device, "device '%s' cannot be used: %s. Run 'h3 devices' for what this machine has",
           row.info.name.c_str(), row.info.refused.c_str());
    }
  }
  fail(Code::usage, "unknown device '%s'; this machine has %s", name.c_str(), names.c_str());
}

double host_matrix_peak(ThreadPool& pool, bool integer, double seconds) {
  return measure_amx_peak(pool, integer, seconds);
}

const char* host_weights(Format format) {
  if (!stays_packed(format)) return "panels";
  return kernels_of(IsaLevel::scalar).expander(row_of(format).name) != nullptr ? "packed" : "packed, by rows";
}

DryRules dry_rules(const std::string& name, Context& context) {
  if (name == "cpu") return cpu_dry_rules(context);
  // The oracle packs every weight as f32; an accelerator holds what it multiplies.
  DryRules rules;
  rules.name = name;
  rules.host = name == "ref";
  const bool oracle = rules.host;
  rules.linear = [oracle](const LinearSpec& spec) {
    const int64_t bytes = oracle || spec.compute == Compute::f32 ? 4 : spec.compute == Compute::int8 ? 1 : 2;
    LinearPlan plan;
    plan.kernel = oracle ? "ref" : "library";
    plan.bytes = bytes * spec.weight.rows * spec.weight.cols + static_cast<int64_t>(spec.bias.size()) * 4;
    return plan;
  };
  rules.conv_bytes = [](const ConvSpec& spec) { return static_cast<int64_t>(spec.weight.size()) * 4; };
  rules.attention_scratch = [](const AttentionArgs&) { return int64_t{0}; };
  return rules;
}

}  // namespace h3
