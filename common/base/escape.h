// Makes text from a user's file or a peer safe for terminals and logs. psctl and the loggers use
// only these functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad {

// Returns `text` as one line without hidden characters. A line end becomes \n, a tab \t, any other
// control character \x1b. A character that reorders or hides its neighbours (such as U+202E)
// becomes \u202e, and a byte that is not UTF-8 becomes \xff. All other characters, the backslash
// included, are unchanged.
std::string Escaped(absl::string_view text);

// Returns the beginning of `text` for a quotation in a message: escaped, and with "…" at the end if
// `text` has more than `characters_max` characters.
std::string Quoted(absl::string_view text, std::size_t characters_max);

// Returns a JSON text that equals `json` (output of nlohmann::json) and has every hidden character
// inside a string written as \u202e. Line ends are kept.
std::string JsonWithoutHidden(absl::string_view json);

}  // namespace evergrad
