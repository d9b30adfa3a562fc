// Renders answers as tables for people. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evergrad/v1/api.pb.h"

namespace evergrad::psctl {

std::vector<std::string> TaskTable(const v1::ListTasksResponse& tasks, std::int64_t now_ms);
std::vector<std::string> VariableTable(const v1::ListVariablesResponse& variables, bool shards);
std::string LogText(const v1::LogLine& line);

}  // namespace evergrad::psctl
