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

#include <chrono>
#include <cstdint>
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

}  // namespace evergrad::coordinator
