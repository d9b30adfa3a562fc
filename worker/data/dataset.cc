#include "worker/data/dataset.h"

#include "absl/strings/str_cat.h"

namespace evergrad::worker {

std::optional<std::size_t> Dataset::FindField(const std::string& name) const {
  for (std::size_t f = 0; f < fields().size(); ++f) {
    if (fields()[f].name == name) return f;
  }
  return std::nullopt;
}

bool NeedsTrain(const std::vector<config::FieldSpec>& fields) {
  for (const config::FieldSpec& field : fields) {
    for (const config::Transform& transform : field.transforms) {
      if (transform.type == "vocabulary") return true;
    }
  }
  return false;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const config::SourceSpec& source,
                                                     const std::vector<config::FieldSpec>& fields,
                                                     const Dataset* train,
                                                     const DataOptions& options) {
  if (source.format == "csv") return OpenCsv(source, fields, train, options);
  if (source.format == "synthetic") return OpenSynthetic(source, fields, options.bytes_max);
  return OpenIdx(source, fields, options);
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
