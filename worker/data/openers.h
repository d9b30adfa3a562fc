// The functions that open the data formats, and their table for OpenDataset. The descriptor of a
// format in common/data_formats lists the keys of the format in a job file.
//
// Each function opens `source` and returns a data set with the fields `fields`. `train` is null for
// the training data. For other data, `train` is the training data of the same job, and its
// vocabularies are used. Errors are user errors and name the file: PermissionDenied for a file
// outside of the roots, and ResourceExhausted if the data set needs more than `options.bytes_max`.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"

namespace evergrad::worker {

// Opens images and labels in IDX files of unsigned bytes, gzip or plain. The images and labels stay
// in memory as bytes. The fields are image and label, in this order. Errors name the offset in the
// decompressed bytes and the expected content. A header that claims more than `bytes_max`, or more
// than the file can hold, is refused before any allocation.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const config::SourceSpec& source,
                                                 const std::vector<config::FieldSpec>& fields,
                                                 const Dataset* train = nullptr,
                                                 const DataOptions& options = {});
// Opens a csv file, gzip or plain, with typed columns: one field for each of `fields`, in their
// order. Errors name file:line and column, the expected kind and the first kQuotedMax characters of
// the value.
absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const config::SourceSpec& source,
                                                 const std::vector<config::FieldSpec>& fields,
                                                 const Dataset* train = nullptr,
                                                 const DataOptions& options = {});
// Opens a jsonl file, gzip or plain. The file has one JSON object per line, at most 1 MiB long and
// 64 levels deep. The members of the objects become typed columns. Errors name file:line and
// member.
absl::StatusOr<std::unique_ptr<Dataset>> OpenJsonl(const config::SourceSpec& source,
                                                   const std::vector<config::FieldSpec>& fields,
                                                   const Dataset* train = nullptr,
                                                   const DataOptions& options = {});
// Generates examples from (source.seed, fields) while they are read. The examples are the same on
// every machine.
absl::StatusOr<std::unique_ptr<Dataset>> OpenSynthetic(const config::SourceSpec& source,
                                                       const std::vector<config::FieldSpec>& fields,
                                                       const Dataset* train = nullptr,
                                                       const DataOptions& options = {});

struct Opener {
  absl::string_view format;
  decltype(&OpenIdx) open;
};
inline constexpr Opener kOpeners[] = {
    {"idx", &OpenIdx}, {"csv", &OpenCsv}, {"jsonl", &OpenJsonl}, {"synthetic", &OpenSynthetic}};

}  // namespace evergrad::worker
