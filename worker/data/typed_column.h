// One field of a data set with typed columns: its values are typed and transformed as they are
// added, and held as int64 or float32.
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

// Values are added by one thread; after End it is immutable and may be read by any thread.
class TypedColumn {
 public:
  // `vocabulary` is that of the training data if this data is read beside it, else null; it must
  // outlive the call of End. UserError: the transforms do not fit the type.
  static absl::StatusOr<std::unique_ptr<TypedColumn>> Make(const config::FieldSpec& spec,
                                                           const Vocabulary* vocabulary);

  // Adds a value of the kind `reads()`. InvalidArgument without file, line and column: a transform
  // has no result for it, or the result is beyond float32.
  absl::Status Add(const Value& value);
  // Adds the field's default, or id 0 if it has a vocabulary. `found` is what the file has instead
  // of a value, for the message. InvalidArgument: the field has neither.
  absl::Status AddMissing(absl::string_view found);
  // Called after the last value: makes the vocabulary and gives every word its id.
  absl::Status End();

  const config::FieldSpec& spec() const { return spec_; }
  config::ValueKind reads() const { return reads_; }
  // The number of values of one example.
  std::size_t width() const;
  bool integers() const { return integers_; }
  // The values of all examples, `width` each; those of the other dtype are empty.
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
  const std::size_t learned_at_;  // of the transforms; their number if none is learned
  bool integers_ = false;
  std::vector<TransformStep> before_, after_;  // the learned transform
  std::vector<std::int64_t> ints_;
  std::vector<float> reals_;
  // While a vocabulary is built, each value is the number of its word; 0: missing.
  VocabularyBuilder builder_;
  std::vector<std::int64_t> numbers_;
  Vocabulary vocabulary_;
  const Vocabulary* given_ = nullptr;
};

}  // namespace evergrad::worker
