// Time of alternatives that take turns.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace h3 {

double clock_seconds();
double median_of(std::vector<double> values);  // at least one value

// seconds[alternative][round]; every alternative runs once before the first round.
std::vector<std::vector<double>> time_in_turns(const std::vector<std::function<void()>>& alternatives, int rounds);

}  // namespace h3
