#include "coordinator/membership/membership.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kIdentityBytesMax = 128;
constexpr std::size_t kReplacedMax = 4096;
constexpr std::uint64_t kSpareNumbers = 8;

std::string Describe(const TaskEntry& entry) {
  return absl::StrCat("pid ", entry.pid, " on ",
                      entry.host.empty() ? "an unnamed host" : entry.host, ", registration ",
                      entry.id.value());
}

MembershipChange ChangeOf(const TaskEntry& entry, MembershipChange::Kind kind, bool close_session) {
  return {kind, entry.id, entry.role, entry.identity, entry.reason, entry.leaving, close_session};
}

// Returns the reason why `hello` is malformed, or "".
std::string MistakeOf(const TaskHello& hello) {
  if (hello.identity.size() > kIdentityBytesMax)
    return absl::StrCat("identity too long: bytes=", hello.identity.size(),
                        " max=", kIdentityBytesMax);
  for (const char c : hello.identity) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '/' || c == 0x7f)
      return "identity holds a character that is not allowed (blank, control or '/')";
  }
  if (hello.process_uid == 0) return "process uid missing";
  if (hello.role == Role::kPsServer && hello.identity.empty()) return "server identity missing";
  return "";
}

RegistrationLimit::Options LimitOf(const MembershipOptions& options) {
  RegistrationLimit::Options limit = options.registrations;
  limit.all_burst = std::max(limit.all_burst, 2.0 * options.tasks_max);
  limit.all_per_second = std::max(limit.all_per_second, options.tasks_max / 10.0);
  return limit;
}

}  // namespace

Membership::Membership(MembershipOptions options)
    : options_(options), registrations_(LimitOf(options)) {}

absl::string_view TaskStateName(TaskState state) {
  switch (state) {
    case TaskState::kAlive: return "alive";
    case TaskState::kSuspected: return "suspected";
    case TaskState::kGone: return "gone";
    case TaskState::kLeaving: return "leaving";
  }
  return "unknown";
}

std::string TaskName(Role role, absl::string_view identity) {
  return absl::StrCat(RoleName(role), "/", identity);
}

Membership::Key::Key(Role r, absl::string_view name)
    : role(r), is_number(absl::SimpleAtoi(name, &number)), identity(name) {
  if (!is_number) number = 0;
}

// Numbers come first, ordered by value, and then names.
bool Membership::Key::operator<(const Key& other) const {
  return std::tie(role, other.is_number, number, identity) <
         std::tie(other.role, is_number, other.number, other.identity);
}

RegisterVerdict Membership::Refuse(absl::string_view kind, std::string message, bool exit,
                                   std::chrono::milliseconds retry_after) {
  ++refused_;
  RegisterVerdict verdict;
  verdict.kind = std::string(kind);
  verdict.message = std::move(message);
  verdict.exit = exit;
  verdict.retry_after = retry_after;
  return verdict;
}

RegisterVerdict Membership::Register(MonoTime now, const TaskHello& hello) {
  Registration one{now, hello};
  std::optional<RegisterVerdict> refused = Identify(one);
  if (!refused) refused = RefuseTakenServer(one);
  if (!refused) refused = RefuseBeyondLimits(one);
  return refused ? *std::move(refused) : Enter(one);
}

std::optional<RegisterVerdict> Membership::Identify(Registration& one) {
  const TaskHello& hello = one.hello;
  if (std::string mistake = MistakeOf(hello); !mistake.empty())
    return Refuse("malformed", std::move(mistake), false, options_.lease);
  one.identity = hello.identity;
  // A user has not chosen an assigned number, and any other number works as well. Therefore a
  // registration with an assigned number neither replaces another task nor is refused because of
  // another task.
  one.numbered = hello.role == Role::kWorker && (hello.numbered || hello.identity.empty());
  if (!one.numbered && replaced_.count(hello.process_uid) != 0) {
    const TaskEntry* holder = FindIdentity(hello.role, one.identity);
    return Refuse("replaced",
                  absl::StrCat("a newer process has taken this identity: ",
                               TaskName(one.hello.role, one.identity),
                               holder != nullptr ? absl::StrCat(" is ", Describe(*holder)) : ""),
                  hello.role == Role::kWorker, options_.lease);
  }
  if (one.numbered) one.identity = NumberFor(hello);
  if (const auto found = tasks_.find(Key{hello.role, one.identity}); found != tasks_.end()) {
    one.former = &found->second;
    one.same_process = one.former->process_uid == hello.process_uid;
    one.former_living = one.former->state != TaskState::kGone;
  }
  return std::nullopt;
}

