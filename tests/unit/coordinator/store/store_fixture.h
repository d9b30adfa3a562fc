// A state store of any kind that a test can close and open again.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/fault/failpoints.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/time/clock.h"
#include "coordinator/jobs/state_store.h"
#include "coordinator/store/sqlite_state_store.h"
#include "tests/support/temp_folder.h"

namespace evergrad::coordinator {

class Reopenable {
 public:
  virtual ~Reopenable() = default;
  virtual StateStore& store() = 0;
  virtual void Reopen() = 0;  // acts as a new process that opens the store
};

class ReopenableMemory final : public Reopenable {
 public:
  explicit ReopenableMemory(std::size_t torn_max)
      : store_({.jobs_max = 1024, .torn_max = torn_max}) {}
  StateStore& store() override { return store_; }
  void Reopen() override {}

 private:
  MemoryStateStore store_;
};

// The parts of the daemon on which a store on disk depends.
class SqliteStage {
 public:
  SqliteStoreOptions options;
  RealClock clock;
  log::Logger logger{[] {
    log::Options quiet;
    quiet.level = log::Level::kError;
    return quiet;
  }()};
  metrics::Registry registry;
  fault::Failpoints failpoints;
  test::TempFolder folder;

  SqliteStage() {
    options.folder = folder / "state";
    options.holder = "pid 1 on host here";
    options.retry_every = std::chrono::milliseconds(5);
  }
  absl::StatusOr<std::unique_ptr<SqliteStateStore>> Open() {
    return SqliteStateStore::Open(
        options,
        {.clock = &clock, .logger = &logger, .registry = &registry, .failpoints = &failpoints});
  }
};

class ReopenableSqlite final : public Reopenable {
 public:
  ReopenableSqlite() { Reopen(); }
  StateStore& store() override { return *store_; }
  void Reopen() override {
    store_.reset();
    auto opened = stage_.Open();
    if (!opened.ok()) std::abort();
    store_ = *std::move(opened);
  }

 private:
  SqliteStage stage_;
  std::unique_ptr<SqliteStateStore> store_;
};

}  // namespace evergrad::coordinator
