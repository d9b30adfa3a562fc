#include "coordinator/jobs/reach_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::milliseconds kCheckEvery{100};
constexpr std::size_t kSaidMax = 1000;
constexpr std::size_t kTextBytesMax = 500;

}  // namespace

ReachWatch::ReachWatch(const JobPart& part, WorkerRoster* roster, Hooks hooks)
    : JobPart(part), hooks_(std::move(hooks)), roster_(roster), rule_(options_.reach_timeout) {}

void ReachWatch::Check() {
  const MonoTime now = host_->Now();
  if (options_.reach_timeout.count() == 0 || !book_ || now < next_check_) return;
  next_check_ = now + kCheckEvery;
  std::set<std::string> owners;
  for (const ShardOwner& owner : book_->durable().map) owners.insert(owner.server);
  for (const auto& [task, server] : shards_.servers())
    rule_.Server(server.identity, task, server.ready, owners.contains(server.identity), now);

  std::vector<TaskId> cannot_reach;
  std::vector<const JobWorker*> able;
  for (const auto& [task, worker] : roster_->workers()) {
    if (FindUnreached(worker) != nullptr) {
      if (!worker.held.empty()) cannot_reach.push_back(task);
    } else if (roster_->Usable(worker, now) && roster_->UnfitOf(worker) == nullptr) {
      able.push_back(&worker);
    }
  }
  for (const TaskId task : cannot_reach) {
    JobWorker* const worker = roster_->Find(task);
    if (worker == nullptr || job_.grants_stopped()) return;
    const v1::UnreachedServer from = *FindUnreached(*worker);
    if (hooks_.others_can(*worker, able) && !id_.spec.strategy.deterministic) {
      hooks_.pass_on(*worker, from);
    } else if (said_.size() < kSaidMax &&
               said_.insert(worker->identity + ">" + from.server()).second) {
      job_.Event("warning",
                 absl::StrCat("worker/", worker->identity, " cannot reach ", ReachRule::Text(from),
                              ", and no other connected worker can do its work: the job waits. "
                              "Start that server with a --listen (or "
                              "--advertise) address that the worker can reach"));
    }
  }
}

const v1::UnreachedServer* ReachWatch::FindUnreached(const JobWorker& worker) const {
  return rule_.FindUnreached(worker.progress.unreached(), host_->Now());
}

std::string ReachWatch::WaitingFor() const {
  std::string text;
  for (const auto& [task, worker] : roster_->workers()) {
    if (worker.held.empty()) continue;
    const v1::UnreachedServer* from = FindUnreached(worker);
    if (from == nullptr) return "";  // The job makes progress through this worker.
    if (text.size() < kTextBytesMax)
      absl::StrAppend(&text, text.empty() ? "" : ", ", "worker/", worker.identity, " to reach ",
                      ReachRule::Text(*from));
  }
  return text;
}

std::string ReachWatch::WaitingForAnswers() const {
  std::string text;
  for (const auto& [task, worker] : roster_->workers()) {
    if (worker.held.empty()) continue;
    if (worker.progress.awaits().empty()) return "";  // The job makes progress through this worker.
    if (text.size() < kTextBytesMax)
      absl::StrAppend(&text, text.empty() ? "" : ", ", "an answer to worker/", worker.identity,
                      " by ", worker.progress.awaits());
  }
  return text;
}

}  // namespace evergrad::coordinator
