// A data set with typed columns, stored in memory by column: 8 bytes per integer, 4 per real
// number. Formats whose records have typed values (csv, jsonl) build such a data set with
// TypedDatasetBuilder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/data_file.h"
#include "worker/data/dataset.h"
#include "worker/data/typed_column.h"

namespace evergrad::worker {

// Reads the examples of one file in order:
//
//   Make -> for each example that Takes(n) accepts: columns()[f]->Add …, EndExample -> End
//
// Errors are user errors and name the file. Not thread-safe.
class TypedDatasetBuilder {
 public:
  // Adds a column for each entry of `fields`, in their order. `train` is the training data of the
  // same job, and its vocabularies are used; with nullptr, vocabularies are built from this file.
  // `manner` becomes a part of the fingerprint. It has the settings with which the file is read and
  // which the job's plan does not contain.
  static absl::StatusOr<TypedDatasetBuilder> Make(const config::SourceSpec& source,
                                                  const std::vector<config::FieldSpec>& fields,
                                                  const Dataset* train, std::string manner,
                                                  const DataOptions& options);

  const std::vector<std::unique_ptr<TypedColumn>>& columns() const { return columns_; }
  // Returns whether the source contains example n of the file (SourceSpec::split).
  bool Takes(std::uint64_t n) const { return source_.split.Takes(n); }
  // Counts an example whose values have been added. Returns ResourceExhausted if the data set is
  // too large. `line` is the example's first line.
  absl::Status EndExample(std::uint64_t line);
  // Returns the error `status` about a value of `field` at file:line:place. `place` is the column
  // or member, escaped and shortened by the caller.
  absl::Status BadValue(std::uint64_t line, absl::string_view place, const config::FieldSpec& field,
                        const absl::Status& status) const;
  // Makes the data set after the last example. `file` is the file that was read.
  absl::StatusOr<std::unique_ptr<Dataset>> End(const DataFile& file,
                                               std::vector<std::string> warnings);

 private:
  TypedDatasetBuilder(const config::SourceSpec& source, std::string manner,
                      std::uint64_t bytes_max);

  config::SourceSpec source_;
  std::string manner_;
  std::uint64_t bytes_max_;
  std::vector<std::unique_ptr<TypedColumn>> columns_;
  std::uint64_t examples_ = 0;
};

}  // namespace evergrad::worker
