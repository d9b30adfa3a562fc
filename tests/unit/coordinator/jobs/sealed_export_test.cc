// The export of a failed job's weights, without a job.
#include "coordinator/jobs/sealed_export.h"

#include <catch2/catch.hpp>

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

struct Fixture {
  explicit Fixture(std::uint64_t bytes = 0) {
    options.seal_timeout = seconds(5);
    reading.Begin(1, MonoTime{0});
    exporting.Begin(now, kVersion, bytes);
  }
  SealedExport::Action Next(const std::vector<TaskId>& usable, MapVersion version = kVersion) {
    return exporting.Next(now, version, usable, &reading);
  }
  // The worker takes the closure and reports a failure.
  std::optional<std::string> Fail(TaskId worker, bool user) {
    ReadingRound::Closure* const closure = reading.Waiting(now);
    REQUIRE(closure != nullptr);
    closure->attempt = Attempt{1, 1};
    closure->worker = worker;
    v1::Failed failed;
    failed.set_user_error(user);
    failed.mutable_cause()->set_message("no device");
    return exporting.OnFailed(now, failed, closure);
  }

  static constexpr MapVersion kVersion{1, 7};
  JobOptions options;
  MonoTime now = seconds(100);
  ReadingRound reading;
  SealedExport exporting{options};
};

TEST_CASE("a usable worker gets the export of a failed job; without one it is waited for") {
  Fixture f;
  CHECK(f.Next({}).closure == nullptr);
  CHECK_FALSE(f.Next({}).gave_up);
  const SealedExport::Action action = f.Next({TaskId(3), TaskId(4)});
  CHECK(action.closure != nullptr);
  CHECK(action.worker == TaskId(3));
  f.now += seconds(5);
  CHECK(f.Next({}).gave_up == "no worker was left to write them");
}

TEST_CASE("a worker whose own error ended the export is not asked again, and its error is told") {
  Fixture f;
  CHECK_FALSE(f.Fail(TaskId(3), true));
  f.now += seconds(1);
  CHECK(f.Next({TaskId(3), TaskId(4)}).worker == TaskId(4));
  CHECK_FALSE(f.Next({TaskId(3)}).gave_up);
  f.now += seconds(4);
  CHECK(f.Next({TaskId(3)}).gave_up == "no device");
}

TEST_CASE("the third machine's error ends the export of a failed job") {
  Fixture f;
  for (int i = 0; i < 2; ++i) {
    CHECK_FALSE(f.Fail(TaskId(3), false));
    CHECK(f.reading.Waiting(f.now) == nullptr);  // not at once
    f.now += f.options.retry_max;
  }
  CHECK(f.Fail(TaskId(3), false) == "no device");
}

TEST_CASE("the export of a failed job ends when the map changes, and at its time limit") {
  Fixture f(32ull << 20);
  CHECK(f.Next({TaskId(3)}, MapVersion{1, 8}).gave_up == "a server lost its shards meanwhile");
  f.now += seconds(61);
  CHECK_FALSE(f.Next({TaskId(3)}).gave_up);
  f.now += seconds(1);
  CHECK(f.Next({TaskId(3)}).gave_up == "it took too long");
}

TEST_CASE("an event names the checkpoint that has the weights of a failed job") {
  v1::CheckpointStatus checkpoint;
  CHECK(SealedExport::NotExportedText("w", checkpoint) ==
        "the weights of the failed job were not exported: w; the job has no checkpoint either");
  checkpoint.set_number(4);
  checkpoint.set_uri("/runs/c/m4");
  CHECK(SealedExport::NotExportedText("w", checkpoint) ==
        "the weights of the failed job were not exported: w; checkpoint 4 has them: psctl "
        "checkpoint export /runs/c/m4 --to weights.npz");
}

}  // namespace
}  // namespace evergrad::coordinator
