#include "tests/simulation/job_resume.h"

#include <utility>

#include "common/base/check.h"

namespace evergrad::simulation {
namespace {

// The most jobs in a walk: the first one, and those that resume it.
constexpr std::uint64_t kJobsMax = 3;

}  // namespace

std::optional<std::vector<Snapshot>> JobResume::FindFiles(const char* counted_as) {
  if (parts_.book.job().value() >= kJobsMax) return std::nullopt;
  const ManifestFile* from = parts_.folder.ResumePoint();
  if (from == nullptr) return std::nullopt;
  walk_.Count(counted_as);
  walk_.Trace("resumes from manifest ", from->number, " of job ", from->job.value());
  parts_.evaluation.ResumeFrom(from->evaluated);
  return from->shards;
}

void JobResume::AfterEnd() {
  auto files = FindFiles("resumed after the end");
  if (!files) return;
  JournaledBook& book = parts_.book;
  book.Settle();
  const Term term = book.state().term;
  EG_CHECK(parts_.journal.store().Remove(book.job()).ok());
  parts_.journal.MakeDurable();
  BeginNextJob();
  coordinator_.BeginJob(term);
  BeginFrom(*std::move(files));
}

void JobResume::AfterLoss() {
  auto files = FindFiles("resumed after the loss of the cluster");
  if (!files) return;
  LoseCluster();
  BeginNextJob();
  coordinator_.Start();
  BeginFrom(*std::move(files));
}

void JobResume::LoseCluster() {
  if (coordinator_.running()) coordinator_.Kill();
  parts_.tasks.Each([&](Task& t) { parts_.book.EndSession(t); });
  parts_.tasks.LoseMost();
  parts_.journal.LoseAll();
  coordinator_.ForgetLives();
}

void JobResume::BeginNextJob() {
  const JobUid next(parts_.book.job().value() + 1);
  parts_.book.BeginJob(next);
  parts_.checker.BeginJob(next);
  parts_.early_end.BeginJob();
  parts_.evaluation.Clear();
  parts_.rounds.Clear();
}

void JobResume::BeginFrom(std::vector<Snapshot> snapshots) {
  JournaledBook& book = parts_.book;
  book->CloseWindow();  // no task has any part of this job
  std::vector<const HeldState*> states;
  for (std::uint32_t p = 0; p < kShards; ++p) {
    const HeldState& state = *parts_.folder.Find(snapshots[p].Uri())->state;
    states.push_back(&state);
    parts_.checker.ResumeShard(p, state.shard->ledger());
    snapshots[p].resumed = true;
  }
  parts_.end_checks.ResumeFrom(snapshots, states);
  book.Commit(book->ResumeFrom(std::move(snapshots)));
  book.Settle();
  book->SetNewLimit(parts_.evaluation.limit());
  book.ResumeCancelled(book.state().dead);
  parts_.checker.ForgetCancelsTold();
  parts_.end_checks.BeginResumed(book.state().succeeded);
}

}  // namespace evergrad::simulation
