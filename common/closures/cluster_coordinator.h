// Schedules closures on a cluster: the client of a functions job, in the vocabulary of TensorFlow's
// ClusterCoordinator (docs/closures.md).
//
//   auto cluster = closures::ClusterCoordinator::Connect({.coordinator_address = "127.0.0.1:7000",
//   .job = "line"}); auto loss = (*cluster)->Schedule("fit", arguments);          // as many as
//   wanted; waits while the queue is full absl::Status joined = (*cluster)->Join(); // all have
//   ended, or the first error absl::StatusOr<std::string> bytes = (*cluster)->Fetch(*loss);
//   (*cluster)->Finish();                                        // the job exports its variables
//   and succeeds
//
// Closures outlive workers, servers and coordinators: they are run again where they were lost, and
// each of their updates is applied exactly once. Every call goes on over a restart of the
// coordinator, and a repeat that it makes for that schedules nothing twice.
//
// Errors. The first closure that fails by its own fault wins: all others that have not ended are
// cancelled, and the error is told once, by the next Schedule (which then schedules nothing), Join,
// Done or Finish of any client, after every owner of a shard has promised to apply nothing more of
// what was cancelled. After that the job is usable as before. Its code and message are those of the
// function; BlameOf says whose making it is.
//
// Thread-safe; calls of several threads go on side by side. Blocking; not from a transport thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/transport/transport.h"

namespace evergrad::closures {

// A closure that was scheduled. Copies name the same one. While a copy lives the coordinator keeps
// the result, within the job's result_bytes_max; it outlives the worker that made it.
class RemoteValue {
 public:
  RemoteValue() = default;  // names none
  bool valid() const { return state_ != nullptr; }
  std::uint64_t closure() const;  // its number: rises in the order of Schedule, with gaps

 private:
  friend class ClusterCoordinator;
  struct State;
  explicit RemoteValue(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State>
      state_;  // shared by the copies: with the last of them the result is released
};

class ClusterCoordinator {
 public:
  struct Options {
    std::string coordinator_address;  // host:port
    std::string job;                  // of spec.type functions; its name or uid
    transport::TlsFiles tls = {};
    std::chrono::milliseconds unreachable_max{
        60000};  // a call that has heard nothing from a coordinator for so long fails
    transport::Transport* transport = nullptr;  // null: one of its own; else it outlives this
  };
  // Does not wait for the coordinator. InvalidArgument: certificates that cannot be read, no
  // address, no job.
  static absl::StatusOr<std::unique_ptr<ClusterCoordinator>> Connect(Options options);
  ~ClusterCoordinator();  // no call is in progress. Handles may live on; what they hold is released
                          // here

  // Every call: an error as above; Unavailable: no coordinator for unreachable_max (whether
  // Schedule has scheduled is not known then); NotFound: no such job; and when the job has ended,
  // what it ended with.

  // Waits while queue_limit closures have not ended, or while arguments_bytes_max of arguments are
  // kept. `arguments`: at most 1 MiB.
  absl::StatusOr<RemoteValue> Schedule(absl::string_view function, absl::string_view arguments);
  // Returns once every closure that was scheduled has ended. `durable`: and a written checkpoint
  // holds what they did; FailedPrecondition without checkpoints.
  absl::Status Join(bool durable = false);
  // As Join would return now, without waiting.
  absl::StatusOr<bool> Done();
  // Waits for its end. The same value each time; its own error when it failed; Cancelled; NotFound:
  // the result was given up to make room for newer ones.
  absl::StatusOr<std::string> Fetch(const RemoteValue& value);
  // Those of `values` that have not ended are cancelled: nothing of them is applied after this has
  // returned. No error: Join does not tell it.
  absl::Status Cancel(const std::vector<RemoteValue>& values);
  absl::Status CancelAll();
  // Joins; then no closure can be scheduled any more. Returns when the job has ended: OK for
  // SUCCEEDED, with its variables exported.
  absl::Status Finish();

 private:
  struct Impl;
  explicit ClusterCoordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::closures
