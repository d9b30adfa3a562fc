// Initial values of a dense variable: a function of (job seed, variable name, element index in the
// whole variable), so every division of the variable among servers gives the same values (LEDGER
// line 21). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ps_server/storage/dense_array.h"

namespace evergrad::ps_server {

// The settings of an initializer, with the names and formulas of Keras 2.9 (README.md).
struct InitializerSettings {
  // zeros | ones | constant | glorot_uniform | he_normal | truncated_normal
  std::string type = "zeros";
  double value = 0, mean = 0, stddev = 0.05;
  std::uint64_t fan_in = 0, fan_out = 0, seed = 0;  // fan_in and fan_out of the whole variable
};

namespace storage {

// Returns InvalidArgument for an unknown type, for a fan of zero if the type uses it, and for
// numbers that are not finite.
absl::Status CheckInitializer(const InitializerSettings& settings);
// Sets elements [first_index, first_index + array->size()) of the variable. The settings must have
// passed CheckInitializer.
void FillInitial(const InitializerSettings& settings, absl::string_view variable,
                 std::uint64_t first_index, DenseArray* array);

// Initial values of a row of a table. They depend on the key of the row instead of (seed, name):
// element j of the row is number j of the random stream with this key.
class RowInitializer {
 public:
  // The settings must have passed CheckInitializer, and the fans must be those of one row.
  explicit RowInitializer(const InitializerSettings& settings);
  void Fill(std::uint64_t row_key, std::span<float> row) const;

 private:
  enum class Kind { kConstant, kUniform, kNormal } kind_ = Kind::kConstant;
  float offset_ = 0, scale_ = 0;
};

}  // namespace storage
}  // namespace evergrad::ps_server
