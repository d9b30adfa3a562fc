#include "coordinator/service/write_trouble.h"

#include <catch2/catch.hpp>

namespace evergrad::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("a full disk is logged once and then counted once a minute, and so is its end") {
  WriteTrouble trouble;
  const absl::Status full = absl::ResourceExhaustedError("no space left on device");
  std::size_t lines = 0;
  for (int i = 0; i < 167; ++i)
    lines += !trouble.After("runs/a/metrics.jsonl", full, milliseconds(66 * i)).empty();
  CHECK(lines == 1);
  CHECK(trouble.After("runs/a/metrics.jsonl", full, seconds(59)).empty());
  CHECK(trouble.After("runs/a/metrics.jsonl", full, seconds(60)) ==
        "no space left on device failed_writes=169");
  CHECK(trouble.After("runs/b/metrics.jsonl", full, seconds(60)) == "no space left on device");
  CHECK(trouble.After("runs/a/metrics.jsonl", absl::OkStatus(), seconds(61)) ==
        "the file can be written again: path=runs/a/metrics.jsonl failed_writes=169");
  CHECK(trouble.After("runs/a/metrics.jsonl", absl::OkStatus(), seconds(62)).empty());
  CHECK(trouble.After("runs/a/metrics.jsonl", full, seconds(63)) == "no space left on device");
}

}  // namespace
}  // namespace evergrad::coordinator
