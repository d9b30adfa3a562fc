// One field of a data set with typed columns. Values are converted and transformed when they are
// added, and stored as int64 or float32.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/data_formats/data_spec.h"
#include "worker/data/transforms.h"
#include "worker/data/typed_value.h"
#include "worker/data/vocabulary.h"

namespace evergrad::worker {

// One thread adds values; after End the column is immutable, and any thread may read it.
class TypedColumn {
 public:
  // `vocabulary` is null for the training data. For other data, `vocabulary` belongs to the
  // training data, and must live until End returns. Returns UserError if the transforms do not
  // accept values of the field's type.
  static absl::StatusOr<std::unique_ptr<TypedColumn>> Make(const config::FieldSpec& spec,
                                                           const Vocabulary* vocabulary);

  // Adds a value of the kind `reads()`. Returns InvalidArgument if a transform has no result for
  // the value, or if the result is beyond float32; the message has no file, line and column.
  absl::Status Add(const Value& value);
  // Adds the field's default, or id 0 if the field has a vocabulary. Returns InvalidArgument if the
  // field has neither. `found` describes the missing value in the message.
  absl::Status AddMissing(absl::string_view found);
  // Must be called after the last value. Makes the vocabulary and assigns an id to every word.
  absl::Status End();

  const config::FieldSpec& spec() const { return spec_; }
  config::ValueKind reads() const { return reads_; }
  // Returns the number of values per example.
  std::size_t width() const;
  bool integers() const { return integers_; }
  // The values of all examples, `width` each. The vector of the other dtype is empty.
  const std::vector<std::int64_t>& ints() const { return ints_; }
  const std::vector<float>& reals() const { return reals_; }
  bool has_vocabulary() const { return learned_at_ < spec_.transforms.size(); }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  std::uint64_t bytes() const;

 private:
  explicit TypedColumn(const config::FieldSpec& spec);
  bool building() const { return given_ == nullptr; }
  absl::Status AddId(std::int64_t id);
  absl::Status Store(const Value& value);

  const config::FieldSpec spec_;
  const config::ValueKind reads_;
  // The index of the learned transform, or the number of transforms if none is learned.
  const std::size_t learned_at_;
  bool integers_ = false;
  std::vector<TransformStep> before_, after_;  // before and after the learned transform
  std::vector<std::int64_t> ints_;
  std::vector<float> reals_;
  // While a vocabulary is built, each value is the number of its word; 0 if the value is missing.
  VocabularyBuilder builder_;
  std::vector<std::int64_t> numbers_;
  Vocabulary vocabulary_;
  const Vocabulary* given_ = nullptr;
};

}  // namespace evergrad::worker
