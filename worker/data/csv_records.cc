#include "worker/data/csv_records.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/data/file_error.h"

namespace evergrad::worker {
CsvRecords::CsvRecords(std::string separator, bool quoting, std::unique_ptr<DataFile> file)
    : separator_(std::move(separator)), quoting_(quoting), file_(std::move(file)) {}
CsvRecords::~CsvRecords() = default;

absl::StatusOr<std::unique_ptr<CsvRecords>> CsvRecords::Open(const std::string& path,
                                                             std::string separator, bool quoting,
                                                             const DataOptions& options) {
  EG_ASSIGN_OR_RETURN(std::unique_ptr<DataFile> file, DataFile::Open(path, options, "a csv file"));
  std::unique_ptr<CsvRecords> records(
      new CsvRecords(std::move(separator), quoting, std::move(file)));
  EG_RETURN_IF_ERROR(records->Fill());
  if (absl::StartsWith(records->buffer_, "\xef\xbb\xbf")) records->begin_ = 3;
  return records;
}

absl::Status CsvRecords::Bad(std::uint64_t line, absl::string_view text) const {
  return BadRecord(file_->path(), line, text);
}

absl::Status CsvRecords::Fill() {
  EG_ASSIGN_OR_RETURN(end_, file_->Refill(begin_, &buffer_));
  begin_ = 0;
  return absl::OkStatus();
}

bool CsvRecords::SeparatorAt(std::size_t at) const {
  return buffer_[at] == separator_[0] &&
         (separator_.size() == 1 || buffer_.compare(at, separator_.size(), separator_) == 0);
}

std::size_t CsvRecords::LineEndAt(std::size_t at) const {
  if (buffer_[at] == '\n') return 1;
  return buffer_[at] == '\r' && at + 1 < buffer_.size() && buffer_[at + 1] == '\n' ? 2 : 0;
}

std::size_t CsvRecords::ClosingQuoteFrom(std::size_t at, std::size_t safe, bool* doubled) const {
  while (true) {
    at = buffer_.find('"', at);
    if (at == std::string::npos || at + 1 > safe) return std::string::npos;
    if (at + 1 == buffer_.size() || buffer_[at + 1] != '"') return at;
    *doubled = true;
    at += 2;
  }
}

void CsvRecords::Unquote(absl::string_view field, std::size_t index) {
  if (index == unquoted_.size()) unquoted_.emplace_back();
  std::string& text = unquoted_[index];
  text.clear();
  for (std::size_t i = 0; i < field.size(); ++i) {
    text.push_back(field[i]);
    if (field[i] == '"') ++i;
  }
}

// Parses the buffer from `begin_` on. Returns kMore if the end of the record is not in the buffer.
absl::StatusOr<CsvRecords::Parsed> CsvRecords::Parse(std::vector<absl::string_view>* fields) {
  fields->clear();
  std::size_t at = begin_, used = 0;
  std::uint64_t lines = 0;
  // Near the end of the buffer a separator or a line end may be incomplete.
  const std::size_t safe =
      end_ ? buffer_.size() : buffer_.size() - std::min(buffer_.size(), separator_.size() + 1);
  if (const std::size_t line_end = at < buffer_.size() ? LineEndAt(at) : 0; line_end > 0) {
    begin_ += line_end;
    ++line_;
    return Parsed::kEmpty;
  }
  while (true) {
    if (fields->size() == kRecordColumnsMax)
      return Bad(line_, absl::StrCat("the record has more columns than ", kRecordColumnsMax));
    absl::string_view field;
    if (quoting_ && at < safe && buffer_[at] == '"') {
      const std::size_t begin = ++at;
      bool doubled = false;
      at = ClosingQuoteFrom(at, safe, &doubled);
      if (at == std::string::npos)
        return end_ ? absl::StatusOr<Parsed>(Bad(line_, "a closing quote is missing"))
                    : Parsed::kMore;
      field = absl::string_view(buffer_).substr(begin, at - begin);
      lines += static_cast<std::uint64_t>(std::count(field.begin(), field.end(), '\n'));
      if (doubled) Unquote(field, used++);
      ++at;  // now behind the closing quote
      if (at >= safe && !end_) return Parsed::kMore;
      if (at < buffer_.size() && !SeparatorAt(at) && LineEndAt(at) == 0 &&
          !(buffer_[at] == '\r' && at + 1 == buffer_.size()))
        return Bad(line_ + lines,
                   absl::StrCat("text after the closing quote of column ", fields->size()));
      // The texts in `unquoted_` are assigned below, because the vector may still grow.
      fields->push_back(doubled ? absl::string_view() : field);
      // Until then, the length of the view holds the index in `unquoted_`, from 1.
      if (doubled) fields->back() = absl::string_view(nullptr, used);
    } else {
      const std::size_t begin = at;
      while (at < safe && !SeparatorAt(at) && LineEndAt(at) == 0) {
        if (quoting_ && buffer_[at] == '"')
          return Bad(line_ + lines,
                     absl::StrCat("a quote inside column ", fields->size(),
                                  "; `quoting: false` treats quotes as ordinary characters"));
        ++at;
      }
      if (at >= safe && !end_) return Parsed::kMore;
      field = absl::string_view(buffer_).substr(begin, at - begin);
      if (at == buffer_.size() && !field.empty() && field.back() == '\r') field.remove_suffix(1);
      fields->push_back(field);
    }
    if (at < buffer_.size() && buffer_[at] == '\r' && at + 1 == buffer_.size()) ++at;
    if (at == buffer_.size()) break;
    if (const std::size_t line_end = LineEndAt(at); line_end > 0) {
      at += line_end;
      ++lines;
      break;
    }
    at += separator_.size();
    if (at > safe && !end_) return Parsed::kMore;
  }
  if (at - begin_ > kRecordBytesMax)
    return Bad(line_, absl::StrCat("the record is longer than ", kRecordBytesMax, " bytes"));
  for (absl::string_view& field : *fields) {
    if (field.data() == nullptr && !field.empty()) field = unquoted_[field.size() - 1];
  }
  record_line_ = line_;
  line_ += lines;
  begin_ = at;
  return Parsed::kRecord;
}

absl::StatusOr<bool> CsvRecords::Next(std::vector<absl::string_view>* fields) {
  while (true) {
    if (begin_ == buffer_.size()) {
      if (end_) return false;
      EG_RETURN_IF_ERROR(Fill());
      continue;
    }
    EG_ASSIGN_OR_RETURN(const Parsed parsed, Parse(fields));
    if (parsed == Parsed::kRecord) return true;
    if (parsed == Parsed::kEmpty) continue;
    if (buffer_.size() - begin_ > kRecordBytesMax)
      return Bad(line_, absl::StrCat("the record is longer than ", kRecordBytesMax,
                                     " bytes, or a closing quote is missing"));
    EG_RETURN_IF_ERROR(Fill());
  }
}

}  // namespace evergrad::worker
