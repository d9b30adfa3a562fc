// Parses texts into typed values, in the same way for job files, daemon files and command lines.
// Pure.
//
// Each function returns the value, or InvalidArgument with the expected value ("expected an
// integer, got `x`").
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::config {

// Parses decimal digits without sign and leading zeros. (Leading zeros are refused, because
// YAML 1.1 reads `010` as 8.)
absl::StatusOr<std::uint64_t> ParseUnsigned(absl::string_view text, std::uint64_t min,
                                            std::uint64_t max);
// Parses a finite decimal or scientific number.
absl::StatusOr<double> ParseReal(absl::string_view text);
// Parses `true` or `false`; yes, no, on and off are refused with a suggestion.
absl::StatusOr<bool> ParseBool(absl::string_view text);
// Parses "65536", "64KiB", "1.5GiB", "10MB"; whole bytes only.
absl::StatusOr<std::uint64_t> ParseByteSize(absl::string_view text);
// Parses "200ms", "5s", "1.5m", "2h", "0".
absl::StatusOr<std::chrono::milliseconds> ParseDuration(absl::string_view text);

std::string FormatByteSize(std::uint64_t bytes);              // "64KiB", "65537"
std::string FormatDuration(std::chrono::milliseconds value);  // "5s", "200ms"
std::string FormatReal(double value);                         // shortest text that reads back equal

// Returns a value from outside so that it can be quoted in a message: its first 60 characters,
// escaped (common/base/escape.h).
std::string Shown(absl::string_view text);
// Returns "a, b or c" for three names, and "" for none.
std::string JoinWithOr(const std::vector<std::string>& names);
// Returns "; did you mean `x`?" for the nearest candidate (common/base/nearest_name.h), or "".
std::string Suggestion(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace evergrad::config
