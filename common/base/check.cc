#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace evergrad {

void CheckFailed(const char* file, int line, const char* expression, const std::string& message) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s%s%s\n", file, line, expression,
               message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace evergrad
