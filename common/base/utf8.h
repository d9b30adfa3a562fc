// One character of UTF-8 text at a time.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace evergrad {

struct Utf8Character {
  char32_t code = 0;
  std::size_t bytes = 0;  // 0: the text does not begin with a character
};

// The character at the start of `text`, which is not empty. Overlong forms, surrogates and numbers
// above U+10FFFF are no characters, as in protobuf's own check.
Utf8Character FirstCharacter(absl::string_view text);

}  // namespace evergrad
