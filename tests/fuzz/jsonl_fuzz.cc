// The input is one byte of settings, then the bytes of a jsonl file, gzip or plain.
//
// Property: a data set of the lines fits its memory limit, and each of its examples can be read.
// Opening the file again gives the same fingerprint.
#include "tests/fuzz/dataset_check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/typed_fields.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace evergrad;
  fuzz::Input input(data, size);
  auto fields = fuzz::TypedFields(input.Number());
  for (config::FieldSpec& field : fields) field.columns = {field.name};
  const fuzz::MemoryFile file(input.Rest());
  config::SourceSpec source;
  source.format = "jsonl";
  source.path = file.path();
  const auto open = [&] {
    return worker::OpenDataset(source, fields, nullptr, {.bytes_max = fuzz::kDataBytesMax});
  };
  const auto opened = open();
  if (!opened.ok()) return 0;
  fuzz::CheckDataset(**opened);
  const auto again = open();
  EG_CHECK(again.ok());
  EG_CHECK((*again)->Fingerprint() == (*opened)->Fingerprint());
  return 0;
}
