// Workers that live but cannot reach a server that lives: another worker, one that can, does their
// work.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::milliseconds kCheckEvery{100};
constexpr std::size_t kSaidMax = 1000;

}  // namespace

void Job::CheckReach() {
  const MonoTime now = host_->Now();
  if (options_.reach_timeout.count() == 0 || !book_ || grants_stopped() || window_open_ ||
      now < next_reach_check_)
    return;
  next_reach_check_ = now + kCheckEvery;
  std::set<std::string> owners;
  for (const ShardOwner& owner : book_->durable().map) owners.insert(owner.server);
  for (const auto& [task, server] : shards_.servers())
    reach_.Server(server.identity, task, server.ready, owners.contains(server.identity), now);

  std::vector<TaskId> cut_off;
  std::vector<const Worker*> able;
  for (auto& [task, worker] : workers_) {
    if (CutOffFrom(worker) != nullptr) {
      if (!worker.held.empty()) cut_off.push_back(task);
    } else if (Usable(worker, now) && roster_.UnfitOf(worker) == nullptr) {
      able.push_back(&worker);
    }
  }
  if (cut_off.empty()) return;
  // Which closures the workers of other jobs could run is unknown here.
  const auto others_can = [&](const Worker& of) {
    if (roster_.elsewhere() > 0 && !source_->has_callers()) return true;
    return std::any_of(able.begin(), able.end(), [&](const Worker* other) {
      return std::any_of(of.held.begin(), of.held.end(), [&](const auto& one) {
        return one.second.kind != v1::TRAIN || source_->CanRun(*other, one.second.closure);
      });
    });
  };
  for (const TaskId task : cut_off) {
    Worker* worker = FindWorker(task);
    if (worker == nullptr || grants_stopped()) return;
    const v1::UnreachedServer from = *CutOffFrom(*worker);
    // Where nobody else could do it, what it has is left to it: the network may be mended.
    if (others_can(*worker) && !keeps_its_worker()) {
      PassOn(*worker, from);
    } else if (reach_said_.size() < kSaidMax &&
               reach_said_.insert(worker->identity + ">" + from.server()).second) {
      Event("warning",
            absl::StrCat("worker/", worker->identity, " cannot reach ", ReachRule::Text(from),
                         ", and no other connected worker can do its work: the job waits. "
                         "Start that server with a --listen (or "
                         "--advertise) address that the worker can reach"));
    }
  }
}

const v1::UnreachedServer* Job::CutOffFrom(const Worker& worker) const {
  return reach_.CutOff(worker.progress.unreached(), host_->Now());
}

// What it holds is superseded there and granted again elsewhere; it gets nothing for a time that
// grows, until it has ended something.
void Job::PassOn(Worker& worker, const v1::UnreachedServer& from) {
  bool trained = false;
  for (const auto& [attempt, held] : worker.held) {
    SendSuperseded(worker.task, held.closure, attempt);
    if (held.kind == v1::TRAIN) {
      trained = true;
      if (book_) book_->ReleaseAttempt(held.closure, attempt);
    } else if (ReadingRound::Closure* reading =
                   reading_.HeldBy(worker.task, held.closure.value(), attempt);
               reading != nullptr) {
      reading->attempt = Attempt{};
    }
  }
  roster_.TakeAll(&worker);
  worker.progress.clear_unreached();  // of the attempt that was taken away
  v1::Failed failure;
  failure.set_lack(v1::REACH);
  failure.mutable_cause()->set_message(absl::StrCat("it cannot reach ", ReachRule::Text(from),
                                                    "; its work goes to workers that can"));
  roster_.SetAside(worker, failure, source_->has_callers());
  roster_.SetUnreached(worker, from);
  if (trained)
    SayNotReproducible(absl::StrCat("the work of worker/", worker.identity, " was passed on"));
  Touch();
  Pump();
}

// "" or which worker waits in vain for which server, while nothing else is the matter.
std::string Job::WaitingForReach() const {
  std::string text;
  for (const auto& [task, worker] : workers_) {
    if (worker.held.empty()) continue;
    const v1::UnreachedServer* from = CutOffFrom(worker);
    if (from == nullptr) return "";  // somebody works
    if (text.size() < 500)
      absl::StrAppend(&text, text.empty() ? "" : ", ", "worker/", worker.identity, " to reach ",
                      ReachRule::Text(*from));
  }
  return text;
}

// "" or whose answers the workers wait for. A server that gives them no room, for one, is only slow
// at first, and cannot be reached later.
std::string Job::WaitingForAnswers() const {
  std::string text;
  for (const auto& [task, worker] : workers_) {
    if (worker.held.empty()) continue;
    if (worker.progress.awaits().empty()) return "";  // somebody works
    if (text.size() < 500)
      absl::StrAppend(&text, text.empty() ? "" : ", ", "an answer to worker/", worker.identity,
                      " by ", worker.progress.awaits());
  }
  return text;
}

}  // namespace evergrad::coordinator
