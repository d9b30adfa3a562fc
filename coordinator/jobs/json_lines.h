// Helpers for the JSON in metrics.jsonl and result.json, and the sink for lines of metrics.jsonl.
#pragma once

#include <cmath>
#include <string>

#include <nlohmann/json.hpp>

namespace evergrad::coordinator {

using Json = nlohmann::ordered_json;

// Returns the value as JSON. JSON has no NaN, so a value that was not measured is null.
inline Json Real(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// Returns the JSON text, on one line if `indent` is -1. Bytes that are not UTF-8 are replaced.
inline std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Takes the lines of a job's metrics.jsonl.
class LineSink {
 public:
  virtual ~LineSink() = default;
  // Adds a line. `json` is one JSON object without a newline. `frequent` is true for the many lines
  // of steps and rates. A part of the space is reserved for other lines. Returns false if there is
  // no space; the sink then drops the line and counts it.
  virtual bool Add(const std::string& json, bool frequent) = 0;
};

}  // namespace evergrad::coordinator
