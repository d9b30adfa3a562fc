// The closures of a functions job: the open closures, arguments, results, the error that clients
// have not seen yet, and the calls of the clients.
//
// Every change is a FunctionsNote. Apply() takes the notes both when the events happen and when the
// journal is read, so the restored state cannot differ from the original state. The memory is
// bounded: queue_limit limits the open closures, arguments and results have limits in bytes, and
// clients, errors and calls have limits in number. No clock, no I/O. Not thread-safe; the job owns
// it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/base/interval_set.h"
#include "common/config/job_spec.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

class FunctionQueue {
 public:
  struct ScheduledClosure {
    std::string function;
    std::string arguments;
  };
  explicit FunctionQueue(const config::FunctionsSpec& spec) : spec_(spec) {}

  void Apply(const v1::FunctionsNote& note);
  void Fill(v1::FunctionsState* state) const;
  // Returns InvalidArgument if a set is malformed.
  absl::Status Read(const v1::FunctionsState& state);
  void Clear();  // drops arguments and results when the job has ended

  std::uint64_t next() const { return next_; }  // number of the next closure
  std::uint64_t scheduled() const { return scheduled_; }
  std::uint64_t succeeded() const { return succeeded_; }
  std::uint64_t failed() const { return failed_; }
  std::uint64_t cancelled() const { return cancelled_; }
  bool finish() const { return finish_; }
  const IntervalSet& lost() const { return lost_; }
  std::uint64_t results_given_up() const { return results_given_up_; }

  const std::set<std::uint64_t>& open() const { return open_; }
  bool full() const { return open_.size() >= spec_.queue_limit; }
  // Functions and arguments of open closures, and of ended closures that a rollback may cause to
  // run again.
  const std::map<std::uint64_t, ScheduledClosure>& kept() const { return kept_; }
  const ScheduledClosure* Find(std::uint64_t closure) const;
  std::uint64_t argument_bytes() const { return argument_bytes_; }
  bool HasRoomFor(std::uint64_t argument_bytes) const {
    return argument_bytes_ + argument_bytes + kEntryBytes <= spec_.argument_bytes_max;
  }
  std::uint64_t argument_bytes_max() const { return spec_.argument_bytes_max; }

  const std::string* Result(std::uint64_t closure) const;
  const v1::RaisedError* Failure(std::uint64_t closure) const;
  // The error that no client has seen yet, or null.
  const v1::RaisedError* error() const { return error_ ? &*error_ : nullptr; }

  // Returns whether the queue keeps the result of one of `closures`, or will keep it when the
  // closure ends.
  bool WouldRelease(const IntervalSet& closures) const;

  // Scheduled and Raised return the answer to an earlier call with the same number. If there was
  // none, the result is nullopt or null.
  std::optional<std::uint64_t> Scheduled(const v1::ClosureCall& call) const;
  const v1::RaisedError* Raised(const v1::ClosureCall& call) const;
  // Returns whether the client has announced that it will not repeat this call.
  bool Answered(const v1::ClosureCall& call) const;

  // Memory that an entry of arguments or of a result takes in addition to its contents.
  static constexpr std::uint64_t kEntryBytes = 128;

 private:
  struct Client {
    // `heard` orders the clients by their newest calls. The client with the lowest value has been
    // silent longest.
    std::uint64_t answered_below = 0, heard = 0;
    std::map<std::uint64_t, std::uint64_t> calls;
  };
  void DropArguments(std::uint64_t closure);
  void AddResult(std::uint64_t closure, std::string result);
  void Heard(const v1::ClosureCall& call, std::uint64_t closure);
  void Fail(const v1::RaisedError& error);

  const config::FunctionsSpec spec_;
  std::uint64_t next_ = 0, scheduled_ = 0, succeeded_ = 0, failed_ = 0, cancelled_ = 0,
                results_given_up_ = 0;
  bool finish_ = false;
  std::set<std::uint64_t> open_;
  std::map<std::uint64_t, ScheduledClosure> kept_;
  std::map<std::uint64_t, std::string> results_;
  std::uint64_t argument_bytes_ = 0, result_bytes_ = 0;
  std::set<std::uint64_t> released_;  // open closures whose results no client wants
  std::deque<v1::RaisedError> failures_;
  std::optional<v1::RaisedError> error_;
  std::deque<v1::FunctionRaised> raised_;
  std::map<std::uint64_t, Client> clients_;
  std::uint64_t heard_ = 0;
  IntervalSet lost_;
};

}  // namespace evergrad::coordinator
