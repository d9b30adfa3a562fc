// Reads records of comma-separated text as in RFC 4180, from gzip or plain files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/data_file.h"

namespace evergrad::worker {

inline constexpr std::size_t kRecordBytesMax = 1u << 20;
inline constexpr std::size_t kRecordColumnsMax = 65536;

// A field that begins with a quote (") ends at the next quote that is not doubled. A doubled quote
// inside the field represents one quote. Separators and line ends between quotes are text. Lines
// end with LF or CRLF. Empty lines and a byte order mark are skipped. Not thread-safe.
class CsvRecords {
 public:
  // `separator` has at least one byte and contains no quote or line end. Without `quoting` a quote
  // is an ordinary character.
  static absl::StatusOr<std::unique_ptr<CsvRecords>> Open(const std::string& path,
                                                          std::string separator, bool quoting,
                                                          const DataOptions& options = {});
  ~CsvRecords();

  // Reads the next record; returns false at the end of the file. The views are valid until the next
  // call. User errors name file and line. The errors report a missing closing quote, text after a
  // closing quote, a quote inside a field, a record beyond the limits, or a damaged file.
  absl::StatusOr<bool> Next(std::vector<absl::string_view>* fields);
  const DataFile& file() const { return *file_; }
  std::uint64_t line() const { return record_line_; }  // the first line of the last record, from 1

 private:
  CsvRecords(std::string separator, bool quoting, std::unique_ptr<DataFile> file);
  absl::Status Bad(std::uint64_t line, absl::string_view text) const;
  absl::Status Fill();
  enum class Parsed { kRecord, kEmpty, kMore };
  absl::StatusOr<Parsed> Parse(std::vector<absl::string_view>* fields);
  bool SeparatorAt(std::size_t at) const;
  // Returns the position of the quote that closes a field, or npos if the buffer has no such quote
  // before position `safe`. Sets *doubled if the field contains a doubled quote.
  std::size_t ClosingQuoteFrom(std::size_t at, std::size_t safe, bool* doubled) const;
  // Stores the field in unquoted_[index], with one quote in place of two.
  void Unquote(absl::string_view field, std::size_t index);
  // Returns the length of a line end at `at`, or 0 if there is none.
  std::size_t LineEndAt(std::size_t at) const;

  const std::string separator_;
  const bool quoting_;
  const std::unique_ptr<DataFile> file_;
  std::string buffer_;
  std::size_t begin_ = 0;  // begin of the unparsed bytes
  bool end_ = false;       // the buffer holds the rest of the file
  std::uint64_t line_ = 1, record_line_ = 1;
  std::vector<std::string> unquoted_;  // fields that are not contiguous in the buffer; reused
};

}  // namespace evergrad::worker
