// Which tasks get no work of a job for a while, because they die again and again. Pure: the clock is the `now` of each call.
//
// A task is counted by its name, whatever process has that name. It counts as dying again and again when it dies while it holds work of the job, and
// no process of that name has ended any work since the death before. The first `free` such deaths cost nothing: machines die, and the poison rule
// (poison.h) needs three deaths to blame a closure. Each further death keeps the task without work for `first`, twice that, … up to `longest`, and
// any work that it ends clears its record. Deaths during that time are counted apart: they cost the job nothing and change nothing.
//
// The table is bounded, and a coordinator that is started again begins with an empty one: a task that still dies is found again by its next deaths.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
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
    std::size_t tasks_max = 1024;                        // beyond it the record of the oldest death is dropped
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

  // It died while it held work of the job. The record, if it gets no work from now on; else null. Valid until the next call.
  const Record* OnDeath(MonoTime now, Role role, absl::string_view identity, absl::string_view reason, absl::string_view host);
  // It died without any work, while it was kept from it (here, or by membership's own rule): counted where there is a record.
  void OnIdleDeath(MonoTime now, Role role, absl::string_view identity);
  // It ended some work.
  void OnProgress(Role role, absl::string_view identity);
  // All tasks of the role did: each closure that ends has used every server.
  void OnProgressOfAll(Role role);

  MonoTime Until(Role role, absl::string_view identity) const;  // MonoTime{0}: at once
  // Those that are beyond the free deaths, also when they may get work again by now: they have not ended any yet.
  std::vector<Record> Shown(MonoTime now) const;
  std::size_t size() const { return records_.size(); }

 private:
  using Key = std::pair<Role, std::string>;
  void MakeRoom(MonoTime now, const Key& key);

  const Options options_;
  std::map<Key, Record> records_;
};

}  // namespace evergrad::coordinator
