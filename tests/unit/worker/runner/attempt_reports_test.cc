#include "worker/runner/attempt_reports.h"

#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "worker/runner/shortfall.h"

namespace evergrad::worker {
namespace {

struct Reports {
  metrics::Registry registry;
  RunnerMetrics metrics{&registry, 10, 10};
  log::Logger logger{[] {
    log::Options options;
    options.file = "/dev/null";
    return options;
  }()};
  std::vector<v1::TaskMessage> sent;
  AttemptReports reports{{[this](v1::TaskMessage message) {
                            sent.push_back(std::move(message));
                            return true;
                          },
                          &logger, &metrics, 1000}};
};

Work SomeWork(WorkKind kind = WorkKind::kTrain) {
  Work work;
  work.job = JobUid(7);
  work.closure = ClosureId(5);
  work.attempt = {1, 3};
  work.kind = kind;
  return work;
}

TEST_CASE("Dropped names the attempt, the reason and the shard that superseded it") {
  Reports r;
  r.reports.SendDropped(SomeWork(), {.reason = "recalled"}, {"job", "5"});
  r.reports.SendDropped(SomeWork(), {.reason = "superseded", .superseded_by = ShardId(2)}, {});
  REQUIRE(r.sent.size() == 2);
  CHECK(r.sent[0].dropped().closure() == 5);
  CHECK(r.sent[0].dropped().reason() == "recalled");
  CHECK_FALSE(r.sent[0].dropped().superseded());
  CHECK(r.sent[1].dropped().superseded());
  CHECK(r.sent[1].dropped().shard() == 2);
  CHECK(r.metrics.dropped.value() == 2);
  const auto lines = r.logger.Read(0, 0, "job", 10);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].text == "attempt handed back: attempt=1.3 reason=recalled");
}

TEST_CASE("Failed says whose error it is, and which ability this worker lacks") {
  Reports r;
  r.reports.SendFailed(SomeWork(), absl::InternalError("a"), "4", {});
  r.reports.SendFailed(SomeWork(), UserError(absl::InternalError("b")), "4", {});
  r.reports.SendFailed(SomeWork(), WithShortfall(Shortfall::kInput, absl::NotFoundError("c")), "4",
                       {});
  REQUIRE(r.sent.size() == 3);
  CHECK_FALSE(r.sent[0].failed().user_error());
  CHECK(r.sent[0].failed().lack() == v1::NO_LACK);
  CHECK(r.sent[0].failed().cause().origin_text() == "worker/4");
  CHECK(r.sent[1].failed().user_error());
  CHECK(r.sent[2].failed().lack() == v1::INPUT);
  CHECK(r.metrics.failed.value() == 3);
}

TEST_CASE("a Done is sent again, behind a heartbeat, until it is forgotten") {
  Reports r;
  v1::Done done;
  done.set_job_uid(7);
  done.set_closure(5);
  r.reports.KeepDone({1, 3}, done);
  for (int session = 0; session < 2; ++session) {
    v1::WorkerProgress progress;
    progress.set_state("idle");
    r.reports.SendDone({1, 3}, std::move(progress));
    REQUIRE(r.sent.size() == 2);
    CHECK(r.sent[0].heartbeat().worker().state() == "idle");
    CHECK(r.sent[1].done().closure() == 5);
    r.sent.clear();
  }
}

TEST_CASE("a Done that is larger than a message is the user's error, with both sizes") {
  Reports r;
  v1::Done done;
  CHECK(r.reports.CheckSize(SomeWork(), done).ok());
  done.set_result(std::string(2000, 'x'));
  const absl::Status train = r.reports.CheckSize(SomeWork(), done);
  CHECK(BlameOf(train) == Blame::kUser);
  CHECK_THAT(std::string(train.message()), Catch::Contains("limit=1000"));
  CHECK_THAT(std::string(train.message()), !Catch::Contains("variables"));
  CHECK_THAT(std::string(r.reports.CheckSize(SomeWork(WorkKind::kDescribe), done).message()),
             Catch::Contains("fewer variables"));
}

TEST_CASE("a Hello names as many held attempts as its message may hold, in order") {
  std::vector<AttemptBook::Held> held(10);
  for (std::size_t i = 0; i < held.size(); ++i) {
    held[i].work = SomeWork();
    held[i].work.attempt = {1, i};
    held[i].work.proof = std::string(100, 'p');
  }
  v1::Hello all, some;
  FillHeld(held, 1 << 20, &all);
  CHECK(all.attempts_size() == 10);
  CHECK(all.attempts(0).proof() == std::string(100, 'p'));
  FillHeld(held, 500, &some);
  CHECK(some.attempts_size() > 0);
  CHECK(some.attempts_size() < 4);
  CHECK(some.ByteSizeLong() <= 500);
  CHECK(some.attempts(0).attempt().n() == 0);
}

}  // namespace
}  // namespace evergrad::worker
