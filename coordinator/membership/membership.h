// Registrations and leases of tasks, and the changes that follow when a task is silent.
//
// A pure state machine: each call passes the time as `now`; no threads, no I/O. Not thread-safe;
// the control executor calls it. Leases only serve progress: if a living task is declared gone, no
// promise is broken (ARCHITECTURE section 3).
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
  // After this silence a worker is gone, and a server is suspected.
  std::chrono::milliseconds lease{1500};
  std::chrono::milliseconds grace{100};  // a worker with a closed stream is gone after this time
  // A server that is disconnected for this time is lost.
  std::chrono::milliseconds server_lost_after{30000};
  // If a process dies within this time after its registration, the death counts as a flap of its
  // identity.
  std::chrono::milliseconds short_life{5000};
  std::chrono::milliseconds backoff_min{100}, backoff_max{2000};
  std::uint32_t flaps_free = 3;       // flaps in a row before the identity backs off
  std::uint32_t tasks_max = 1024;     // limit of living tasks; a further registration is refused
  std::uint32_t gone_kept_max = 256;  // limit of gone tasks that are still listed
  // Limits of the rate of registrations. The limits for all tasks together are raised to at least 2
  // x `tasks_max` at once and `tasks_max` / 10 per second.
  RegistrationLimit::Options registrations;
};

enum class TaskState { kAlive, kSuspected, kGone, kLeaving };
absl::string_view TaskStateName(TaskState state);  // alive | suspected | gone | leaving

// The part of a Hello that membership needs.
struct TaskHello {
  Role role = Role::kWorker;
  std::string identity;  // "" only for a worker, which then gets a number
  std::uint64_t process_uid = 0;
  std::int64_t pid = 0;
  std::string host;
  // `lifeline` is the place at which a later server can prove that this process has ended, or "".
  // `ended_process` is the uid of the earlier process that this server has proved to have ended, or
  // 0.
  std::string lifeline;
  std::uint64_t ended_process = 0;
  // True if a coordinator assigned the number in the `identity` of a worker.
  bool numbered = false;
};

struct TaskEntry {
  TaskId id;  // number of this registration; no other registration has it
  Role role = Role::kWorker;
  std::string identity;
  std::uint64_t process_uid = 0;
  std::int64_t pid = 0;
  std::string host;
  std::string lifeline;
  TaskState state = TaskState::kAlive;
  bool numbered = false;  // true if a coordinator assigned its identity
  bool session_open = true;
  bool spoke = false;    // the task has sent a message since its Hello
  bool leaving = false;  // true after a notice; its end is then not a death
  MonoTime registered_at{0}, last_heard{0}, closed_at{0}, since{0};
  std::string reason;  // why the task is suspected, gone or leaving
  std::uint32_t registrations = 1;
  std::uint32_t flaps = 0;    // short lives of this identity in a row
  MonoTime backoff_until{0};  // no work is given before this time
};

// The answer to a Hello.
struct RegisterVerdict {
  bool accepted = false;
  // --- if accepted
  TaskId task;
  std::string identity;
  // The earlier registration of this identity, which ends now. If its session is open, the session
  // gets "replaced" and is closed.
  std::optional<TaskId> former;
  // True if the same process has reconnected. The process then keeps its shards or attempts.
  bool former_same_process = false;
  // true if Tick has already reported the end of the former registration
  bool former_was_gone = false;
  bool former_leaving = false;
  // true if the former task gets another number when it registers again
  bool former_numbered = false;
  // --- if refused
  std::string kind;  // "replaced" | "identity_taken" | "limit" | "malformed"
  std::string message;
  // Used with "limit": true if the rate of registrations is too high, false if there are too many
  // living tasks.
  bool too_often = false;
  bool exit = false;
  std::chrono::milliseconds retry_after{0};
  // The process that has the identity; set for identity_taken.
  struct Holder {
    std::uint64_t process_uid = 0;
    std::string host, lifeline;
    // true if its session is open and a message arrived within its lease
    bool lives = false;
    std::string free_identity;  // the lowest index that no server has
  };
  std::optional<Holder> holder;
};

