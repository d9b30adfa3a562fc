// The input is the length of an image file, the image file, and a label file, each gzip or plain.
// Property: an opened data set fits its memory limit, and each of its examples can be read.
#include "tests/fuzz/dataset_check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace evergrad;
  fuzz::Input input(data, size);
  const fuzz::MemoryFile images(input.Piece()), labels(input.Rest());
  config::SourceSpec source;
  source.images = images.path();
  source.labels = labels.path();
  source.format = "idx";
  const auto opened = worker::OpenDataset(source, {}, nullptr, {.bytes_max = fuzz::kDataBytesMax});
  if (opened.ok()) fuzz::CheckDataset(**opened);
  return 0;
}
