#include "coordinator/jobs/function_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/client/protocol.h"

namespace evergrad::coordinator {
namespace {

// Largest number of clients that are remembered. Beyond this number the client that was silent
// longest is forgotten, and a repetition of its calls would schedule new closures.
constexpr std::size_t kClientsMax = 256;
constexpr std::size_t kCallsMax = 4096;  // limit of calls that one client has not acknowledged
// Largest number of failures, and of reported errors, that are kept.
constexpr std::size_t kErrorsMax = 64;

bool SameCall(const v1::ClosureCall& a, const v1::ClosureCall& b) {
  return a.client() == b.client() && a.call() == b.call();
}

// Returns the members of `keys` that are in the set. A set from outside may be huge, so the loop is
// over the keys.
template <class Keys>
std::vector<std::uint64_t> MembersOf(const Keys& keys, const v1::IntervalSet& proto) {
  std::vector<std::uint64_t> members;
  const auto set = client::FromProto(proto);
  if (!set.ok() || set->empty()) return members;
  for (const auto& key : keys) {
    if constexpr (std::is_same_v<std::decay_t<decltype(key)>, std::uint64_t>) {
      if (set->Contains(key)) members.push_back(key);
    } else {
      if (set->Contains(key.first)) members.push_back(key.first);
    }
  }
  return members;
}

}  // namespace

const FunctionQueue::ScheduledClosure* FunctionQueue::Find(std::uint64_t closure) const {
  const auto found = kept_.find(closure);
  return found == kept_.end() ? nullptr : &found->second;
}

const std::string* FunctionQueue::Result(std::uint64_t closure) const {
  const auto found = results_.find(closure);
  return found == results_.end() ? nullptr : &found->second;
}

const v1::RaisedError* FunctionQueue::Failure(std::uint64_t closure) const {
  const auto found = std::find_if(failures_.begin(), failures_.end(),
                                  [&](const v1::RaisedError& e) { return e.closure() == closure; });
  return found == failures_.end() ? nullptr : &*found;
}

std::optional<std::uint64_t> FunctionQueue::Scheduled(const v1::ClosureCall& call) const {
  const auto client = clients_.find(call.client());
  if (client == clients_.end()) return std::nullopt;
  const auto found = client->second.calls.find(call.call());
  return found == client->second.calls.end() ? std::nullopt : std::optional(found->second);
}

const v1::RaisedError* FunctionQueue::Raised(const v1::ClosureCall& call) const {
  const auto found = std::find_if(raised_.begin(), raised_.end(), [&](const v1::FunctionRaised& r) {
    return SameCall(r.call(), call);
  });
  return found == raised_.end() ? nullptr : &found->error();
}

bool FunctionQueue::WouldRelease(const IntervalSet& closures) const {
  if (closures.empty()) return false;
  return std::any_of(results_.begin(), results_.end(),
                     [&](const auto& r) { return closures.Contains(r.first); }) ||
         std::any_of(open_.begin(), open_.end(), [&](std::uint64_t c) {
           return closures.Contains(c) && !released_.contains(c);
         });
}

bool FunctionQueue::Answered(const v1::ClosureCall& call) const {
  const auto client = clients_.find(call.client());
  return client != clients_.end() && call.call() < client->second.answered_below;
}

void FunctionQueue::DropArguments(std::uint64_t closure) {
  const auto found = kept_.find(closure);
  if (found == kept_.end()) return;
  argument_bytes_ -= found->second.arguments.size() + kEntryBytes;
  kept_.erase(found);
}

void FunctionQueue::AddResult(std::uint64_t closure, std::string result) {
  result_bytes_ += result.size() + kEntryBytes;
  results_[closure] = std::move(result);
  // The newest result is always kept. One result is at most a sixteenth of the smallest limit.
  while (result_bytes_ > spec_.result_bytes_max && results_.size() > 1) {
    const auto oldest =
        results_.begin()->first == closure ? std::next(results_.begin()) : results_.begin();
    result_bytes_ -= oldest->second.size() + kEntryBytes;
    results_.erase(oldest);
    ++results_given_up_;
  }
}

void FunctionQueue::Heard(const v1::ClosureCall& call, std::uint64_t closure) {
  Client& client = clients_[call.client()];
  client.heard = ++heard_;
  client.answered_below = std::max(client.answered_below, call.answered_below());
  client.calls.erase(client.calls.begin(), client.calls.lower_bound(client.answered_below));
  client.calls[call.call()] = closure;
  if (client.calls.size() > kCallsMax) client.calls.erase(client.calls.begin());
  if (clients_.size() <= kClientsMax) return;
  clients_.erase(std::min_element(
      clients_.begin(), clients_.end(),
      [](const auto& a, const auto& b) { return a.second.heard < b.second.heard; }));
}

void FunctionQueue::Fail(const v1::RaisedError& error) {
  error_ = error;
  failures_.push_back(error);
  if (failures_.size() > kErrorsMax) failures_.pop_front();
}

void FunctionQueue::Apply(const v1::FunctionsNote& note) {
  for (const v1::FunctionScheduled& one : note.scheduled()) {
    const std::uint64_t c = one.closure();
    open_.insert(c);
    argument_bytes_ += one.arguments().size() + kEntryBytes;
    kept_[c] = {one.function(), one.arguments()};
    next_ = std::max(next_, c + 1);
    ++scheduled_;
    Heard(one.call(), c);
  }
  next_ = std::max(next_, note.next());
  for (const v1::FunctionSucceeded& one : note.succeeded()) {
    if (open_.erase(one.closure()) == 0) continue;
    ++succeeded_;
    if (released_.erase(one.closure()) == 0) AddResult(one.closure(), one.result());
  }
  if (note.has_failed() && open_.erase(note.failed().closure()) > 0) {
    ++failed_;
    released_.erase(note.failed().closure());
    DropArguments(note.failed().closure());
    Fail(note.failed());
  }
  for (const std::uint64_t c : MembersOf(open_, note.cancelled())) {
    open_.erase(c);
    released_.erase(c);
    ++cancelled_;
    DropArguments(c);
  }
  if (note.has_raised()) {
    raised_.push_back(note.raised());
    if (raised_.size() > kErrorsMax) raised_.pop_front();
    error_.reset();
  }
  for (const std::uint64_t c : MembersOf(results_, note.released())) {
    result_bytes_ -= results_[c].size() + kEntryBytes;
    results_.erase(c);
  }
  for (const std::uint64_t c : MembersOf(open_, note.released())) released_.insert(c);
  for (const std::uint64_t c : MembersOf(kept_, note.arguments_dropped())) DropArguments(c);
  if (const auto lost = client::FromProto(note.lost()); lost.ok()) lost_.UnionWith(*lost);
  finish_ |= note.finish();
}

void FunctionQueue::Clear() {
  kept_.clear();
  results_.clear();
  argument_bytes_ = result_bytes_ = 0;
}

void FunctionQueue::Fill(v1::FunctionsState* state) const {
  state->set_next(next_);
  state->set_scheduled(scheduled_);
  state->set_succeeded(succeeded_);
  state->set_failed(failed_);
  state->set_cancelled(cancelled_);
  state->set_results_given_up(results_given_up_);
  state->set_finish(finish_);
  for (const auto& [c, entry] : kept_) {
    v1::FunctionScheduled* one = state->add_kept();
    one->set_closure(c);
    one->set_function(entry.function);
    one->set_arguments(entry.arguments);
  }
  IntervalSet open, released;
  for (const std::uint64_t c : open_) open.Add(c);
  for (const std::uint64_t c : released_) released.Add(c);
  *state->mutable_open() = client::ToProto(open);
  *state->mutable_released() = client::ToProto(released);
  for (const auto& [c, result] : results_) {
    v1::FunctionSucceeded* one = state->add_results();
    one->set_closure(c);
    one->set_result(result);
  }
  for (const v1::RaisedError& failure : failures_) *state->add_failures() = failure;
  if (error_) *state->mutable_error() = *error_;
  for (const v1::FunctionRaised& raised : raised_) *state->add_raised() = raised;
  std::map<std::uint64_t, std::uint64_t> by_heard;
  for (const auto& [id, client] : clients_) by_heard[client.heard] = id;
  for (const auto& [heard, id] : by_heard) {
    const Client& client = clients_.at(id);
    v1::FunctionsClient* one = state->add_clients();
    one->set_client(id);
    one->set_answered_below(client.answered_below);
    for (const auto& [call, closure] : client.calls) {
      one->add_calls(call);
      one->add_closures(closure);
    }
  }
  *state->mutable_lost() = client::ToProto(lost_);
}

absl::Status FunctionQueue::Read(const v1::FunctionsState& state) {
  EG_ASSIGN_OR_RETURN(const IntervalSet open, client::FromProto(state.open()));
  EG_ASSIGN_OR_RETURN(lost_, client::FromProto(state.lost()));
  next_ = state.next();
  scheduled_ = state.scheduled();
  succeeded_ = state.succeeded();
  failed_ = state.failed();
  cancelled_ = state.cancelled();
  results_given_up_ = state.results_given_up();
  finish_ = state.finish();
  for (const v1::FunctionScheduled& one : state.kept()) {
    argument_bytes_ += one.arguments().size() + kEntryBytes;
    kept_[one.closure()] = {one.function(), one.arguments()};
    if (open.Contains(one.closure()))
      open_.insert(one.closure());  // arguments of an open closure are always kept
  }
  for (const std::uint64_t c : MembersOf(open_, state.released())) released_.insert(c);
  for (const v1::FunctionSucceeded& one : state.results()) AddResult(one.closure(), one.result());
  failures_.assign(state.failures().begin(), state.failures().end());
  if (state.has_error()) error_ = state.error();
  raised_.assign(state.raised().begin(), state.raised().end());
  for (const v1::FunctionsClient& one : state.clients()) {
    Client& client = clients_[one.client()];
    client.heard = ++heard_;
    client.answered_below = one.answered_below();
    for (int i = 0; i < std::min(one.calls_size(), one.closures_size()); ++i)
      client.calls[one.calls(i)] = one.closures(i);
  }
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
