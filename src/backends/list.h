// The only place that knows every back end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/context.h"
#include "ops/dry.h"
#include "ops/ops.h"

namespace h3 {

struct BackendInfo {
  std::string name;     // "ref", "cpu", "cuda:0"
  std::string detail;   // ISA level, card name and memory
  std::string refused;  // why it cannot be used here; empty = usable
};

std::vector<BackendInfo> list_backends(Context& context);

// name: "auto", "ref", "cpu", "cuda", "cuda:N"; "cpu,linear=KERNEL" forces a kernel wherever it can compute what is
// asked. Error(usage) for an unknown name or kernel, Error(device) with the reason otherwise.
std::unique_ptr<Ops> make_backend(const std::string& name, Context& context);

// What the back end `name` ("ref", "cpu", "cuda:0") makes of matmuls, attention and convolutions, for a dry run.
DryRules dry_rules(const std::string& name, Context& context);

// Operations a second of the host's multipliers when they touch no memory, at the level of instruction set that is
// used, over all threads of the pool, measured for about `seconds`: the yardstick of its kernels. 0 for portable code.
double host_matrix_peak(ThreadPool& pool, bool integer, double seconds);

// How the host's matmuls read weights of a format, at every level of instruction set: "packed" = a kernel expands the
// stored bits, a block of columns at a time; "packed, by rows" = the codec does; "panels" = copied once, at load, in
// the type of the arithmetic; "packed; panels in int8" = that where it takes no more than the file.
const char* host_weights(Format format);

}  // namespace h3
