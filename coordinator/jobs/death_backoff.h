// Decides which tasks get no work of a job for a while because they die again and again. Pure: each
// call brings the time as `now`.
//
// Deaths are counted by identity, over all processes that had the identity. A death counts if the
// task held work of the job. Deaths are in a row if no process of the identity completed work
// between them. The first `free` deaths in a row have no effect: machines die, and the poison rule
// (poison.h) needs three deaths to blame a closure. After each further death the task gets no work
// for the time of a backoff. The first backoff is `first` long, and each later backoff is twice as
// long as the one before, up to `longest`. Any work that the task completes clears its record.
// Deaths during the backoff are counted separately and do not count against the job. When a server
// dies during its backoff, the backoff begins again, because the server must stay alive for the
// length of the backoff before it gets shards.
//
// The table is bounded. A restarted coordinator begins with an empty table, so a task that still
// dies is counted anew.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"

namespace evergrad::coordinator {

class DeathBackoff {
 public:
  struct Options {
    std::uint32_t free = 3;
    std::chrono::milliseconds first{1000}, longest{60'000};
    // The record of a task is dropped when this time has passed since its newest death.
    std::chrono::milliseconds forgotten_after{600'000};
    // Limit of records. To make space, the record whose newest death is longest ago is dropped.
    std::size_t tasks_max = 1024;
  };
  struct Record {
    Role role = Role::kWorker;
    std::string identity;
    std::uint32_t deaths = 0;  // deaths in a row while the task held work
    // deaths during the backoff that began at the newest of `deaths`
    std::uint32_t idle_deaths = 0;
    MonoTime last{0}, until{0};  // the task gets no work before `until`
    std::string reason, host;    // reason and host of the newest death in `deaths`
  };
  explicit DeathBackoff(Options options) : options_(options) {}
  DeathBackoff() : DeathBackoff(Options()) {}

  // Counts a death of a task that held work of the job. Returns the record of the task if a backoff
  // of the task begins now, else null. The pointer is valid until the next call.
  const Record* OnDeath(MonoTime now, Role role, absl::string_view identity,
                        absl::string_view reason, absl::string_view host);
  // Counts a death of a task that held no work because it backed off (by this class, or by
  // membership's own rule). Changes nothing if the task has no record. The backoff of a server
  // begins again.
  void OnIdleDeath(MonoTime now, Role role, absl::string_view identity);
  // Clears the record of the task, because the task has completed some work.
  void OnProgress(Role role, absl::string_view identity);
  // Clears the records of several tasks of one role. Called for the servers that own shards,
  // because each closure that succeeds has used all of these servers.
  void OnProgressOf(Role role, const std::set<std::string>& identities);

  MonoTime Until(Role role, absl::string_view identity) const;  // MonoTime{0} for no backoff
  // Returns whether Shown contains the task.
  bool Counts(MonoTime now, Role role, absl::string_view identity) const;
  // Returns the records with more than `free` deaths. A task stays in the result after its backoff,
  // until it completes some work.
  std::vector<Record> Shown(MonoTime now) const;
  std::size_t size() const { return records_.size(); }

 private:
  using Key = std::pair<Role, std::string>;
  void FreeCapacity(MonoTime now, const Key& key);
  std::chrono::milliseconds Span(const Record& record) const;
  bool Counts(MonoTime now, const Record& record) const {
    return record.deaths > options_.free && now - record.last <= options_.forgotten_after;
  }

  const Options options_;
  std::map<Key, Record> records_;
};

// Counts the deaths since the job last made progress.
//
// A job fails when its tasks die more than `--deaths-max` times while the job makes no progress;
// the number of deaths over the whole life of a job has no limit. The job makes progress
//   - when a closure succeeds for the first time, and
//   - when less repeated work (repair runs, an evaluation, an export) is left than at any moment
//     since a closure last succeeded for the first time. If each repair counted as progress, the
//     count would never reach the limit: a server that dies and is rolled back again and again
//     makes the job repeat the same repairs, and each of them succeeds.
//
// Deaths of tasks that held no work of the job are not reported to this class.
class DeathLimit {
 public:
  enum class Again { kRepairs, kEvaluation, kExport };

  void OnDeaths(std::uint32_t deaths) { deaths_ += deaths; }
  // Resets the count, because a closure succeeded for the first time.
  void OnFirstSuccess() {
    deaths_ = 0;
    least_.fill(kUnknown);
  }
  // Notes that `left` closures of repeated work are left. Returns whether the job made progress.
  bool OnLeft(Again work, std::uint64_t left) {
    std::uint64_t& least = least_[static_cast<std::size_t>(work)];
    if (left >= least) return false;
    least = left;
    deaths_ = 0;
    return true;
  }

  std::uint32_t deaths() const { return deaths_; }
  // Restores the count from the journal. The journal does not record how much repeated work was
  // left, so in a new life of the coordinator the first call of OnLeft counts as progress.
  void Restore(std::uint32_t deaths) { deaths_ = deaths; }

 private:
  static constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

  std::uint32_t deaths_ = 0;
  std::array<std::uint64_t, 3> least_{kUnknown, kUnknown, kUnknown};
};

}  // namespace evergrad::coordinator
