// Calls that wait for a change. After every change, each call is retried, in the order of the
// calls. At its deadline a call is answered in any case.
//
// Not thread-safe: the control executor owns it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "coordinator/service/life.h"

namespace evergrad::coordinator {

// Answers a call once. The destructor answers a call that is still open, because no caller must
// wait for a coordinator that has ended.
class OpenCall {
 public:
  explicit OpenCall(std::shared_ptr<transport::UnaryResponder> responder)
      : responder_(std::move(responder)) {}
  ~OpenCall() {
    if (!answered_) responder_->Answer(StoppingError());
  }
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;
  void Answer(absl::StatusOr<std::string> response) {
    answered_ = true;
    responder_->Answer(std::move(response));
  }

 private:
  const std::shared_ptr<transport::UnaryResponder> responder_;
  bool answered_ = false;
};

class WaitingCalls {
 public:
  // Answers the call if it can, or if its deadline has passed (`late`). Returns whether it has
  // answered.
  using Attempt = std::function<bool(bool late)>;
  // The attempt owns the call, so ~OpenCall answers a call that is dropped.
  void Add(MonoTime deadline, Attempt attempt) { calls_.push_back({deadline, std::move(attempt)}); }
  void Check(MonoTime now) {
    if (calls_.empty()) return;
    std::vector<Waiting> calls;
    calls.swap(calls_);  // an attempt may add calls
    for (Waiting& call : calls) {
      if (!call.attempt(now >= call.deadline)) calls_.push_back(std::move(call));
    }
  }
  void Clear() { calls_.clear(); }

 private:
  struct Waiting {
    MonoTime deadline{0};
    Attempt attempt;
  };
  std::vector<Waiting> calls_;
};

}  // namespace evergrad::coordinator
