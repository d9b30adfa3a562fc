#include "kubernetes/api/json_text.h"

#include <cstdint>
#include <limits>
#include <string>

namespace evergrad::kubernetes {

absl::StatusOr<Json> ParseJson(absl::string_view text) {
  bool too_deep = false;
  const auto look = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kJsonDepthMax;
    return !too_deep;
  };
  Json value = Json::parse(text.begin(), text.end(), look, /*allow_exceptions=*/false);
  if (too_deep) return absl::InvalidArgumentError("the JSON is nested too deeply");
  if (value.is_discarded()) return absl::InvalidArgumentError("the text is not JSON");
  return value;
}

const Json& Member(const Json& value, const char* key) {
  static const Json null;
  if (!value.is_object()) return null;
  const auto found = value.find(key);
  return found == value.end() ? null : *found;
}

std::string TextOf(const Json& value, const char* key) {
  const Json& member = Member(value, key);
  return member.is_string() ? member.get_ref<const std::string&>() : std::string();
}

std::int64_t IntegerOf(const Json& value, const char* key) {
  const Json& member = Member(value, key);
  if (!member.is_number_integer()) return 0;
  if (member.is_number_unsigned()) {
    const auto number = member.get<std::uint64_t>();
    return number > std::numeric_limits<std::int64_t>::max() ? 0
                                                             : static_cast<std::int64_t>(number);
  }
  const auto number = member.get<std::int64_t>();
  return number < 0 ? 0 : number;
}

}  // namespace evergrad::kubernetes
