// The input is one byte that says whether the target corrects the checksums, then the bytes of a
// manifest.
//
// Property: if an accepted manifest is written again, reading it gives the same message.
#include "common/base/check.h"
#include "common/snapshot/manifest.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet.h"
#include "tests/fuzz/snapshot_seal.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace evergrad;
  fuzz::Input input(data, size);
  const bool seal = input.Choice(2) == 1;
  std::string file(input.Rest());
  if (seal) fuzz::SealManifest(file);
  const auto manifest = snapshot::DecodeManifest(file, "file:///manifest");
  if (!manifest.ok()) return 0;
  const auto encoded = snapshot::EncodeManifest(*manifest);
  EG_CHECK_MSG(encoded.ok(), std::string(encoded.status().message()));
  const auto again = snapshot::DecodeManifest(*encoded, "file:///manifest");
  EG_CHECK_MSG(again.ok(), std::string(again.status().message()));
  EG_CHECK(again->SerializeAsString() == manifest->SerializeAsString());
  return 0;
}