// Returns a refusal if the new server must wait. The new server waits while the former session is
// open or its lease runs, because the former process may hold the only copy of its shards
// (principle P7 of ARCHITECTURE).
std::optional<RegisterVerdict> Membership::RefuseTakenServer(const Registration& one) {
  if (one.hello.role != Role::kPsServer || !one.former_living || one.same_process)
    return std::nullopt;
  const TaskEntry& former = *one.former;
  const bool lease_runs = one.now < former.last_heard + options_.lease;
  // A server that gave notice will not return. If the new server proves that the former process has
  // ended, the new server need not wait for the end of the lease.
  const bool same_place = !former.lifeline.empty() && former.lifeline == one.hello.lifeline;
  const bool proved = same_place && one.hello.ended_process == former.process_uid;
  if (!former.session_open && (!lease_runs || former.leaving || proved)) return std::nullopt;
  RegisterVerdict refused = Refuse(
      "identity_taken",
      absl::StrCat("server identity taken: identity=", one.identity, " held_by=", Describe(former),
                   former.session_open ? ", its session is open" : ", its lease runs"),
      false,
      same_place && !former.session_open ? std::chrono::milliseconds(0)
                                         : std::max(options_.grace, options_.lease / 8));
  refused.holder = {former.process_uid, former.host, former.lifeline,
                    former.session_open && lease_runs, LowestFree(Role::kPsServer)};
  return refused;
}

std::optional<RegisterVerdict> Membership::RefuseBeyondLimits(const Registration& one) {
  if (!one.former_living && living() >= options_.tasks_max) {
    return Refuse("limit", absl::StrCat("too many tasks: limit=", options_.tasks_max), false,
                  options_.lease);
  }
  const std::string name = TaskName(one.hello.role, one.identity);
  const auto limited = registrations_.Take(one.now, name,
                                           one.same_process ? RegistrationLimit::Who::kRenews
                                           : one.former != nullptr && one.former->spoke
                                               ? RegistrationLimit::Who::kKnown
                                               : RegistrationLimit::Who::kNewcomer);
  if (limited.accepted) return std::nullopt;
  const RegistrationLimit::Options& limit = registrations_.options();
  RegisterVerdict refused = Refuse(
      "limit",
      limited.of_all ? absl::StrCat("too many registrations, of all tasks together, in a short "
                                    "time: at_once=",
                                    limit.all_burst, " then_per_second=", limit.all_per_second)
                     : absl::StrCat("too many registrations of ", name,
                                    " in a short time: at_once=", limit.each_burst,
                                    " then_per_second=", limit.each_per_second),
      false, limited.retry_after);
  refused.too_often = true;
  absl::StrAppend(&refused.message, "; retry in ", limited.retry_after.count(), " ms");
  return refused;
}

RegisterVerdict Membership::Enter(const Registration& one) {
  RegisterVerdict verdict;
  verdict.accepted = true;
  verdict.identity = one.identity;
  verdict.task = TaskId(next_id_++);

  TaskEntry entry;
  entry.id = verdict.task;
  entry.role = one.hello.role;
  entry.identity = one.identity;
  entry.process_uid = one.hello.process_uid;
  entry.pid = one.hello.pid;
  entry.host = one.hello.host;
  entry.lifeline = one.hello.lifeline;
  entry.numbered = one.numbered;
  entry.registered_at = entry.last_heard = entry.since = one.now;
  if (one.former != nullptr) {
    verdict.former = one.former->id;
    verdict.former_same_process = one.same_process;
    verdict.former_was_gone = !one.former_living;
    verdict.former_leaving = one.former->leaving;
    verdict.former_numbered = one.former->numbered;
    Succeed(one, entry);
    by_id_.erase(one.former->id);
  }
  const Key key{entry.role, one.identity};
  TaskEntry& kept = tasks_.insert_or_assign(key, std::move(entry)).first->second;
  by_id_.emplace(kept.id, &kept);
  return verdict;
}

