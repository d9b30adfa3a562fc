// Schedules closures on a cluster. The class is the client of a functions job, in the vocabulary of
// TensorFlow's ClusterCoordinator (docs/closures.md).
//
//   auto cluster = ClusterCoordinator::Connect(
//       {.coordinator_address = "127.0.0.1:7000", .job = "line"});
//   auto loss = (*cluster)->Schedule("fit", arguments);  // waits while the queue is full
//   absl::Status joined = (*cluster)->Join();  // all closures have ended, or the first error
//   absl::StatusOr<std::string> bytes = (*cluster)->Fetch(*loss);
//   (*cluster)->Finish();  // the job exports its variables and succeeds
//
// Closures survive the loss of workers, servers and coordinators: lost closures run again, and each
// of their updates is applied exactly once. Calls continue through a restart of the coordinator,
// and a repeat of a call schedules nothing twice.
//
// The first closure that fails by its own fault cancels all other closures that have not ended. The
// error is returned once, by the next Schedule (which then schedules nothing), Join, Done or Finish
// of any client. By then, every owner of a shard has confirmed that it applies no more updates of
// the cancelled closures. Afterwards the job is usable as before. The error has the code of the
// function's error, and its message contains the function's message. BlameOf distinguishes a user
// error from a machine error.
//
// Thread-safe; calls of several threads run concurrently. The calls block, so a transport thread
// must not call this class.
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

// A handle of a scheduled closure. Copies refer to the same closure. The coordinator keeps the
// result while a copy exists, within the job's result_bytes_max, even after the worker has ended.
class RemoteValue {
 public:
  RemoteValue() = default;  // refers to no closure
  bool valid() const { return state_ != nullptr; }
  // Number of the closure; numbers rise in the order of Schedule, with gaps.
  std::uint64_t closure() const;

 private:
  friend class ClusterCoordinator;
  struct State;
  explicit RemoteValue(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  // The copies share the state. The destruction of the last copy releases the result.
  std::shared_ptr<const State> state_;
};

class ClusterCoordinator {
 public:
  struct Options {
    std::string coordinator_address;  // host:port
    std::string job;                  // name or uid of a job with spec.type functions
    transport::TlsFiles tls = {};
    // The time without an answer from a coordinator after which a call fails.
    std::chrono::milliseconds unreachable_max{60000};
    // If null, the client makes its own transport; otherwise the transport outlives the client.
    transport::Transport* transport = nullptr;
  };
  // Connects without waiting for the coordinator. Returns InvalidArgument if certificates are
  // unreadable, or if address or job are missing.
  static absl::StatusOr<std::unique_ptr<ClusterCoordinator>> Connect(Options options);
  // No call may be in progress. Handles may outlive the client; their results are released by the
  // destructor.
  ~ClusterCoordinator();

  // Every call can return the following errors: Unavailable if no coordinator has answered for
  // unreachable_max, NotFound for an unknown job, and the final status of the job if the job has
  // ended. After Unavailable it is unknown whether Schedule has scheduled the closure.

  // Waits while the job has queue_limit closures that have not ended, or keeps argument_bytes_max
  // of arguments. `arguments` has at most 1 MiB.
  absl::StatusOr<RemoteValue> Schedule(absl::string_view function, absl::string_view arguments);
  // Returns once every scheduled closure has ended. With `durable`, also waits until a written
  // checkpoint holds the effect of the closures. Returns FailedPrecondition if checkpoints are off.
  absl::Status Join(bool durable = false);
  // Returns the answer that Join would give now, without waiting.
  absl::StatusOr<bool> Done();
  // Waits until the closure has ended, and returns the same value each time. Returns the closure's
  // own error if the closure failed, Cancelled if the closure was cancelled, and NotFound if the
  // result was discarded because newer results filled the memory.
  absl::StatusOr<std::string> Fetch(const RemoteValue& value);
  // Cancels the closures of `values` that have not ended. After the call has returned, no update of
  // these closures is applied. A cancellation is not an error that Join would return.
  absl::Status Cancel(const std::vector<RemoteValue>& values);
  absl::Status CancelAll();
  // Joins, and then ends scheduling. Returns when the job has ended; OK if it SUCCEEDED and its
  // variables are exported.
  absl::Status Finish();

 private:
  struct Impl;
  explicit ClusterCoordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::closures
