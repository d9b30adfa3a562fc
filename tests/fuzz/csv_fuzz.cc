// The input is two bytes of settings, then the bytes of a csv file, gzip or plain.
//
// Property: if all fields of the records are quoted and written to a file, reading the file gives
// the same records. A data set of the records fits its memory limit, and each of its examples can
// be read.
#include "absl/strings/str_replace.h"
#include "tests/fuzz/dataset_check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/typed_fields.h"
#include "worker/data/csv_records.h"

namespace evergrad::worker {
namespace {

using Records = std::vector<std::vector<std::string>>;

absl::StatusOr<Records> ReadRecords(const std::string& path, const std::string& separator,
                                    bool quoting) {
  auto file = CsvRecords::Open(path, separator, quoting);
  if (!file.ok()) return file.status();
  Records records;
  std::vector<absl::string_view> fields;
  while (true) {
    const auto more = (*file)->Next(&fields);
    if (!more.ok()) return more.status();
    if (!*more) return records;
    records.emplace_back(fields.begin(), fields.end());
  }
}

void CheckRecords(const std::string& path, const std::string& separator, bool quoting) {
  const auto records = ReadRecords(path, separator, quoting);
  if (!records.ok()) return;
  std::string written;
  for (const std::vector<std::string>& record : *records) {
    EG_CHECK(!record.empty());
    for (std::size_t i = 0; i < record.size(); ++i) {
      if (i > 0) written += separator;
      written += '"';
      written += absl::StrReplaceAll(record[i], {{"\"", "\"\""}});
      written += '"';
    }
    written += '\n';
  }
  const fuzz::MemoryFile file(written);
  const auto again = ReadRecords(file.path(), separator, true);
  // Because of the quotes, a record may exceed the limit of its bytes, and reading then fails.
  if (again.ok()) EG_CHECK(*again == *records);
}

}  // namespace
}  // namespace evergrad::worker

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace evergrad;
  fuzz::Input input(data, size);
  const std::uint8_t settings = input.Number();
  auto fields = fuzz::TypedFields(input.Number());
  for (std::size_t i = 0; i < fields.size(); ++i) fields[i].columns = {std::to_string(i)};
  const fuzz::MemoryFile file(input.Rest());
  const char* const separators[] = {",", "\t", "::", ";"};
  config::SourceSpec source;
  source.format = "csv";
  source.path = file.path();
  source.separator = separators[settings & 3];
  source.quoting = (settings & 4) == 0;
  source.header = (settings & 8) != 0;
  worker::CheckRecords(source.path, source.separator, source.quoting);
  const auto opened =
      worker::OpenDataset(source, fields, nullptr, {.bytes_max = fuzz::kDataBytesMax});
  if (opened.ok()) fuzz::CheckDataset(**opened);
  return 0;
}