void Membership::Succeed(const Registration& one, TaskEntry& entry) {
  const TaskEntry& former = *one.former;
  entry.registrations = former.registrations + 1;
  if (one.same_process) {
    entry.spoke = former.spoke;
    entry.flaps = former.flaps;
    entry.backoff_until = former.backoff_until;
    entry.registered_at = former.registered_at;
    return;
  }
  if (one.former_living && !former.spoke) registrations_.EndedSilent(one.now);
  entry.flaps =
      DiedYoung(former, former.session_open ? one.now : former.closed_at) ? former.flaps + 1 : 0;
  if (entry.flaps > options_.flaps_free) {
    const std::uint32_t doublings =
        std::min<std::uint32_t>(entry.flaps - options_.flaps_free - 1, 16);
    entry.backoff_until =
        one.now + std::min<std::chrono::milliseconds>(options_.backoff_min * (1u << doublings),
                                                      options_.backoff_max);
  }
  if (!one.numbered && !former.numbered)
    RememberReplaced(former.process_uid);  // another process has taken its name
}

void Membership::Heard(MonoTime now, TaskId task) {
  TaskEntry* entry = FindMutable(task);
  if (entry == nullptr || !entry->session_open || entry->state == TaskState::kGone) return;
  entry->last_heard = now;
  entry->spoke = true;
  if (entry->state == TaskState::kSuspected)
    SetState(now, *entry, entry->leaving ? TaskState::kLeaving : TaskState::kAlive, "");
}

std::vector<MembershipChange> Membership::StreamClosed(MonoTime now, TaskId task) {
  TaskEntry* entry = FindMutable(task);
  if (entry == nullptr || !entry->session_open) return {};
  entry->session_open = false;
  entry->closed_at = now;
  if (entry->state == TaskState::kGone) return {};
  SetState(now, *entry, TaskState::kSuspected,
           entry->leaving ? entry->reason : "its session closed");
  return {ChangeOf(*entry, MembershipChange::Kind::kSuspected, false)};
}

void Membership::Leaving(MonoTime now, TaskId task, absl::string_view reason) {
  TaskEntry* entry = FindMutable(task);
  if (entry == nullptr || entry->state == TaskState::kGone) return;
  entry->leaving = true;
  SetState(now, *entry, TaskState::kLeaving,
           absl::StrCat("announced that it leaves: ", reason.substr(0, 200)));
}

std::vector<MembershipChange> Membership::Tick(MonoTime now) {
  std::vector<MembershipChange> changes;
  const bool slept = last_tick_.has_value() && now - *last_tick_ > options_.lease / 2;
  last_tick_ = now;
  if (slept) {
    ++lease_restarts_;
    for (auto& [key, entry] : tasks_) {
      entry.last_heard = now;
      if (!entry.session_open) entry.closed_at = now;
    }
    return changes;
  }
  for (auto& [key, entry] : tasks_) {
    if (entry.state == TaskState::kGone) continue;
    const auto silent =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - entry.last_heard);
    const bool lease_out = silent >= options_.lease;
    if (entry.role == Role::kWorker) {
      const bool away = !entry.session_open && now - entry.closed_at >= options_.grace;
      if (!away && !lease_out) continue;
      if (!entry.spoke) registrations_.EndedSilent(now);
      SetState(now, entry, TaskState::kGone,
               entry.leaving ? entry.reason
               : away        ? std::string("its session closed")
                             : absl::StrCat("no message arrived within its lease: ms=",
                                            options_.lease.count()));
      if (entry.session_open) entry.closed_at = now;
      changes.push_back(ChangeOf(entry, MembershipChange::Kind::kGone, entry.session_open));
      continue;
    }
    // A server that gave notice will not return. A session that was only interrupted is dialed
    // again before its lease ends.
    if (entry.leaving && !entry.session_open && now - entry.closed_at >= options_.lease) {
      SetState(now, entry, TaskState::kGone, entry.reason);
      changes.push_back(ChangeOf(entry, MembershipChange::Kind::kLost, false));
    } else if (silent >= options_.server_lost_after) {
      SetState(now, entry, TaskState::kGone,
               absl::StrCat("disconnected for longer than server_lost_after: ms=",
                            options_.server_lost_after.count()));
      if (entry.session_open) entry.closed_at = now;
      changes.push_back(ChangeOf(entry, MembershipChange::Kind::kLost, entry.session_open));
    } else if (lease_out && entry.state == TaskState::kAlive) {
      SetState(now, entry, TaskState::kSuspected, "no message arrived within its lease");
      changes.push_back(ChangeOf(entry, MembershipChange::Kind::kSuspected, false));
    }
  }
  ForgetOldest();
  return changes;
}

