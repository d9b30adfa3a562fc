// EG_CHECK stops the process if an invariant of the program itself is broken. The macro is never
// used to check bytes that come from outside the process.
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
