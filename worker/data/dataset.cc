#include "worker/data/dataset.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data_formats/typed_field.h"
#include "worker/data/openers.h"

namespace evergrad::worker {

std::optional<std::size_t> Dataset::FindField(const std::string& name) const {
  for (std::size_t f = 0; f < fields().size(); ++f) {
    if (fields()[f].name == name) return f;
  }
  return std::nullopt;
}

bool NeedsTrain(const std::vector<config::FieldSpec>& fields) {
  return std::any_of(fields.begin(), fields.end(), [](const config::FieldSpec& field) {
    return config::LearnedTransform(field) < field.transforms.size();
  });
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const config::SourceSpec& source,
                                                     const std::vector<config::FieldSpec>& fields,
                                                     const Dataset* train,
                                                     const DataOptions& options) {
  for (const Opener& opener : kOpeners)
    if (opener.format == source.format) return opener.open(source, fields, train, options);
  return UserError(
      absl::InvalidArgumentError(absl::StrCat("unknown data format: got=", source.format)));
}

absl::Status CheckBatchBuffers(const Dataset& data, std::size_t n,
                               const std::vector<std::span<std::byte>>& to) {
  if (to.size() != data.fields().size())
    return absl::InvalidArgumentError(
        absl::StrCat("batch buffers mismatch: fields=", data.fields().size(), " got=", to.size()));
  for (std::size_t f = 0; f < to.size(); ++f) {
    if (to[f].size() != n * data.fields()[f].example_bytes())
      return absl::InvalidArgumentError(
          absl::StrCat("batch buffer size mismatch: field=", data.fields()[f].name,
                       " want=", n * data.fields()[f].example_bytes(), " got=", to[f].size()));
  }
  return absl::OkStatus();
}

}  // namespace evergrad::worker
