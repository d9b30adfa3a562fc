// Computes the figures of a benchmark from its rounds, and prints them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace evergrad::bench {

// Returns the median of at least one value. For an even number of values it returns the larger of
// the two middle values.
inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Prints one line of JSON. `reach` is the target for the ratio to the reference; a `reach` below 0
// means that there is no target.
inline constexpr double kNoReach = -1;
inline void Print(const std::string& name, double value, const char* unit,
                  const std::string& reference_name, double reference_value, double ratio,
                  double reach) {
  char text[32] = "null";
  if (reach >= 0) std::snprintf(text, sizeof text, "%.4g", reach);
  std::printf(
      "{\"name\": \"%s\", \"value\": %.5g, \"unit\": \"%s\", \"reference_name\": \"%s\", "
      "\"reference_value\": %.5g, \"ratio\": %.3f, \"reach\": "
      "%s}\n",
      name.c_str(), value, unit, reference_name.c_str(), reference_value, ratio, text);
  std::fflush(stdout);
}

}  // namespace evergrad::bench
