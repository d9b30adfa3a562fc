#include "common/base/text.h"

#include <algorithm>

namespace evergrad {
namespace {

// Length of the valid UTF-8 sequence at the start of `text`, 0 when there is none. Overlong forms, surrogates and numbers
// above U+10FFFF are not valid, as in protobuf's own check.
std::size_t SequenceLength(absl::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  std::size_t length;
  unsigned char low = 0x80, high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  if (text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string CleanText(absl::string_view text, std::size_t bytes_max) {
  constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";
  constexpr absl::string_view kEllipsis = "...";
  std::string out;
  out.reserve(std::min(text.size(), bytes_max));
  std::size_t room_end = 0;  // Where the text can be cut so that the dots still fit.
  while (!text.empty()) {
    const std::size_t length = SequenceLength(text);
    const absl::string_view piece = length == 0 ? kReplacement : text.substr(0, length);
    if (out.size() + piece.size() > bytes_max) {
      out.resize(room_end);
      if (bytes_max >= kEllipsis.size()) out.append(kEllipsis.data(), kEllipsis.size());
      return out;
    }
    out.append(piece.data(), piece.size());
    if (out.size() + kEllipsis.size() <= bytes_max) room_end = out.size();
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

}  // namespace evergrad
