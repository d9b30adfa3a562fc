#include "worker/runner/export_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "common/base/status.h"
#include "tests/support/temp_folder.h"

namespace evergrad::worker {
namespace {

TEST_CASE("a runs folder that the worker may not write is a user's error that says what is needed") {
  const test::TempFolder temporary;
  const std::string& folder = temporary.path();
  REQUIRE(::chmod(folder.c_str(), 0555) == 0);
  const bool root = ::geteuid() == 0;  // Root may write anywhere: be nobody for the attempt.
  if (root) REQUIRE(::seteuid(65534) == 0);
  const auto here = WriteWeights(folder, {});
  const auto below = WriteWeights(folder + "/job", {});
  if (root) REQUIRE(::seteuid(0) == 0);
  for (const auto& result : {here, below}) {
    REQUIRE(result.status().code() == absl::StatusCode::kPermissionDenied);
    CHECK(BlameOf(result.status()) == Blame::kUser);
    CHECK(std::string(result.status().message()).find("--runs") != std::string::npos);
    CHECK(std::string(result.status().message()).find(folder) != std::string::npos);
  }
}

}  // namespace
}  // namespace evergrad::worker
