// Which tasks get no work of a job for a while, because they die again and again. Pure: the clock
// is the `now` of each call.
//
// A task is counted by its name, whatever process has that name. It counts as dying again and again
// when it dies while it holds work of the job, and no process of that name has ended any work since
// the death before. The first `free` such deaths cost nothing: machines die, and the poison rule
// (poison.h) needs three deaths to blame a closure. Each further death keeps the task without work
// for `first`, twice that, … up to `longest`, and any work that it ends clears its record. Deaths
// during that time are counted apart and cost the job nothing. Those of a server, which is given
// its shards to as soon as its time is over, begin its time anew: who holds none is to stay alive
// for so long first.
//
// The table is bounded, and a coordinator that is started again begins with an empty one: a task
// that still dies is found again by its next deaths.
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
    std::chrono::milliseconds forgotten_after{600'000};  // since the last death
    std::size_t tasks_max = 1024;  // beyond it the record of the oldest death is dropped
  };
  struct Record {
    Role role = Role::kWorker;
    std::string identity;
    std::uint32_t deaths = 0;       // in a row, each while it held work
    std::uint32_t idle_deaths = 0;  // since the last of these
    MonoTime last{0}, until{0};     // it gets no work before `until`
    std::string reason, host;       // of the last death
  };
  explicit DeathBackoff(Options options) : options_(options) {}
  DeathBackoff() : DeathBackoff(Options()) {}

  // It died while it held work of the job. The record, if it gets no work from now on; else null.
  // Valid until the next call.
  const Record* OnDeath(MonoTime now, Role role, absl::string_view identity,
                        absl::string_view reason, absl::string_view host);
  // It died without any work, while it was kept from it (here, or by membership's own rule):
  // counted where there is a record; a server's time begins anew.
  void OnIdleDeath(MonoTime now, Role role, absl::string_view identity);
  // It ended some work.
  void OnProgress(Role role, absl::string_view identity);
  // These tasks of the role did: each closure that ends has used every server that owns shards.
  void OnProgressOf(Role role, const std::set<std::string>& identities);

  MonoTime Until(Role role, absl::string_view identity) const;  // MonoTime{0}: at once
  // It is beyond the free deaths, as Shown has it.
  bool Counts(MonoTime now, Role role, absl::string_view identity) const;
  // Those that are beyond the free deaths, also when they may get work again by now: they have not
  // ended any yet.
  std::vector<Record> Shown(MonoTime now) const;
  std::size_t size() const { return records_.size(); }

 private:
  using Key = std::pair<Role, std::string>;
  void MakeRoom(MonoTime now, const Key& key);
  std::chrono::milliseconds Span(const Record& record) const;
  bool Counts(MonoTime now, const Record& record) const {
    return record.deaths > options_.free && now - record.last <= options_.forgotten_after;
  }

  const Options options_;
  std::map<Key, Record> records_;
};

// Counts the deaths since a job last got further.
//
// A job fails when its tasks die more than `--deaths-max` times while it does not get further; over
// a long life any number of machines may die. It gets further
//   - when a closure succeeds for the first time, and
//   - when less repeated work (repair runs, an evaluation, an export) is left than ever since the
//     last such success. Without "than ever" the count would never end: a server that dies and is
//     rolled back again and again makes the job repeat the same repairs, and each of them succeeds.
// Deaths of tasks that held no work of the job are not reported to this class.
class DeathLimit {
 public:
  enum class Again { kRepairs, kEvaluation, kExport };

  void OnDeaths(std::uint32_t deaths) { deaths_ += deaths; }
  // A closure succeeded for the first time.
  void OnFirstSuccess() {
    deaths_ = 0;
    least_.fill(kUnknown);
  }
  // `left` closures of repeated work are left. Returns whether the job got further.
  bool OnLeft(Again work, std::uint64_t left) {
    std::uint64_t& least = least_[static_cast<std::size_t>(work)];
    if (left >= least) return false;
    least = left;
    deaths_ = 0;
    return true;
  }

  std::uint32_t deaths() const { return deaths_; }
  // From the journal, which does not hold the repeated work that was left: the first piece of it
  // that ends in the next life of the coordinator counts as progress.
  void Restore(std::uint32_t deaths) { deaths_ = deaths; }

 private:
  static constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

  std::uint32_t deaths_ = 0;
  std::array<std::uint64_t, 3> least_{kUnknown, kUnknown, kUnknown};
};

}  // namespace evergrad::coordinator
