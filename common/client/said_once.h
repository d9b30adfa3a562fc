// What a log is told once, though it happens at every connection. Thread-safe.
#pragma once

#include <set>
#include <string>

#include "common/base/mutex.h"

namespace evergrad::client {

class SaidOnce {
 public:
  // Whether `text` is said for the first time. Texts beyond kTextsMax are not said any more:
  // something in them changes each time.
  bool First(const std::string& text) {
    MutexLock lock(&mu_);
    return said_.size() < kTextsMax && said_.insert(text).second;
  }

 private:
  static constexpr std::size_t kTextsMax = 32;
  Mutex mu_;
  std::set<std::string> said_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::client
