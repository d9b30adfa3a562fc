// Reads csv files: finds the position of each field in a record, and adds the values of all records
// to typed columns.
#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/escape.h"
#include "common/base/nearest_name.h"
#include "common/base/status.h"
#include "worker/data/csv_records.h"
#include "worker/data/file_error.h"
#include "worker/data/openers.h"
#include "worker/data/typed_dataset.h"

namespace evergrad::worker {
namespace {

using config::ValueKind;
using Record = std::vector<absl::string_view>;

// Returns the number that identifies a column, or nullopt if the column is given by name.
std::optional<std::uint64_t> NumberOf(const std::string& column) {
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(column.data(), column.data() + column.size(), number);
  return error == std::errc() && stop == column.data() + column.size() ? std::optional(number)
                                                                       : std::nullopt;
}

// Returns the settings with which the file is read, as a text for the data fingerprint. A job's
// plan does not contain these settings.
std::string Manner(const config::SourceSpec& source) {
  return absl::StrCat("read: header=", source.header ? 1 : 0, " quoting=", source.quoting ? 1 : 0,
                      " separator=`", source.separator, "` missing=`",
                      absl::StrJoin(source.missing, "`,`"), "` split=", source.split.modulo, "/",
                      source.split.equals, source.split.taken ? " taken" : "");
}

// Adds a hint to the error if the text is a number with spaces around it.
absl::Status WithHint(const absl::Status& status, ValueKind kind, absl::string_view text) {
  const absl::string_view bare = absl::StripAsciiWhitespace(text);
  if (bare.size() == text.size() || !ParseValue(kind, bare).ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(
      status.message(),
      "; spaces around a value are part of the value: `separator: \", \"` removes them"));
}

class CsvReader {
 public:
  CsvReader(const config::SourceSpec& source, std::unique_ptr<CsvRecords> records,
            TypedDatasetBuilder builder)
      : source_(source), records_(std::move(records)), builder_(std::move(builder)) {}

  absl::StatusOr<std::unique_ptr<Dataset>> Read() {
    EG_ASSIGN_OR_RETURN(bool more, records_->Next(&record_));
    if (!more)
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("data file without a record: file=", source_.path)));
    width_ = record_.size();
    if (source_.header)
      for (const absl::string_view name : record_) names_.emplace_back(name);
    EG_RETURN_IF_ERROR(FindPositions());
    std::vector<std::string> warnings;
    if (source_.header) {
      if (std::string looks = HeaderLooksLikeData(); !looks.empty())
        warnings.push_back(std::move(looks));
      EG_ASSIGN_OR_RETURN(more, records_->Next(&record_));
    }
    for (std::uint64_t row = 0; more; ++row) {
      EG_RETURN_IF_ERROR(AddRecord(row));
      EG_ASSIGN_OR_RETURN(more, records_->Next(&record_));
    }
    return builder_.End(records_->file(), std::move(warnings));
  }

 private:
  absl::Status Bad(absl::string_view text) const {
    return BadRecord(source_.path, records_->line(), text);
  }

