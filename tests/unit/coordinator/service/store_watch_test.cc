#include "coordinator/service/store_watch.h"

#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "slow_store.h"
#include "tests/support/manual_executor.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

struct Stage {
  ManualClock clock;
  runtime::ManualExecutor control{&clock};
  log::Logger logger{[] {
    log::Options options;
    options.level = log::Level::kError;
    return options;
  }()};
  SlowStore store;
  int changes = 0;
  std::optional<StoreWatch> watch;
  Stage() {
    watch.emplace(&store, &control, &logger);
    watch->Listen([this] { ++changes; });
  }
};

}  // namespace

TEST_CASE("several changes of the store cause one call on the control executor") {
  Stage stage;
  stage.store.listener();
  stage.store.listener();
  CHECK(stage.changes == 0);
  stage.control.RunReady();
  CHECK(stage.changes == 1);
  stage.store.listener();
  stage.control.RunReady();
  CHECK(stage.changes == 2);
  const auto late = stage.store.listener;
  stage.watch.reset();
  late();  // the store's thread may still call its listener
  stage.control.RunReady();
  CHECK(stage.changes == 2);
}

TEST_CASE("a full disk blocks new work until there is space again") {
  Stage stage;
  CHECK_FALSE(stage.watch->CheckHealth());
  stage.store.health_now = absl::ResourceExhaustedError("the disk is full");
  CHECK_FALSE(stage.watch->CheckHealth());
  CHECK(absl::IsResourceExhausted(stage.watch->status()));
  const absl::Status refusal = stage.watch->Refusal("the job was not accepted");
  CHECK(refusal.message() == "the job was not accepted: the disk is full");
  CHECK(absl::IsUnavailable(refusal));
  CHECK(OriginOf(refusal) == "coordinator");
  stage.store.health_now = absl::OkStatus();
  CHECK(stage.watch->CheckHealth());
  CHECK(stage.watch->status().ok());
}

TEST_CASE("a store that has failed stays failed, also after a full disk") {
  Stage stage;
  stage.store.health_now = absl::ResourceExhaustedError("the disk is full");
  CHECK_FALSE(stage.watch->CheckHealth());
  stage.store.health_now = absl::DataLossError("torn");
  CHECK_FALSE(stage.watch->CheckHealth());
  stage.store.health_now = absl::OkStatus();
  CHECK_FALSE(stage.watch->CheckHealth());
  CHECK(stage.watch->status() == absl::DataLossError("torn"));
  stage.watch->Fail(absl::InternalError("later"));
  CHECK(stage.watch->status() == absl::DataLossError("torn"));
}

TEST_CASE("while the store's folder is missing only new jobs are refused") {
  Stage stage;
  CHECK_FALSE(stage.watch->CheckPlace());
  stage.store.place_now = absl::NotFoundError("the folder is gone");
  CHECK(stage.watch->CheckPlace());
  CHECK_FALSE(stage.watch->CheckPlace());
  CHECK(stage.watch->status().ok());
  CHECK(stage.watch->no_new_jobs() == absl::NotFoundError("the folder is gone"));
  stage.store.place_now = absl::OkStatus();
  CHECK(stage.watch->CheckPlace());
  CHECK(stage.watch->no_new_jobs().ok());
}
