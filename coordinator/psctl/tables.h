// Renders answers as tables for people. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evergrad/v1/api.pb.h"

namespace evergrad::psctl {

std::vector<std::string> JobTable(const v1::ListJobsResponse& jobs);
// Returns the first line of `psctl job show`: name, uid, owner and time of the submission.
std::string JobTitle(const v1::JobStatus& job);
std::vector<std::string> TaskTable(const v1::ListTasksResponse& tasks, std::int64_t now_ms);
std::vector<std::string> VariableTable(const v1::ListVariablesResponse& variables, bool shards);
std::string LogText(const v1::LogLine& line);

}  // namespace evergrad::psctl
