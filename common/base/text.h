// Text from outside, made fit to be passed on.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad {

// `text` as valid UTF-8 of at most `bytes_max` bytes: bad bytes become U+FFFD, a cut end becomes
// "...". A proto3 string field that is not UTF-8 makes the whole message unreadable to its
// receiver, so text from outside passes through here.
std::string CleanText(absl::string_view text, std::size_t bytes_max);

}  // namespace evergrad
