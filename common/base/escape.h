// Text of a user's file or of a peer, made fit for a terminal and for a log. psctl and the loggers
// use these functions and no others.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad {

// `text` as one line on which nothing is hidden: a line end becomes \n, a tab \t, any other control
// character \x1b, a character that reorders or hides its neighbours (U+202E and its kin) \u202e,
// and a byte that is no UTF-8 \xff. Every other character, a backslash too, stays as it is.
std::string Escaped(absl::string_view text);

// The beginning of `text` for a quotation in a message: escaped, with "…" where more than
// `characters_max` characters were left out.
std::string Quoted(absl::string_view text, std::size_t characters_max);

// Takes a whole JSON text, as nlohmann::json writes it, and returns an equal one in which every
// hidden character of a string is spelled as \u202e. Line ends stay.
std::string JsonWithoutHidden(absl::string_view json);

}  // namespace evergrad
