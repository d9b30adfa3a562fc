// The text of a reference of keys, in which comments explain each key. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::config {

// Appends each line of `text` that is not empty, with `prefix` before it.
void AppendLines(absl::string_view text, absl::string_view prefix, std::string* out);

// Breaks comments at spaces, so that lines have at most `columns_max` characters. A new line
// repeats the spaces and comment signs at the start of the line. For a comment after a value, the
// new line begins below that comment. YAML values are not broken, and neither is a word that is too
// long for a line.
std::string WrapComments(absl::string_view text, std::size_t columns_max);

}  // namespace evergrad::config
