// One value of a typed column on its way from the file to the batch, with pure functions for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/data_formats/value_kind.h"

namespace evergrad::worker {

// The largest number of characters of a value in a message. The user who has submitted the job
// reads the message, but perhaps has no permission to read the file.
inline constexpr std::size_t kQuotedMax = 16;

struct Value {
  config::ValueKind kind = config::ValueKind::kText;
  absl::string_view text;  // kText: a view into the caller's memory
  std::int64_t integer = 0;
  double real = 0;

  double number() const {  // kInteger, kReal
    return kind == config::ValueKind::kInteger ? static_cast<double>(integer) : real;
  }
  // Returns the text (kText), or the integer's decimal digits (kInteger). Vocabularies, `map` and
  // `hash` identify the value by this text, so the integer 39 and the text `39` are equal.
  std::string Name() const;
};

inline Value TextValue(absl::string_view text) { return {config::ValueKind::kText, text, 0, 0}; }
inline Value IntegerValue(std::int64_t v) { return {config::ValueKind::kInteger, {}, v, 0}; }
inline Value RealValue(double v) { return {config::ValueKind::kReal, {}, 0, v}; }

// Parses `text` as a value of `kind`. Returns InvalidArgument if the text is not such a value.
absl::StatusOr<Value> ParseValue(config::ValueKind kind, absl::string_view text);

// Returns the expected value of a column of `kind`, for messages: "an integer of 64 bits".
absl::string_view ExpectedOf(config::ValueKind kind);
// Returns the error "expected …, got `…`" with the beginning of `text`. The caller adds file, line
// and column.
absl::Status WrongValue(absl::string_view expected, absl::string_view text);

}  // namespace evergrad::worker
