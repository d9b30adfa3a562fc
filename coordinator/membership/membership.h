// Who is here: registrations, leases, and what is concluded when a task falls silent.
//
// A pure state machine: the clock is the `now` of each call; no threads, no I/O. Not thread-safe;
// the control executor calls it. Leases are for liveness only: nothing is unsafe if one is judged
// wrongly (ARCHITECTURE section 3).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/membership/registration_limit.h"

namespace evergrad::coordinator {

struct MembershipOptions {
  std::chrono::milliseconds lease{
      1500};  // A silent worker is gone after it; a silent server is suspected.
  std::chrono::milliseconds grace{100};  // A worker whose stream closed is gone after it.
  std::chrono::milliseconds server_lost_after{
      30000};  // After a notice: its lease, once its session has closed.
  std::chrono::milliseconds short_life{
      5000};  // A process that lived less counts as a flap of its identity.
  std::chrono::milliseconds backoff_min{100}, backoff_max{2000};
  std::uint32_t flaps_free = 3;       // Flaps in a row before the identity backs off.
  std::uint32_t tasks_max = 1024;     // Living tasks; beyond it a registration is refused.
  std::uint32_t gone_kept_max = 256;  // Gone tasks still listed.
  // Registrations in a time; those of all are at least twice `tasks_max` at once and a tenth of it
  // a second.
  RegistrationLimit::Options registrations;
};

enum class TaskState { kAlive, kSuspected, kGone, kLeaving };
absl::string_view TaskStateName(TaskState state);  // alive | suspected | gone | leaving

// What a Hello says, as far as membership is concerned.
struct TaskHello {
  Role role = Role::kWorker;
  std::string identity;  // "" only for a worker: it is numbered
  std::uint64_t process_uid = 0;
  std::int64_t pid = 0;
  std::string host;
  // A server: where its end can be proved, "" where it cannot; and whose end it has proved there
  // (process uid), 0: nobody's.
  std::string lifeline;
  std::uint64_t ended_process = 0;
  // A worker: `identity` is a number that a coordinator gave to it, nobody chose it.
  bool numbered = false;
};

struct TaskEntry {
  TaskId id;  // This registration; fresh for each.
  Role role = Role::kWorker;
  std::string identity;
  std::uint64_t process_uid = 0;
  std::int64_t pid = 0;
  std::string host;
  std::string lifeline;
  TaskState state = TaskState::kAlive;
  bool numbered = false;  // Its identity was given to it, nobody chose it.
  bool session_open = true;
  bool spoke = false;    // It has said something since its Hello.
  bool leaving = false;  // A notice was given: its end is no death.
  MonoTime registered_at{0}, last_heard{0}, closed_at{0}, since{0};
  std::string reason;  // Why it is suspected, gone or leaving.
  std::uint32_t registrations = 1;
  std::uint32_t flaps = 0;    // Short lives in a row of this identity.
  MonoTime backoff_until{0};  // No work is given before.
};

// Answer to a Hello.
struct RegisterVerdict {
  bool accepted = false;
  // accepted
  TaskId task;
  std::string identity;
  // The registration of this identity that this one ends. Its session, if open, is told "replaced"
  // and closed.
  std::optional<TaskId> former;
  bool former_same_process = false;  // It came back itself and keeps what it holds.
  bool former_was_gone = false;      // Its end has been reported by Tick already.
  bool former_leaving = false;
  bool former_numbered = false;  // It gets another number when it returns.
  // refused
  std::string kind;  // "replaced" | "identity_taken" | "limit" | "malformed"
  std::string message;
  bool too_often = false;  // "limit": registrations in a time, not living tasks
  bool exit = false;
  std::chrono::milliseconds retry_after{0};
  // Of identity_taken.
  struct Holder {
    std::uint64_t process_uid = 0;
    std::string host, lifeline;
    bool lives = false;         // its session is open, and it was heard within its lease
    std::string free_identity;  // the lowest index that nobody has
  };
  std::optional<Holder> holder;
};

struct MembershipChange {
  enum class Kind {
    kSuspected,
    kGone,  // worker: what it held is granted again. Never reported for a server.
    kLost,  // server: its shards are rolled back elsewhere.
  };
  Kind kind = Kind::kSuspected;
  TaskId task;
  Role role = Role::kWorker;
  std::string identity;
  std::string reason;
  bool leaving = false;  // after a notice
  bool close_session =
      false;  // The stream is still open: close it, so that the task registers anew.
};

class Membership {
 public:
  explicit Membership(MembershipOptions options);

  // A new registration. A worker of a living identity replaces it, unless its identity is but a
  // number: then it gets another one, as does a numbered worker that was replaced; a server of a
  // living identity is refused, until that one's lease is over or its end is proved (session
  // closed, and the newcomer has taken over its lifeline in the same place). The same process
  // (process_uid) returning replaces its own former registration.
  RegisterVerdict Register(MonoTime now, const TaskHello& hello);
  // Any message of the task. Unknown or replaced tasks: nothing.
  void Heard(MonoTime now, TaskId task);
  // Its stream has ended; suspected at once. A repeat changes nothing.
  std::vector<MembershipChange> StreamClosed(MonoTime now, TaskId task);
  // SIGTERM was announced: its end will not be a death.
  void Leaving(MonoTime now, TaskId task, absl::string_view reason);
  // An operator said that this server is lost for good. False: unknown.
  bool DeclareLost(MonoTime now, absl::string_view server_identity,
                   std::vector<MembershipChange>* changes);
  // Judges every lease. After a gap of more than half a lease between two ticks every lease
  // restarts: it was us who slept.
  std::vector<MembershipChange> Tick(MonoTime now);

  const TaskEntry* Find(TaskId task) const;
  const TaskEntry* FindIdentity(Role role,
                                absl::string_view identity) const;  // the newest registration
  std::vector<const TaskEntry*> List() const;                       // by role, then identity
  std::uint32_t Count(Role role, TaskState state) const;
  std::uint32_t living() const;
  std::uint64_t refused() const { return refused_; }
  std::uint64_t lease_restarts() const { return lease_restarts_; }
  const RegistrationLimit& registrations() const { return registrations_; }
  const MembershipOptions& options() const { return options_; }

 private:
  // Identities in the order of people: "2" before "10".
  struct Key {
    Key(Role r, absl::string_view name);
    Role role;
    std::uint64_t number = 0;
    bool is_number = false;
    std::string identity;
    bool operator<(const Key& other) const;
  };
  TaskEntry* FindMutable(TaskId task);
  void SetState(MonoTime now, TaskEntry& entry, TaskState state, absl::string_view reason);
  void RememberReplaced(std::uint64_t process_uid);
  void ForgetOldest();
  std::string LowestFree(Role role) const;
  std::string NumberFor(const TaskHello& hello) const;
  bool DiedYoung(const TaskEntry& entry, MonoTime end) const;
  RegisterVerdict Refuse(absl::string_view kind, std::string message, bool exit,
                         std::chrono::milliseconds retry_after);

  const MembershipOptions options_;
  RegistrationLimit registrations_;
  std::map<Key, TaskEntry> tasks_;
  std::map<TaskId, TaskEntry*> by_id_;        // into tasks_
  std::set<std::uint64_t> replaced_;          // process uids that may not come back
  std::deque<std::uint64_t> replaced_order_;  // bounded: the oldest is forgotten
  std::uint64_t next_id_ = 1;
  std::optional<MonoTime> last_tick_;
  std::uint64_t refused_ = 0, lease_restarts_ = 0;
};

}  // namespace evergrad::coordinator
