// JSON as it stands in metrics.jsonl and result.json. Pure.
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

}  // namespace evergrad::coordinator
