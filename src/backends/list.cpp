#include "backends/list.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/isa_level.h"
#include "backends/cpu/packed_weights.h"
#include "backends/cpu/peak.h"
#include "backends/cpu/plan.h"
#include "backends/ref/ref_ops.h"
#include "backends/start_check.h"
#include "base/error.h"
#include "ops/stored.h"
#ifdef H3_HAVE_CUDA
#include "backends/cuda/cuda_ops.h"
#endif

namespace h3 {
namespace {

struct BackendRow {
  BackendInfo info;
  bool automatic = true;  // a candidate for "auto"
  // `kernel`: the one to force for the operation `forced`, the only one with several; "" = none.
  std::unique_ptr<Ops> (*make)(Context& context, int index, const std::string& kernel) = nullptr;
  std::string forced;
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
    row.make = [](Context& context, int index, const std::string& kernel) {
      if (kernel.empty()) return make_cuda_ops(context, index);
      if (kernel != "own" && kernel != "library") {
        fail(Code::usage, "force: attention=%s is not known, give own or library", kernel.c_str());
      }
      return make_cuda_ops(context, index, kernel == "own" ? CudaAttention::own : CudaAttention::library);
    };
    row.forced = "attention";
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

// "cpu,linear=f32_scalar", "cuda:0,attention=library"
struct DeviceName {
  std::string device, operation, kernel;
};

DeviceName parse_name(const std::string& text) {
  const size_t comma = text.find(',');
  DeviceName name{text.substr(0, comma), "", ""};
  if (name.device == "cuda") name.device = "cuda:0";
  for (size_t at = comma; at != std::string::npos;) {
    const size_t next = text.find(',', at + 1);
    const std::string forced = text.substr(at + 1, next == std::string::npos ? next : next - at - 1);
    const size_t equals = std::min(forced.find('='), forced.size());
    name.operation = forced.substr(0, equals);
    name.kernel = forced.substr(std::min(equals + 1, forced.size()));
    if ((name.operation != "linear" && name.operation != "attention") || name.kernel.empty()) {
      fail(Code::usage,
           "force: \"%s\" names no operation with kernels to choose from, give linear=KERNEL or attention=KERNEL",
           forced.c_str());
    }
    at = next;
  }
  return name;
}

// In order of preference: "auto" takes the first that is not refused.
std::vector<BackendRow> backend_rows() {
  std::vector<BackendRow> rows;
  add_cuda(rows);
  BackendRow cpu;
  cpu.info = {"cpu", cpu_isa_detail(), ""};
  cpu.make = [](Context& context, int, const std::string& kernel) { return make_cpu_ops(context, kernel); };
  cpu.forced = "linear";
  rows.push_back(cpu);
  BackendRow ref;
  ref.info = {"ref", "plain loops with double accumulators: the oracle, slow", ""};
  ref.automatic = false;
  ref.make = [](Context& context, int, const std::string&) { return make_ref_ops(context); };
  rows.push_back(ref);
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
    verdict = start_check(row.make(context, row.index, ""));
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
  const auto& [wanted, operation, kernel] = parse_name(name);
  std::string names = "auto";
  for (const BackendRow& row : checked_rows(context, wanted)) {
    names += ", " + row.info.name;
    const bool named = wanted == row.info.name;
    if (!named && !(wanted == "auto" && row.automatic)) continue;
    if (!row.info.refused.empty()) {
      if (!named) continue;
      fail(Code::device, "device '%s' cannot be used: %s. Run 'h3 devices' for what this machine has",
           row.info.name.c_str(), row.info.refused.c_str());
    }
    if (!operation.empty() && operation != row.forced) {
      fail(Code::usage, "force: %s has no kernels of %s to choose from, drop it or give --device %s",
           row.info.name.c_str(), operation.c_str(), operation == "linear" ? "cpu" : "cuda");
    }
    return row.make(context, row.index, kernel);
  }
  fail(Code::usage, "unknown device '%s'; this machine has %s", name.c_str(), names.c_str());
}

double host_matrix_peak(ThreadPool& pool, bool integer, double seconds) { return measure_peak(pool, integer, seconds); }

const char* host_weights(Format format) {
  if (!stays_packed(format, Compute::bf16)) return "panels";
  if (!stays_packed(format, Compute::int8)) return "packed; panels in int8";
  return kernels_of(IsaLevel::scalar).expander(row_of(format).name) != nullptr ? "packed" : "packed, by rows";
}

namespace {

// The oracle holds the weights, and their magnitudes, in f32 (ops/shadow.h).
DryRules beside_oracle(DryRules rules) {
  rules.linear = [linear = rules.linear](const LinearSpec& spec) {
    LinearPlan plan = linear(spec);
    plan.bytes += 2 * 4 * spec.weight.rows * spec.weight.cols;
    return plan;
  };
  rules.conv_bytes = [conv = rules.conv_bytes](const ConvSpec& spec) {
    return conv(spec) + 2 * 4 * static_cast<int64_t>(spec.weight.size());
  };
  return rules;
}

}  // namespace

DryRules dry_rules(const std::string& name, Context& context) {
  constexpr std::string_view kShadow = "shadow(";
  if (name.rfind(kShadow, 0) == 0) {
    return beside_oracle(dry_rules(name.substr(kShadow.size(), name.size() - kShadow.size() - 1), context));
  }
  const DeviceName asked = parse_name(name);
  if (asked.device == "cpu") return cpu_dry_rules(context, asked.kernel);
  // The oracle packs every weight as f32; an accelerator holds what it multiplies, narrower formats as they are stored.
  DryRules rules;
  rules.name = name;
  rules.host = name == "ref";
  const bool oracle = rules.host;
  rules.linear = [oracle](const LinearSpec& spec) {
    const int64_t bytes = oracle || spec.compute == Compute::f32 ? 4 : spec.compute == Compute::int8 ? 1 : 2;
    const bool stored = !oracle && kept_as_stored(spec.weight, spec.compute);
    LinearPlan plan;
    plan.kernel = oracle ? "ref" : "library";
    plan.bytes = stored ? spec.weight.stored_bytes() : bytes * spec.weight.rows * spec.weight.cols;
    plan.bytes += static_cast<int64_t>(spec.bias.size()) * 4;
    return plan;
  };
  rules.conv_bytes = [](const ConvSpec& spec) { return static_cast<int64_t>(spec.weight.size()) * 4; };
  rules.attention_scratch = [](const AttentionArgs&) { return int64_t{0}; };
  return rules;
}

}  // namespace h3
