// What benchmarks make of their rounds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace evergrad::bench {

// Of at least one value; of an even number the larger of the two in the middle.
inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace evergrad::bench
