#include "backends/list.h"

#include "backends/cpu/cpu_ops.h"
#include "backends/ref/ref_ops.h"
#include "base/error.h"

namespace h3 {
namespace {

struct BackendRow {
  const char* name;
  bool automatic;  // a candidate for "auto"
  std::string (*detail)();
  std::string (*refused)(Context& context);  // empty = usable
  std::unique_ptr<Ops> (*make)(Context& context);
};

std::string usable(Context&) { return {}; }
std::string ref_detail() { return "plain loops with double accumulators: the oracle, slow"; }

// In order of preference: "auto" takes the first that is not refused.
const BackendRow kBackends[] = {
    {"cpu", true, cpu_isa_detail, usable, make_cpu_ops},
    {"ref", true, ref_detail, usable, make_ref_ops},
};

}  // namespace

std::vector<BackendInfo> list_backends(Context& context) {
  std::vector<BackendInfo> out;
  for (const BackendRow& row : kBackends) out.push_back({row.name, row.detail(), row.refused(context)});
  return out;
}

std::unique_ptr<Ops> make_backend(const std::string& name, Context& context) {
  std::string names = "auto";
  std::string reasons;
  for (const BackendRow& row : kBackends) {
    names += strf(", %s", row.name);
    if (name != row.name && !(name == "auto" && row.automatic)) continue;
    const std::string refused = row.refused(context);
    if (refused.empty()) return row.make(context);
    if (name != "auto") {
      fail(Code::device, "device '%s' cannot be used: %s. Run 'h3 devices' for what this machine has", row.name,
           refused.c_str());
    }
    reasons += strf("%s%s: %s", reasons.empty() ? "" : "; ", row.name, refused.c_str());
  }
  if (name == "auto") fail(Code::device, "no device can be used (%s)", reasons.c_str());
  fail(Code::usage, "unknown device '%s'; this build has %s", name.c_str(), names.c_str());
}

}  // namespace h3
