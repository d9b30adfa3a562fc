// Decodes UTF-8 text one character at a time.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace evergrad {

struct Utf8Character {
  char32_t code = 0;
  std::size_t bytes = 0;  // 0 if the text does not begin with a valid character
};

// Returns the character at the start of `text`, which must not be empty. Overlong forms, surrogates
// and numbers above U+10FFFF are invalid, as in protobuf's own check.
Utf8Character FirstCharacter(absl::string_view text);

}  // namespace evergrad
