// How fast this machine does each kind of work (ops/dry.h): measured on the back end itself in a few milliseconds per
// kind, and kept in the cache folder, because a machine does not change from run to run.
#pragma once

#include <map>
#include <string>

#include "base/json.h"
#include "ops/dry.h"

namespace h3 {

struct Rate {
  double per_call = 0, per_unit = 0;  // seconds
};
using Rates = std::map<std::string, Rate>;

// Every kind that `booking` has. `fresh`: measures all of them again, else only those that are not in the cache.
Rates measure_rates(Ops& ops, const Booking& booking, bool fresh);

// For other processes: {kind: [per_call, per_unit]}. null gives no rates.
Json rates_json(const Rates& rates);
Rates rates_from_json(const Json& json);
bool knows_all(const Rates& rates, const WorkByKind& work);

double seconds_of(const WorkByKind& work, const Rates& rates);

}  // namespace h3