std::string TaskName(Role role, absl::string_view identity);  // "worker/0"

struct MembershipChange {
  enum class Kind {
    kSuspected,
    kGone,  // a worker is gone, and its closures are granted to others; never reported for a server
    kLost,  // a server is lost, and its shards are rolled back on other servers
  };
  Kind kind = Kind::kSuspected;
  TaskId task;
  Role role = Role::kWorker;
  std::string identity;
  std::string reason;
  bool leaving = false;  // true if the task had given notice
  // True if the stream is still open. The caller must then close it to make the task register
  // again.
  bool close_session = false;
};

class Membership {
 public:
  explicit Membership(MembershipOptions options);

  // Handles a new registration.
  //
  // - A worker replaces a living worker of the same identity. If the identity is an assigned
  //   number, the new worker gets another number instead. A replaced worker with an assigned number
  //   also gets another number when it registers again.
  // - A server is refused if its identity belongs to a living server, until the lease of the living
  //   server has expired or the end of that server is proved. The end is proved if the session of
  //   that server is closed and the new server has acquired the same lifeline.
  // - A process that registers again (same process_uid) replaces its own former registration.
  RegisterVerdict Register(MonoTime now, const TaskHello& hello);
  // Notes that a message of the task has arrived. Unknown or replaced tasks are ignored.
  void Heard(MonoTime now, TaskId task);
  // Notes that the stream of the task has ended. The task is suspected at once. A repeated call
  // changes nothing.
  std::vector<MembershipChange> StreamClosed(MonoTime now, TaskId task);
  // Notes that the task has announced its end (SIGTERM), so its end is not a death.
  void Leaving(MonoTime now, TaskId task, absl::string_view reason);
  // Checks all leases. If more than half a lease has passed between two ticks, the coordinator
  // itself was paused, and all leases restart.
  std::vector<MembershipChange> Tick(MonoTime now);

  const TaskEntry* Find(TaskId task) const;
  // Returns the newest registration of the identity, or null.
  const TaskEntry* FindIdentity(Role role, absl::string_view identity) const;
  std::vector<const TaskEntry*> List() const;  // by role, then identity
  std::uint32_t Count(Role role, TaskState state) const;
  std::uint32_t living() const;
  std::uint64_t refused() const { return refused_; }
  std::uint64_t lease_restarts() const { return lease_restarts_; }
  const RegistrationLimit& registrations() const { return registrations_; }
  const MembershipOptions& options() const { return options_; }

 private:
  // Orders identities for people: "2" before "10".
  struct Key {
    Key(Role r, absl::string_view name);
    Role role;
    std::uint64_t number = 0;
    bool is_number = false;
    std::string identity;
    bool operator<(const Key& other) const;
  };
  // The state of Register while it processes one Hello.
  struct Registration {
    MonoTime now;
    const TaskHello& hello;
    std::string identity = {};  // identity in the Hello, or the number that the task gets
    bool numbered = false;
    TaskEntry* former = nullptr;  // the earlier registration, which ends now; null if there is none
    bool same_process = false, former_living = false;  // facts about the former registration
  };
  // The steps of Register, in order. The first three return a refusal, or nullopt to continue.
  std::optional<RegisterVerdict> Identify(Registration& one);
  std::optional<RegisterVerdict> RefuseTakenServer(const Registration& one);
  std::optional<RegisterVerdict> RefuseBeyondLimits(const Registration& one);
  RegisterVerdict Enter(const Registration& one);
  // Copies to `entry` the state that it inherits from the former registration of its identity.
  void Succeed(const Registration& one, TaskEntry& entry);
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
  std::map<TaskId, TaskEntry*> by_id_;  // pointers into tasks_
  std::set<std::uint64_t> replaced_;    // process uids that may not register again
  // The same uids in order; beyond a limit the oldest is forgotten.
  std::deque<std::uint64_t> replaced_order_;
  std::uint64_t next_id_ = 1;
  std::optional<MonoTime> last_tick_;
  std::uint64_t refused_ = 0, lease_restarts_ = 0;
};

}  // namespace evergrad::coordinator
