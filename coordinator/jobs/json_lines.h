// JSON as it stands in metrics.jsonl and result.json, and the sink of metrics.jsonl's lines.
#pragma once

#include <cmath>
#include <string>

#include <nlohmann/json.hpp>

namespace evergrad::coordinator {

using Json = nlohmann::ordered_json;

// JSON has no NaN: a value that was not measured is null.
inline Json Real(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// `indent` -1: on one line. Bytes that are not UTF-8 are replaced.
inline std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Takes the lines of a job's metrics.jsonl.
class LineSink {
 public:
  virtual ~LineSink() = default;
  // `json`: one JSON object, without a newline. `frequent`: one of the many lines of steps and
  // rates, which leave some space for the others. False: there is no space; the line is lost, and
  // counted by the sink.
  virtual bool Add(const std::string& json, bool frequent) = 0;
};

}  // namespace evergrad::coordinator
