// EG_CHECK: our own invariant is broken, stop the process. Never for bytes that came from outside.
#pragma once

#include <string>

namespace evergrad {
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              const std::string& message);
}  // namespace evergrad

#define EG_CHECK(condition)                                                        \
  do {                                                                             \
    if (!(condition)) ::evergrad::CheckFailed(__FILE__, __LINE__, #condition, ""); \
  } while (false)
#define EG_CHECK_MSG(condition, message)                                                  \
  do {                                                                                    \
    if (!(condition)) ::evergrad::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)
