// The closures that clients schedule. A worker gets a closure only if it has the closure's
// function.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/function_calls.h"
#include "coordinator/jobs/function_closures.h"

namespace evergrad::coordinator {

class ScheduledClosures final : public ClosureSource {
 public:
  ScheduledClosures(const JobPart& part, const ClosureSourceParts& parts);

  bool has_callers() const override { return true; }
  FunctionCalls* calls() override { return &calls_; }

  std::uint64_t Limit() const override { return closures_.queue().next(); }
  void UpdateNewLimit() override { book_->SetNewLimit(Limit()); }
  void Grant(Granter& granter, JobWorkers& workers) override;
  void FillGrant(ClosureId closure, v1::Grant* grant) const override;
  std::uint64_t UsefulWorkers(std::size_t workers) const override;
  std::uint64_t WantedWorkers() const override;
  std::optional<std::set<std::string>> WantedFunctions(const JobWorkers& workers) const override;
  bool CanRun(const JobWorker& worker, ClosureId closure) const override;
  bool Knows(ClosureId closure) const override { return closure.value() < Limit(); }

  void OnCounted(const std::string& worker, ClosureId closure, const v1::Done& done) override;
  std::uint64_t StepsOf(ClosureId closure, const v1::Done& done) const override;
  OnError Judge(bool user_error, bool repair, std::uint32_t failures) const override;
  void FailClosure(ClosureId closure, v1::ErrorDetail cause) override;
  std::uint64_t OnLost(ClosureId closure) override;
  std::string NameOf(ClosureId closure) const override;

  std::string ReadyText(const v1::DescribeResult& described) const override;
  bool Complete() const override { return closures_.queue().finish(); }
  std::optional<std::string> IdleText() const override;
  std::string WaitingForWorker(const JobWorkers& workers, MonoTime now) const override;
  UpdateAccount::Finding CompareUpdates(const std::vector<v1::ShardState>& shards) const override;
  std::optional<Ends> CountedEnds() const override;
  void Clear() override { closures_.Clear(); }

  bool WantsRound() const override { return closures_.wants_round(); }
  void OnRoundTick() override { closures_.OnRoundTick(); }
  void OnRoundEnded() override { closures_.TrimArguments(); }
  void OnSaved(const v1::Manifest& manifest) override { closures_.OnSaved(manifest); }
  void CheckClosing() override { closures_.CheckClosing(); }

  void FillStatus(v1::JobStatus* status) const override;
  void FillResult(Json* json) const override;
  void Fill(v1::JobSnapshot* snapshot) const override;
  absl::Status Read(const v1::JobSnapshot& snapshot) override;
  absl::Status ReadNote(const v1::JobNote& note, bool ended) override;
  void BeginLife(Record* begun) override { closures_.BeginLife(begun); }

 private:
  class Policy;

  FunctionClosures closures_;
  FunctionCalls calls_;
};

}  // namespace evergrad::coordinator
