// Which log lines were shown already. Clocks of machines differ a little, so a follower asks again for the last seconds and
// leaves out what it has shown. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "evergrad/v1/api.pb.h"

namespace evergrad::psctl {

class LogCursor {
 public:
  static constexpr std::int64_t kOverlapMs = 5000;
  // The lines of `answer` that were not in a former one, in its order.
  std::vector<v1::LogLine> Fresh(const v1::ReadTaskLogsResponse& answer);
  // What to ask for next: `before` until a line has come.
  std::int64_t Since(std::int64_t before) const;

 private:
  using Key = std::tuple<std::int64_t, std::string, std::string>;
  std::map<Key, int> shown_;  // of the last kOverlapMs only
  std::int64_t newest_ms_ = 0;
};

}  // namespace evergrad::psctl