  absl::Status FindPositions() {
    for (const auto& column : builder_.columns()) {
      std::vector<std::size_t>& positions = positions_.emplace_back();
      for (const std::string& name : column->spec().columns) {
        EG_ASSIGN_OR_RETURN(const std::size_t position, FindPosition(name, column->spec().name));
        positions.push_back(position);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::size_t> FindPosition(const std::string& column,
                                           const std::string& field) const {
    if (const auto number = NumberOf(column)) {
      if (*number < width_) return *number;
      return Bad(absl::StrCat("field `", field, "` reads column ", *number,
                              ", but the file has only columns 0 to ", width_ - 1));
    }
    if (!source_.header) {
      return UserError(absl::InvalidArgumentError(absl::StrCat(
          "field `", field, "` names the column `", column,
          "`, but `header: false` means that the file has no column names: file=", source_.path,
          " (give the column's number, from 0, or write `header: true`)")));
    }
    const auto found = std::find(names_.begin(), names_.end(), column);
    if (found == names_.end()) {
      const std::string nearest = NearestName(column, names_);
      return Bad(absl::StrCat(
          "field `", field, "`: the header has no column `", column, "`",
          nearest.empty() ? ""
                          : absl::StrCat("; did you mean `", Quoted(nearest, kQuotedMax), "`?")));
    }
    if (std::find(found + 1, names_.end(), column) != names_.end())
      return Bad(absl::StrCat("duplicate column name `", column, "`"));
    return static_cast<std::size_t>(found - names_.begin());
  }

  // Returns a warning if the header looks like an example, which would be lost; otherwise "". Only
  // columns that are given by number are examined. The first record is certainly a header if a
  // column was found by its name, or if the texts are the numbers of the columns.
  std::string HeaderLooksLikeData() const {
    std::string first;
    bool counts = true;
    for (std::size_t f = 0; f < positions_.size(); ++f) {
      const TypedColumn& column = *builder_.columns()[f];
      for (std::size_t i = 0; i < positions_[f].size(); ++i) {
        const std::size_t at = positions_[f][i];
        if (!NumberOf(column.spec().columns[i])) return "";
        if (column.reads() == ValueKind::kText) continue;
        if (!ParseValue(column.reads(), names_[at]).ok()) return "";
        counts = counts && (names_[at] == absl::StrCat(at) || names_[at] == absl::StrCat(at + 1));
        if (first.empty())
          first = absl::StrCat("column ", at, " is `", Quoted(names_[at], kQuotedMax), "`");
      }
    }
    if (first.empty() || counts) return "";
    return absl::StrCat(
        "the first record of a csv file looks like an example, and `header: true` skips it: file=",
        source_.path, " (", first, "; write `header: false` if the file has no header)");
  }

  // `row` counts the records of the file from 0, without the header.
  absl::Status AddRecord(std::uint64_t row) {
    if (record_.size() != width_)
      return Bad(absl::StrCat("expected ", width_, " columns as in the first record, got ",
                              record_.size()));
    if (!builder_.Takes(row)) return absl::OkStatus();
    for (std::size_t f = 0; f < positions_.size(); ++f) {
      TypedColumn& column = *builder_.columns()[f];
      for (const std::size_t at : positions_[f]) {
        const absl::Status added = AddText(column, record_[at]);
        if (!added.ok())
          return builder_.BadValue(
              records_->line(), names_.empty() ? absl::StrCat(at) : Quoted(names_[at], kQuotedMax),
              column.spec(), added);
      }
    }
    return builder_.EndExample(records_->line());
  }

  absl::Status AddText(TypedColumn& column, absl::string_view text) const {
    if (std::find(source_.missing.begin(), source_.missing.end(), text) != source_.missing.end())
      return column.AddMissing(absl::StrCat("`", Quoted(text, kQuotedMax), "`"));
    const auto value = ParseValue(column.reads(), text);
    return value.ok() ? column.Add(*value) : WithHint(value.status(), column.reads(), text);
  }

  const config::SourceSpec& source_;
  const std::unique_ptr<CsvRecords> records_;
  TypedDatasetBuilder builder_;
  Record record_;
  std::size_t width_ = 0;                            // number of columns of each record
  std::vector<std::string> names_;                   // from the header; empty without a header
  std::vector<std::vector<std::size_t>> positions_;  // positions in a record, by field
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const config::SourceSpec& source,
                                                 const std::vector<config::FieldSpec>& fields,
                                                 const Dataset* train, const DataOptions& options) {
  EG_ASSIGN_OR_RETURN(TypedDatasetBuilder builder,
                      TypedDatasetBuilder::Make(source, fields, train, Manner(source), options));
  EG_ASSIGN_OR_RETURN(std::unique_ptr<CsvRecords> records,
                      CsvRecords::Open(source.path, source.separator, source.quoting, options));
  return CsvReader(source, std::move(records), std::move(builder)).Read();
}

}  // namespace evergrad::worker