const TaskEntry* Membership::Find(TaskId task) const {
  return const_cast<Membership*>(this)->FindMutable(task);
}

TaskEntry* Membership::FindMutable(TaskId task) {
  const auto found = by_id_.find(task);
  return found == by_id_.end() ? nullptr : found->second;
}

const TaskEntry* Membership::FindIdentity(Role role, absl::string_view identity) const {
  const auto found = tasks_.find(Key{role, std::string(identity)});
  return found == tasks_.end() ? nullptr : &found->second;
}

std::vector<const TaskEntry*> Membership::List() const {
  std::vector<const TaskEntry*> list;
  list.reserve(tasks_.size());
  for (const auto& [key, entry] : tasks_) list.push_back(&entry);
  return list;
}

std::uint32_t Membership::Count(Role role, TaskState state) const {
  std::uint32_t count = 0;
  for (const auto& [key, entry] : tasks_) count += entry.role == role && entry.state == state;
  return count;
}

std::uint32_t Membership::living() const {
  std::uint32_t count = 0;
  for (const auto& [key, entry] : tasks_) count += entry.state != TaskState::kGone;
  return count;
}

void Membership::SetState(MonoTime now, TaskEntry& entry, TaskState state,
                          absl::string_view reason) {
  if (entry.state != state) entry.since = now;
  entry.state = state;
  entry.reason = std::string(reason);
}

void Membership::RememberReplaced(std::uint64_t process_uid) {
  if (!replaced_.insert(process_uid).second) return;
  replaced_order_.push_back(process_uid);
  if (replaced_order_.size() > kReplacedMax) {
    replaced_.erase(replaced_order_.front());
    replaced_order_.pop_front();
  }
}

void Membership::ForgetOldest() {
  std::uint32_t gone = 0;
  for (const auto& [key, entry] : tasks_) gone += entry.state == TaskState::kGone;
  while (gone > options_.gone_kept_max) {
    auto oldest = tasks_.end();
    for (auto it = tasks_.begin(); it != tasks_.end(); ++it) {
      if (it->second.state == TaskState::kGone &&
          (oldest == tasks_.end() || it->second.since < oldest->second.since))
        oldest = it;
    }
    by_id_.erase(oldest->second.id);
    tasks_.erase(oldest);
    --gone;
  }
}

bool Membership::DiedYoung(const TaskEntry& entry, MonoTime end) const {
  return !entry.leaving && end - entry.registered_at < options_.short_life;
}

// A process that registers again keeps its number unless a living task has it. A worker that starts
// on a host where another worker has died shortly after its start gets the number and thus the
// backoff of the dead worker. Any other worker gets a number that no listed task has, because a
// healthy worker must not inherit the flaps of another worker. The numbers have a limit, because
// they would otherwise grow when workers die on one host after another. Beyond the limit, the
// worker gets the number of the gone task with the fewest flaps.
std::string Membership::NumberFor(const TaskHello& hello) const {
  std::uint64_t living = 0;
  const TaskEntry* again = nullptr;
  for (const auto& [key, entry] : tasks_) {
    if (entry.role != Role::kWorker) continue;
    if (entry.process_uid == hello.process_uid) return entry.identity;
    living += entry.state != TaskState::kGone;
    if (again == nullptr && entry.numbered && entry.state == TaskState::kGone &&
        entry.host == hello.host && DiedYoung(entry, entry.closed_at))
      again = &entry;
  }
  if (!hello.identity.empty()) {
    const TaskEntry* holder = FindIdentity(Role::kWorker, hello.identity);
    if (holder == nullptr || holder->state == TaskState::kGone) return hello.identity;
  } else if (again != nullptr) {
    return again->identity;
  }
  const TaskEntry* gone = nullptr;
  for (std::uint64_t n = 0; n < living + kSpareNumbers; ++n) {
    const TaskEntry* holder = FindIdentity(Role::kWorker, absl::StrCat(n));
    if (holder == nullptr) return absl::StrCat(n);
    if (holder->state == TaskState::kGone && (gone == nullptr || holder->flaps < gone->flaps))
      gone = holder;
  }
  return gone->identity;  // living tasks cannot have all numbers
}

std::string Membership::LowestFree(Role role) const {
  for (std::uint64_t n = 0;; ++n) {
    const auto found = tasks_.find(Key{role, absl::StrCat(n)});
    if (found == tasks_.end() || found->second.state == TaskState::kGone) return absl::StrCat(n);
  }
}

}  // namespace evergrad::coordinator
