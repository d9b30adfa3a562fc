// A state store for tests of code that waits until commits are durable. The store keeps no data,
// and the test decides when commits become durable. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/jobs/state_store.h"

namespace evergrad::coordinator {

class SlowStore final : public StateStore {
 public:
  using StateStore::Commit;
  absl::Status CommitTerm(Term) override { return absl::OkStatus(); }
  Term term() const override { return Term(1); }
  absl::Status Commit(JobUid, const Record&, std::string) override { return absl::OkStatus(); }
  absl::Status Checkpoint(JobUid, const DurableState&, std::string) override {
    return absl::OkStatus();
  }
  absl::Status Remove(JobUid) override { return absl::OkStatus(); }
  bool Removed(JobUid) const override { return false; }
  absl::StatusOr<StoredJob> LoadJob(JobUid) const override { return absl::NotFoundError("none"); }
  absl::StatusOr<std::vector<JobUid>> ListJobs() const override { return std::vector<JobUid>(); }
  absl::Status Sync() override { return absl::OkStatus(); }
  std::uint64_t accepted() const override { return accepted_now; }
  std::uint64_t durable() const override { return durable_now; }
  absl::Status health() const override { return health_now; }
  absl::Status place() const override { return place_now; }
  void SetListener(std::function<void()> to) override { listener = std::move(to); }
  bool persistent() const override { return true; }

  std::uint64_t accepted_now = 0, durable_now = 0;
  absl::Status health_now, place_now;
  std::function<void()> listener;
};

}  // namespace evergrad::coordinator
