#include "worker/data/typed_column.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data_formats/transform_type.h"
#include "common/data_formats/typed_field.h"

namespace evergrad::worker {
namespace {

using config::ValueKind;

absl::StatusOr<Value> Transformed(Value value, const std::vector<TransformStep>& steps) {
  for (const TransformStep& step : steps) {
    EG_ASSIGN_OR_RETURN(value, step(value));
  }
  return value;
}

}  // namespace

TypedColumn::TypedColumn(const config::FieldSpec& spec)
    : spec_(spec), reads_(config::KindOf(spec)), learned_at_(config::LearnedTransform(spec)) {}

absl::StatusOr<std::unique_ptr<TypedColumn>> TypedColumn::Make(const config::FieldSpec& spec,
                                                               const Vocabulary* vocabulary) {
  const auto named = [&](const absl::Status& status) {
    return UserError(
        absl::InvalidArgumentError(absl::StrCat("field `", spec.name, "`: ", status.message())));
  };
  const auto result = config::KindOfField(spec);
  if (!result.ok()) return named(result.status());
  std::unique_ptr<TypedColumn> column(new TypedColumn(spec));
  column->integers_ = *result == ValueKind::kInteger;
  column->given_ = vocabulary;
  ValueKind kind = column->reads_;
  for (std::size_t t = 0; t < spec.transforms.size(); ++t) {
    const config::Transform& transform = spec.transforms[t];
    if (t != column->learned_at_) {
      auto step = MakeTransformStep(transform, kind);
      if (!step.ok()) return named(step.status());
      (t < column->learned_at_ ? column->before_ : column->after_).push_back(*std::move(step));
    }
    kind = *config::KindAfter(transform, kind);
  }
  return column;
}

std::size_t TypedColumn::width() const {
  return std::max<std::size_t>({1, spec_.columns.size(), spec_.size});
}

std::uint64_t TypedColumn::bytes() const {
  return (ints_.size() + numbers_.size()) * sizeof(std::int64_t) + reals_.size() * sizeof(float) +
         builder_.bytes();
}

absl::Status TypedColumn::Add(const Value& raw) {
  EG_ASSIGN_OR_RETURN(const Value value, Transformed(raw, before_));
  if (!has_vocabulary()) return Store(value);
  const std::string word = value.Name();
  if (building()) {
    numbers_.push_back(builder_.Count(word));
    return absl::OkStatus();
  }
  const auto found = given_->find(word);
  return AddId(found == given_->end() ? 0 : found->second);
}

absl::Status TypedColumn::AddMissing(absl::string_view found) {
  if (spec_.default_text) {
    EG_ASSIGN_OR_RETURN(const Value value, ParseValue(reads_, *spec_.default_text));
    return Add(value);
  }
  if (!has_vocabulary())
    return absl::InvalidArgumentError(
        absl::StrCat("the value is missing (", found, ") and the field has no `default`"));
  if (!building()) return AddId(0);
  numbers_.push_back(0);
  return absl::OkStatus();
}

absl::Status TypedColumn::End() {
  if (!building()) {
    given_ = nullptr;  // The training data may be released before this column.
    return absl::OkStatus();
  }
  if (!has_vocabulary()) return absl::OkStatus();
  std::vector<std::int64_t> ids;
  vocabulary_ = builder_.Make(spec_.transforms[learned_at_].min_count, &ids);
  const std::vector<std::int64_t> numbers = std::exchange(numbers_, {});
  for (const std::int64_t number : numbers)
    EG_RETURN_IF_ERROR(AddId(ids[static_cast<std::size_t>(number)]));
  return absl::OkStatus();
}

absl::Status TypedColumn::AddId(std::int64_t id) {
  EG_ASSIGN_OR_RETURN(const Value value, Transformed(IntegerValue(id), after_));
  return Store(value);
}

absl::Status TypedColumn::Store(const Value& value) {
  if (integers_) {
    ints_.push_back(value.integer);
    return absl::OkStatus();
  }
  const auto rounded = static_cast<float>(value.number());
  if (!std::isfinite(rounded))
    return absl::InvalidArgumentError("the value is beyond the range of float32");
  reals_.push_back(rounded);
  return absl::OkStatus();
}

}  // namespace evergrad::worker
