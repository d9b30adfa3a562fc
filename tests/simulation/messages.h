// The messages of the simulation: the messages of sessions between the coordinator and tasks, and
// the calls between workers and servers. Numbers in brackets are lines of LEDGER.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/closures/closure_book.h"
#include "coordinator/closures/term_rule.h"
#include "coordinator/closures/update_account.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/ground_truth.h"
#include "worker/runner/attempt_book.h"

namespace evergrad::simulation {

using coordinator::ClosureBook;
using coordinator::DurableState;
using coordinator::Snapshot;
using worker::ShardMap;
using worker::Work;

// A message from the coordinator to a task.
struct Down {
  enum Kind {
    kRegistered,
    kMap,
    kGrant,
    kDoneAnswer,
    kAssign,
    kDrop,
    kClose,
    kWantSnapshot,
    kRelease,
    kSeal,
    kJobEnded
  } kind = kRegistered;
  JobUid job{};
  std::uint32_t p = 0;
  ShardEpoch epoch{};
  MapVersion version{}, start{};
  IntervalSet done{}, refused{};
  std::unique_ptr<HeldState> state{};  // in an Assign that ends a move
  // For an Assign without a state. If there is no source, the shard begins from its initial values.
  std::optional<Snapshot> source{};
  std::shared_ptr<const ShardMap> map{};
  Work work{};
  Attempt attempt{};
  std::string key{};  // in an Assign [34]
  bool superseded = false;
  Term term{};
  std::uint64_t life = 0;
  std::vector<ClosureBook::HeldAttempt> adopted{};
  std::vector<Attempt> adopted_evaluations{};

  // Returns a message about a shard.
  static Down AboutShard(Kind kind, std::uint32_t p, ShardEpoch epoch) {
    Down m;
    m.kind = kind;
    m.p = p;
    m.epoch = epoch;
    return m;
  }
  static Down AnswerToDone(Attempt attempt, bool superseded) {
    Down m;
    m.kind = kDoneAnswer;
    m.attempt = attempt;
    m.superseded = superseded;
    return m;
  }
  // If no job is given, JournaledBook::Send fills in the running job.
  static Down JobEnded(JobUid job = {}) {
    Down m;
    m.kind = kJobEnded;
    m.job = job;
    return m;
  }
};

// The results of an evaluation closure: for each shard, the tag, the values and the updates that it
// has read.
struct Evaluated {
  struct OfShard {
    bool read = false;
    MapVersion start;
    std::uint64_t vlsn = 0;
    std::array<float, kElementsMax> values{};
    std::array<std::uint8_t, kClosures * kUpdates> count{};
  };
  std::array<OfShard, kShards> shards{};
};

// An attempt that a worker holds, as its Hello reports it.
struct HeldAttempt {
  JobUid job;
  ClosureBook::HeldAttempt attempt;
  std::string worker, proof;  // [36], [35] the worker and the proof in its Grant
};

// A message from a task to the coordinator.
struct Up {
  enum Kind {
    kHello,
    kDone,
    kDropped,
    kFailed,
    kClosed,
    kSnapshot,
    kReleased,
    kSealed,
    kAssigned
  } kind = kHello;
  JobUid job{};
  std::uint32_t p = 0;
  ShardEpoch epoch{};
  ClosureId closure{};
  Attempt attempt{};
  MapVersion v0{}, v1{};
  bool taken = false;
  std::unique_ptr<HeldState> state{};
  std::optional<Snapshot> snapshot{};  // kSnapshot, kSealed: the durable file; kAssigned: the file
                                       // that could not be loaded
  bool ok = true;                      // kAssigned
  std::vector<std::pair<JobUid, ClosureBook::HeldShard>> shards{};
  std::vector<HeldAttempt> attempts{};
  // For a Hello: the evaluation attempts that the worker holds. No two jobs use the same attempt.
  std::vector<std::pair<ClosureId, Attempt>> evaluations{};
  std::shared_ptr<const Evaluated> evaluated{};            // in the Done of an evaluation closure
  coordinator::UpdateAccount::TouchedLess touched_less{};  // in a Done [38]
  coordinator::ReportedLife reported{};

  // Returns a message about an attempt.
  static Up AboutAttempt(Kind kind, JobUid job, ClosureId closure, Attempt attempt) {
    Up m;
    m.kind = kind;
    m.job = job;
    m.closure = closure;
    m.attempt = attempt;
    return m;
  }
  static Up AboutShard(Kind kind, JobUid job, std::uint32_t p, ShardEpoch epoch) {
    Up m;
    m.kind = kind;
    m.job = job;
    m.p = p;
    m.epoch = epoch;
    return m;
  }
};

// A push, or its answer, in flight between a worker and a server.
struct Call {
  bool push = false;
  JobUid job{};
  int server = 0, worker = 0;
  std::uint32_t p = 0, update = 0;
  ShardEpoch epoch{};
  ClosureId closure{};
  Attempt attempt{};
  worker::PushAnswer answer = worker::PushAnswer::kApplied;
  MapVersion version{};
  std::string worker_name{}, proof{};  // the proof of the push's grant [35]
};

}  // namespace evergrad::simulation
