#include "worker/data/typed_dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {
namespace {

class TypedDataset final : public Dataset {
 public:
  TypedDataset(std::vector<std::unique_ptr<TypedColumn>> columns, std::uint64_t examples,
               std::string fingerprint, std::vector<std::string> warnings)
      : columns_(std::move(columns)),
        examples_(examples),
        fingerprint_(std::move(fingerprint)),
        warnings_(std::move(warnings)) {
    for (const auto& column : columns_) {
      Field& field = fields_.emplace_back();
      field.name = column->spec().name;
      field.dtype = column->integers() ? tensor::DType::kInt64 : tensor::DType::kFloat32;
      if (column->spec().list || column->spec().size > 0)
        field.shape = tensor::Shape{column->width()};
    }
  }

  std::uint64_t examples() const override { return examples_; }
  const std::vector<Field>& fields() const override { return fields_; }
  std::string Fingerprint() const override { return fingerprint_; }
  std::vector<std::string> Warnings() const override { return warnings_; }
  std::uint64_t bytes_held() const override {
    std::uint64_t bytes = 0;
    for (const auto& column : columns_) bytes += column->bytes();
    return bytes;
  }

  absl::Status Read(const std::vector<std::uint64_t>& indices,
                    const std::vector<std::span<std::byte>>& to) const override {
    EG_RETURN_IF_ERROR(CheckBatchBuffers(*this, indices.size(), to));
    for (const std::uint64_t index : indices) {
      if (index >= examples_)
        return absl::InvalidArgumentError(
            absl::StrCat("example out of range: examples=", examples_, " got=", index));
    }
    for (std::size_t f = 0; f < columns_.size(); ++f) {
      const TypedColumn& column = *columns_[f];
      if (column.integers())
        Gather(column.ints(), indices, column.width(),
               reinterpret_cast<std::int64_t*>(to[f].data()));
      else
        Gather(column.reals(), indices, column.width(), reinterpret_cast<float*>(to[f].data()));
    }
    return absl::OkStatus();
  }

  std::vector<FieldVocabulary> Vocabularies() const override {
    std::vector<FieldVocabulary> all;
    for (const auto& column : columns_) {
      if (!column->has_vocabulary()) continue;
      FieldVocabulary& one = all.emplace_back();
      one.field = column->spec().name;
      one.words.resize(column->vocabulary().size());
      for (const auto& [text, id] : column->vocabulary())
        one.words[static_cast<std::size_t>(id) - 1] = text;
    }
    return all;
  }

  // Returns nullptr for an unknown field. The vocabulary is empty if the field has none.
  const Vocabulary* FindVocabulary(const std::string& field) const {
    for (const auto& column : columns_) {
      if (column->spec().name == field) return &column->vocabulary();
    }
    return nullptr;
  }

 private:
  template <typename T>
  static void Gather(const std::vector<T>& from, const std::vector<std::uint64_t>& indices,
                     std::size_t width, T* to) {
    if (width == 1) {
      for (std::size_t i = 0; i < indices.size(); ++i) to[i] = from[indices[i]];
      return;
    }
    for (const std::uint64_t index : indices)
      to = std::copy_n(from.data() + index * width, width, to);
  }

  const std::vector<std::unique_ptr<TypedColumn>> columns_;
  const std::uint64_t examples_;
  const std::string fingerprint_;
  const std::vector<std::string> warnings_;
  std::vector<Field> fields_;
};

}  // namespace

TypedDatasetBuilder::TypedDatasetBuilder(const config::SourceSpec& source, std::string manner,
                                         std::uint64_t bytes_max)
    : source_(source), manner_(std::move(manner)), bytes_max_(bytes_max) {}

absl::StatusOr<TypedDatasetBuilder> TypedDatasetBuilder::Make(
    const config::SourceSpec& source, const std::vector<config::FieldSpec>& fields,
    const Dataset* train, std::string manner, const DataOptions& options) {
  // All sources of a job have one format, so the training data of a typed data set is typed, too.
  const auto* const trained = dynamic_cast<const TypedDataset*>(train);
  TypedDatasetBuilder builder(source, std::move(manner), options.bytes_max);
  for (const config::FieldSpec& field : fields) {
    EG_ASSIGN_OR_RETURN(
        auto column,
        TypedColumn::Make(field,
                          trained == nullptr ? nullptr : trained->FindVocabulary(field.name)));
    builder.columns_.push_back(std::move(column));
  }
  return builder;
}

absl::Status TypedDatasetBuilder::EndExample(std::uint64_t line) {
  std::uint64_t bytes = 0;
  for (const auto& column : columns_) bytes += column->bytes();
  if (bytes > bytes_max_)
    return UserError(absl::ResourceExhaustedError(
        absl::StrCat("data set too large: file=", source_.path, " line=", line, " bytes=", bytes,
                     " limit=", bytes_max_)));
  ++examples_;
  return absl::OkStatus();
}

absl::Status TypedDatasetBuilder::BadValue(std::uint64_t line, absl::string_view place,
                                           const config::FieldSpec& field,
                                           const absl::Status& status) const {
  return UserError(
      absl::InvalidArgumentError(absl::StrCat("bad value: ", source_.path, ":", line, ":", place,
                                              ": field `", field.name, "`: ", status.message())));
}

absl::StatusOr<std::unique_ptr<Dataset>> TypedDatasetBuilder::End(
    const DataFile& file, std::vector<std::string> warnings) {
  if (examples_ == 0)
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("data file without an example: file=", source_.path, " ", manner_)));
  for (const auto& column : columns_) {
    if (const absl::Status ended = column->End(); !ended.ok())
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("field `", column->spec().name, "`: ", ended.message())));
  }
  EG_ASSIGN_OR_RETURN(const std::string fingerprint, file.Fingerprint());
  return std::unique_ptr<Dataset>(
      new TypedDataset(std::move(columns_), examples_,
                       absl::StrCat("data: ", fingerprint, "\n", manner_), std::move(warnings)));
}

}  // namespace evergrad::worker
