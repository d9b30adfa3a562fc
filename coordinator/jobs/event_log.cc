#include "coordinator/jobs/event_log.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/client/protocol.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kTextBytesMax = 2000;

void FillDeath(const EventLog::Death& death, v1::JobDeath* out) {
  out->set_role(client::ToProto(death.role));
  out->set_identity(death.identity);
  out->set_reason(death.reason);
  out->set_wall_ms(death.wall_ms);
}

}  // namespace

const v1::Event& EventLog::Add(absl::string_view kind, absl::string_view text, std::int64_t wall_ms,
                               v1::JobNote* note) {
  v1::Event event;
  event.set_number(number_ + 1);
  event.set_wall_ms(wall_ms);
  event.set_kind(std::string(kind));
  event.set_text(client::CleanText(text, kTextBytesMax));
  if (note != nullptr) *note->add_events() = event;
  Keep(event);
  return events_.back();
}

void EventLog::Keep(const v1::Event& event) {
  number_ = std::max(number_, event.number());
  events_.push_back(event);
  if (events_.size() > events_max_) events_.pop_front();
}

void EventLog::AddDeath(Death death, v1::JobNote* note) {
  if (deaths_.size() >= events_max_) return;
  if (note != nullptr) FillDeath(death, note->add_deaths());
  deaths_.push_back(std::move(death));
}

void EventLog::FillStatus(std::uint64_t events_after, v1::JobStatus* status) const {
  for (const v1::Event& event : events_) {
    if (event.number() > events_after) *status->add_events() = event;
  }
}

// ---------------------------------------------------------------- the journal

void EventLog::Fill(v1::JobSnapshot* snapshot) const {
  for (const v1::Event& event : events_) *snapshot->add_events() = event;
  snapshot->set_event_number(number_);
  for (const Death& death : deaths_) FillDeath(death, snapshot->add_deaths());
}

void EventLog::FillCounters(v1::JobCounters* counters) const {
  counters->set_deaths(deaths_total_);
}

template <class Deaths>
absl::Status EventLog::ReadDeaths(const Deaths& deaths) {
  for (const v1::JobDeath& one : deaths) {
    EG_ASSIGN_OR_RETURN(const Role role, client::FromProto(one.role()));
    deaths_.push_back({role, one.identity(), one.reason(), one.wall_ms()});
  }
  return absl::OkStatus();
}

absl::Status EventLog::Read(const v1::JobSnapshot& snapshot) {
  events_.assign(snapshot.events().begin(), snapshot.events().end());
  number_ = snapshot.event_number();
  return ReadDeaths(snapshot.deaths());
}

absl::Status EventLog::ReadNote(const v1::JobNote& note) {
  for (const v1::Event& event : note.events()) Keep(event);
  return ReadDeaths(note.deaths());
}

void EventLog::ReadCounters(const v1::JobCounters& counters) { deaths_total_ = counters.deaths(); }

}  // namespace evergrad::coordinator
