#include "ps_server/storage/initializer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/random/philox.h"

namespace evergrad::ps_server::storage {
namespace {

// The standard deviation of a standard normal distribution that is truncated at 2. Keras divides by
// this number, so that the truncated values have the requested standard deviation.
constexpr double kTruncatedStddev = .87962566103423978;

template <class ValueAt>
void ForEach(std::uint64_t first_index, DenseArray* array, ValueAt value_at) {
  std::uint64_t index = first_index;
  for (std::size_t c = 0; c < array->chunks(); ++c) {
    for (float& element : array->fill_chunk(c)) element = value_at(index++);
  }
}

void FillNormal(std::uint64_t key, std::uint64_t first_index, float mean, float stddev,
                DenseArray* array) {
  for (std::size_t c = 0; c < array->chunks(); ++c) {
    const std::span<float> chunk = array->fill_chunk(c);
    random::TruncatedNormals(key, first_index, chunk);
    for (float& element : chunk) element = mean + stddev * element;
    first_index += chunk.size();
  }
}

void FillConstant(float value, DenseArray* array) {
  for (std::size_t c = 0; c < array->chunks(); ++c) std::ranges::fill(array->fill_chunk(c), value);
}

}  // namespace

absl::Status CheckInitializer(const InitializerSettings& settings) {
  const std::string& type = settings.type;
  if (type == "zeros" || type == "ones") return absl::OkStatus();
  if (type == "constant") {
    if (std::isfinite(static_cast<float>(settings.value))) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the initializer's value is not finite: type=constant value=", settings.value));
  }
  if (type == "glorot_uniform" || type == "he_normal") {
    if (settings.fan_in >= 1 && (type == "he_normal" || settings.fan_out >= 1))
      return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the initializer needs fan_in and fan_out of the variable: type=", type,
                     " fan_in=", settings.fan_in, " fan_out=", settings.fan_out));
  }
  if (type == "truncated_normal") {
    if (std::isfinite(static_cast<float>(settings.mean)) &&
        std::isfinite(static_cast<float>(settings.stddev)) && settings.stddev >= 0)
      return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the initializer's numbers are out of range: type=truncated_normal mean=", settings.mean,
        " stddev=", settings.stddev));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown initializer, expected zeros, ones, constant, glorot_uniform, he_normal "
                   "or truncated_normal: type=",
                   type.substr(0, 64)));
}

void FillInitial(const InitializerSettings& settings, absl::string_view variable,
                 std::uint64_t first_index, DenseArray* array) {
  const std::string& type = settings.type;
  if (type == "zeros") return FillConstant(0, array);
  if (type == "ones") return FillConstant(1, array);
  if (type == "constant") return FillConstant(static_cast<float>(settings.value), array);
  const std::uint64_t key = random::KeyOf(settings.seed, variable);
  if (type == "glorot_uniform") {
    const auto limit = static_cast<float>(std::sqrt(
        6.0 / (static_cast<double>(settings.fan_in) + static_cast<double>(settings.fan_out))));
    return ForEach(first_index, array, [=](std::uint64_t i) {
      return (2.0f * random::Uniform(key, i) - 1.0f) * limit;
    });
  }
  if (type == "he_normal") {
    const auto stddev = static_cast<float>(std::sqrt(2.0 / static_cast<double>(settings.fan_in)) /
                                           kTruncatedStddev);
    return FillNormal(key, first_index, 0, stddev, array);
  }
  const auto mean = static_cast<float>(settings.mean);
  const auto stddev = static_cast<float>(settings.stddev);
  FillNormal(key, first_index, mean, stddev, array);
}

RowInitializer::RowInitializer(const InitializerSettings& settings) {
  const std::string& type = settings.type;
  if (type == "zeros" || type == "ones" || type == "constant") {
    offset_ = type == "zeros" ? 0.0f : type == "ones" ? 1.0f : static_cast<float>(settings.value);
  } else if (type == "glorot_uniform") {
    kind_ = Kind::kUniform;
    scale_ = static_cast<float>(std::sqrt(
        6.0 / (static_cast<double>(settings.fan_in) + static_cast<double>(settings.fan_out))));
  } else {
    kind_ = Kind::kNormal;
    const bool he = type == "he_normal";
    offset_ = he ? 0.0f : static_cast<float>(settings.mean);
    scale_ = static_cast<float>(he ? std::sqrt(2.0 / static_cast<double>(settings.fan_in)) /
                                         kTruncatedStddev
                                   : settings.stddev);
  }
}

void RowInitializer::Fill(std::uint64_t row_key, std::span<float> row) const {
  switch (kind_) {
    case Kind::kConstant: std::ranges::fill(row, offset_); return;
    case Kind::kUniform:
      // Four elements of random::Uniform are computed from one block.
      for (std::size_t j = 0; j < row.size(); j += 4) {
        const random::Block block = random::Philox(row_key, j / 4, 0);
        for (std::size_t k = 0; k < 4 && j + k < row.size(); ++k)
          row[j + k] = (2.0f * (static_cast<float>(block[k] >> 8) * 0x1p-24f) - 1.0f) * scale_;
      }
      return;
    case Kind::kNormal:
      random::TruncatedNormals(row_key, 0, row);
      for (float& element : row) element = offset_ + scale_ * element;
      return;
  }
}

}  // namespace evergrad::ps_server::storage
