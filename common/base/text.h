// Makes text from outside valid for messages to other processes.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad {

// Returns `text` as valid UTF-8 of at most `bytes_max` bytes: invalid bytes become U+FFFD, and a
// truncated text ends in "...". One invalid proto3 string makes a whole message unreadable for its
// receiver, so text from outside always passes through this function.
std::string CleanText(absl::string_view text, std::size_t bytes_max);

}  // namespace evergrad
