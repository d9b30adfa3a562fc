// The history of a job for its users: the newest events, numbered from 1, and the deaths of its
// tasks. Pure; only the control executor calls it.
//
// At most `events_max` events and `events_max` deaths are kept: the newest events, and the first
// deaths, because the first deaths explain the later deaths. All deaths are counted.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::v1 {
class JobCounters;
class JobNote;
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class EventLog {
 public:
  struct Death {
    Role role = Role::kWorker;
    std::string identity, reason;
    std::int64_t wall_ms = 0;
  };
  explicit EventLog(std::uint32_t events_max) : events_max_(events_max) {}

  // Adds an event. Its text is made valid UTF-8 and truncated, because all events must fit into one
  // answer to psctl. If `note` is not null, the event is also added to it, for the journal. The
  // returned reference is valid until the next Add.
  const v1::Event& Add(absl::string_view kind, absl::string_view text, std::int64_t wall_ms,
                       v1::JobNote* note);
  void CountDeath() { ++deaths_total_; }
  void AddDeath(Death death, v1::JobNote* note);

  const std::deque<v1::Event>& events() const { return events_; }
  const std::vector<Death>& deaths() const { return deaths_; }
  std::uint64_t deaths_total() const { return deaths_total_; }
  void FillStatus(std::uint64_t events_after, v1::JobStatus* status) const;

  // --- the journal. Reading returns InvalidArgument for an unknown role.
  void Fill(v1::JobSnapshot* snapshot) const;
  void FillCounters(v1::JobCounters* counters) const;
  absl::Status Read(const v1::JobSnapshot& snapshot);
  absl::Status ReadNote(const v1::JobNote& note);
  void ReadCounters(const v1::JobCounters& counters);

 private:
  void Keep(const v1::Event& event);
  template <class Deaths>
  absl::Status ReadDeaths(const Deaths& deaths);

  const std::uint32_t events_max_;
  std::deque<v1::Event> events_;
  std::uint64_t number_ = 0;  // Number of the newest event.
  std::vector<Death> deaths_;
  std::uint64_t deaths_total_ = 0;
};

}  // namespace evergrad::coordinator
