#include "coordinator/jobs/death_backoff.h"

#include <algorithm>

namespace evergrad::coordinator {
namespace {

constexpr std::uint32_t kDoublingsMax = 20;

}  // namespace

const DeathBackoff::Record* DeathBackoff::OnDeath(MonoTime now, Role role,
                                                  absl::string_view identity,
                                                  absl::string_view reason,
                                                  absl::string_view host) {
  const Key key{role, std::string(identity)};
  FreeCapacity(now, key);
  Record& record = records_[key];
  record.role = role;
  record.identity = std::string(identity);
  record.last = now;
  record.reason = std::string(reason);
  record.host = std::string(host);
  record.idle_deaths = 0;
  ++record.deaths;
  if (record.deaths <= options_.free) return nullptr;
  record.until = now + Span(record);
  return &record;
}

std::chrono::milliseconds DeathBackoff::Span(const Record& record) const {
  const std::uint32_t doublings = std::min(record.deaths - options_.free - 1, kDoublingsMax);
  return std::min<std::chrono::milliseconds>(options_.first * (1u << doublings), options_.longest);
}

void DeathBackoff::OnIdleDeath(MonoTime now, Role role, absl::string_view identity) {
  const auto found = records_.find(Key{role, std::string(identity)});
  if (found == records_.end()) return;
  Record& record = found->second;
  ++record.idle_deaths;
  record.last = now;
  if (role == Role::kPsServer && record.deaths > options_.free) record.until = now + Span(record);
}

void DeathBackoff::OnProgress(Role role, absl::string_view identity) {
  if (records_.empty()) return;  // fast path: this method runs for each closure
  records_.erase(Key{role, std::string(identity)});
}

void DeathBackoff::OnProgressOf(Role role, const std::set<std::string>& identities) {
  std::erase_if(records_, [&](const auto& one) {
    return one.first.first == role && identities.contains(one.first.second);
  });
}

MonoTime DeathBackoff::Until(Role role, absl::string_view identity) const {
  if (records_.empty()) return MonoTime{0};
  const auto found = records_.find(Key{role, std::string(identity)});
  return found == records_.end() ? MonoTime{0} : found->second.until;
}

bool DeathBackoff::Counts(MonoTime now, Role role, absl::string_view identity) const {
  if (records_.empty()) return false;
  const auto found = records_.find(Key{role, std::string(identity)});
  return found != records_.end() && Counts(now, found->second);
}

std::vector<DeathBackoff::Record> DeathBackoff::Shown(MonoTime now) const {
  std::vector<Record> shown;
  for (const auto& [key, record] : records_) {
    if (Counts(now, record)) shown.push_back(record);
  }
  return shown;
}

void DeathBackoff::FreeCapacity(MonoTime now, const Key& key) {
  std::erase_if(records_,
                [&](const auto& one) { return now - one.second.last > options_.forgotten_after; });
  if (records_.size() < options_.tasks_max || records_.count(key) != 0) return;
  records_.erase(
      std::min_element(records_.begin(), records_.end(),
                       [](const auto& a, const auto& b) { return a.second.last < b.second.last; }));
}

}  // namespace evergrad::coordinator
