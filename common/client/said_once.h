// Filters log messages that would repeat at every connection: each text is logged once.
// Thread-safe.
#pragma once

#include <set>
#include <string>

#include "common/base/mutex.h"

namespace evergrad::client {

class SaidOnce {
 public:
  // Returns true the first time that it is called with `text`. After kTextsMax different texts,
  // First always returns false: a text with that many variants probably contains a value that
  // changes each time.
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
