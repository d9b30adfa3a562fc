// One reason why a process is not live, or not ready.
#pragma once

#include <string>

namespace evergrad::health {

struct Unmet {
  std::string name;    // the name of a condition, or of a thread
  std::string reason;  // one line
  friend bool operator==(const Unmet&, const Unmet&) = default;
};

}  // namespace evergrad::health
