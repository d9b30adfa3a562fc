// Limits the log lines about a file that cannot be written: one line for the first failure, then a
// count once a minute, and one line when the file can be written again. Pure; not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/time/clock.h"

namespace evergrad::coordinator {

class WriteTrouble {
 public:
  static constexpr std::chrono::seconds kSaidEvery{60};
  // After must be called after each attempt to write `path`. Returns the text to be logged, or "".
  std::string After(const std::string& path, const absl::Status& status, MonoTime now);

 private:
  struct Trouble {
    std::uint64_t failures = 0;  // since the last success
    MonoTime said{0};
  };
  std::map<std::string, Trouble> troubles_;  // by path; bounded
};

}  // namespace evergrad::coordinator
