// Tests which device a worker chooses and how it reports its choice. In the cases, the library is
// absent, is wrong, has no device, or is the real library.
#include "worker/backend/cuda/device_choice.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/support/paths.h"
#include "worker/backend/cuda/library.h"

namespace evergrad::worker {
namespace {

std::string Fake(const std::string& name) {
  return absl::StrCat(test::BinDir(), "/cuda_fakes/libworker_cuda_fake_", name, ".so");
}

TEST_CASE("a device has one name") {
  for (const char* good : {"auto", "cpu", "gpu", "gpu:0", "gpu:17"}) CHECK(ParseDevice(good).ok());
  CHECK(ParseDevice("gpu:17")->ordinal == 17);
  for (const char* bad : {"", "GPU", "gpu:", "gpu:-1", "gpu:+1", "gpu: 1", "gpu:01", "gpu:256",
                          "gpu:1x", "cuda", "cpu:0"}) {
    INFO(bad);
    const auto refused = ParseDevice(bad);
    CHECK(refused.status().message() ==
          absl::StrCat("unknown device: want=auto, cpu, gpu or gpu:N got=", bad));
    CHECK(BlameOf(refused.status()) == Blame::kUser);
  }
}

TEST_CASE(
    "without a usable library auto selects the CPU with the reason, and gpu is refused with the "
    "reason") {
  struct Case {
    std::string library, reason;
  };
  const std::string version =
      absl::StrCat(Fake("other_version"), " is of another version: want=", EG_CUDA_ABI_VERSION);
  for (const Case& c :
       {Case{"/nowhere/lib.so", "/nowhere/lib.so does not exist"},
        Case{Fake("other_version"), version},
        Case{Fake("other_size"), absl::StrCat(Fake("other_size"), " is of another version")},
        Case{Fake("no_entry"),
             absl::StrCat(Fake("no_entry"),
                          " is not a library of Evergrad: it lacks evergrad_cuda_api")},
        Case{Fake("no_device"), "no device (100)"},
        Case{"/etc/passwd", "/etc/passwd cannot be loaded: "}}) {
    INFO(c.library);
    const auto fallen = ChooseDevice("auto", c.library);
    REQUIRE(fallen.ok());
    CHECK_FALSE(fallen->gpu());
    CHECK(fallen->name == "cpu");
    CHECK(absl::StartsWith(fallen->text, absl::StrCat("cpu: ", c.reason)));
    const auto refused = ChooseDevice("gpu:1", c.library);
    CHECK(BlameOf(refused.status()) == Blame::kUser);
    CHECK(absl::StartsWith(refused.status().message(),
                           absl::StrCat("device gpu:1 is not usable: ", c.reason)));
    CHECK_FALSE(ListDevices(c.library).ok());
    CHECK(ChooseDevice("cpu", c.library)->text == "cpu: as requested");
  }
}

TEST_CASE("a GPU is named with its properties, and an absent GPU is refused") {
  const std::string library = Fake("two_devices");
  const std::string text = "gpu:1 Made up 1, sm_90, 132 SMs, 80.0 GiB (CUDA 0.0, made up)";
  CHECK(ChooseDevice("gpu:1", library)->text == text);
  CHECK(ChooseDevice("gpu", library)->name == "gpu:0");
  CHECK(ChooseDevice("auto", library)->name == "gpu:0");
  CHECK(ChooseDevice("gpu:2", library).status().message() ==
        "device gpu:2 is not usable: this host has 2 GPUs");
  CHECK(*ListDevices(library) ==
        "gpu:0 Made up 0, sm_90, 132 SMs, 80.0 GiB\ngpu:1 Made up 1, sm_90, 132 SMs, 80.0 GiB\n");
}

// cudart returns error 35 if there is no driver or one that is too old, and error 100 if there is
// no device. Both mean "no GPU".
TEST_CASE("the real library loads, has this version, and reports the devices") {
  const std::string path = absl::StrCat(test::BinDir(), "/libevergrad_cuda.so");
  if (!std::filesystem::exists(path)) {
    printf("\nskipped: built without CUDA\n");
    return;
  }
  // The library must be found by its name alone in the folder of the executable. This call must
  // come before the library is loaded by its path, because the linker would then find it by name in
  // any case.
  const auto beside = ChooseDevice("auto", "");
  const auto api = LoadCudaLibrary(path);
  REQUIRE(api.ok());
  CHECK(absl::StartsWith((*api)->build(), "CUDA 1"));
  const auto choice = ChooseDevice("auto", path);
  REQUIRE(choice.ok());
  if (choice->gpu()) {
    CHECK(absl::StartsWith(choice->text, "gpu:0 "));
  } else {
    CHECK((choice->text == "cpu: no CUDA driver (cudart 35)" ||
           choice->text == "cpu: no device (100)"));
    CHECK(absl::StartsWith(ChooseDevice("gpu", path).status().message(),
                           "device gpu is not usable: no "));
  }
  CHECK(beside->text == choice->text);
}

}  // namespace
}  // namespace evergrad::worker
