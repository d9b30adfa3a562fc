// Control messages as JSON for `--output json`. Ids are 16 hex digits, numbers are numbers, NaN is
// null. Pure.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "evergrad/v1/api.pb.h"

namespace evergrad::psctl {

nlohmann::json JsonOf(const v1::JobStatus& job);
nlohmann::json JsonOf(const v1::TaskRow& task);
nlohmann::json JsonOf(const v1::VariableRow& variable);
nlohmann::json JsonOf(const v1::LogLine& line);
nlohmann::json JsonOf(const v1::GetClusterInfoResponse& info);
// Returns one line, or indented text. Bytes that are not UTF-8 are replaced.
std::string Dump(const nlohmann::json& json, int indent = 1);

}  // namespace evergrad::psctl
