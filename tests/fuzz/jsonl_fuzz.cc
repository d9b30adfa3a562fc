// The input is one byte of settings, then the bytes of a jsonl file, gzip or plain.
//
// Property: a data set of the lines fits its memory limit, and each of its examples can be read.
// Opening the file again gives the same fingerprint.
#include "tests/fuzz/dataset_check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_file.h"

namespace evergrad::worker {
namespace {

std::vector<config::FieldSpec> Fields(std::uint8_t bits) {
  std::vector<config::FieldSpec> fields;
  const char* const types[] = {"int", "float", "string"};
  for (std::uint32_t i = 0; i < 3; ++i) {
    config::FieldSpec& field = fields.emplace_back();
    field.name = std::string(1, static_cast<char>('a' + i));
    field.columns = {field.name};
    field.type = types[(bits >> (2 * i) & 3) % 3];
    if (bits & 0x80) field.default_text = "0";
    if (field.type == "string") {
      config::Transform& transform = field.transforms.emplace_back();
      transform.type = bits & 0x40 ? "vocabulary" : "hash";
      transform.buckets = 100;
    }
  }
  return fields;
}

}  // namespace
}  // namespace evergrad::worker

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace evergrad;
  fuzz::Input input(data, size);
  const auto fields = worker::Fields(input.Number());
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
