#include "common/base/text.h"

#include <algorithm>

#include "common/base/utf8.h"

namespace evergrad {

std::string CleanText(absl::string_view text, std::size_t bytes_max) {
  constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";
  constexpr absl::string_view kEllipsis = "...";
  std::string out;
  out.reserve(std::min(text.size(), bytes_max));
  // The position at which the text can be truncated so that the "..." at its end still fits.
  std::size_t room_end = 0;
  while (!text.empty()) {
    const std::size_t length = FirstCharacter(text).bytes;
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
