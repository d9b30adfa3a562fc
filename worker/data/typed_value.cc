#include "worker/data/typed_value.h"

#include "absl/strings/str_cat.h"
#include "common/base/escape.h"

namespace evergrad::worker {

using config::ValueKind;

std::string Value::Name() const {
  return kind == ValueKind::kText ? std::string(text) : absl::StrCat(integer);
}

absl::string_view ExpectedOf(ValueKind kind) {
  switch (kind) {
    case ValueKind::kText: return "a text";
    case ValueKind::kInteger: return "an integer of 64 bits";
    case ValueKind::kReal: break;
  }
  return "a finite number";
}

absl::Status WrongValue(absl::string_view expected, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", expected, ", got `", Quoted(text, kQuotedMax), "`"));
}

absl::StatusOr<Value> ParseValue(ValueKind kind, absl::string_view text) {
  if (kind == ValueKind::kText) return TextValue(text);
  if (kind == ValueKind::kInteger) {
    if (const auto integer = config::IntegerOf(text)) return IntegerValue(*integer);
  } else if (const auto real = config::RealOf(text)) {
    return RealValue(*real);
  }
  return WrongValue(ExpectedOf(kind), text);
}

}  // namespace evergrad::worker
