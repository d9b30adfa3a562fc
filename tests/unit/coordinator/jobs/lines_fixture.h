// A job with two servers and two workers, and the lines that it has written to metrics.jsonl.
#pragma once

#include <catch2/catch.hpp>
#include <vector>

#include <nlohmann/json.hpp>

#include "job_fixture.h"

namespace evergrad::coordinator {

inline constexpr char kLinesFile[] = "/runs/fake/metrics.jsonl";

inline void AddTasks(FakeCluster& c) {
  c.AddServer("0");
  c.AddServer("1");
  c.AddWorker("0");
  c.AddWorker("1");
  c.job->Start();
}

// Returns the lines of metrics.jsonl. Json::parse throws if a line is not a whole JSON object.
inline std::vector<nlohmann::json> Lines(const FakeCluster& c) {
  std::vector<nlohmann::json> lines;
  const auto file = c.host.files.find(kLinesFile);
  if (file == c.host.files.end()) return lines;
  for (std::size_t begin = 0; begin < file->second.size();) {
    const std::size_t end = file->second.find('\n', begin);
    REQUIRE(end != std::string::npos);
    lines.push_back(nlohmann::json::parse(file->second.substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

}  // namespace evergrad::coordinator
