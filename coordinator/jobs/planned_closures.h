// The closures of a plan. Closures are granted in order, epoch by epoch, up to the next barrier,
// and less than closures_behind_max beyond the oldest closure that has not ended.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/jobs/closure_source.h"
#include "coordinator/jobs/job_kind.h"

namespace evergrad::coordinator {

class PlannedClosures final : public ClosureSource {
 public:
  // `kind` outlives this object.
  PlannedClosures(const JobPart& part, const ClosureSourceParts& parts, const JobKind* kind)
      : ClosureSource(part, parts), kind_(kind) {}

  std::uint64_t Limit() const override { return parts_.epochs->BarrierClosure(); }
  void UpdateNewLimit() override;
  void Grant(Granter& granter, JobWorkers& workers) override;
  std::uint64_t UsefulWorkers(std::size_t workers) const override;
  std::uint64_t WantedWorkers() const override;
  std::uint64_t TakeWindowRefusals() override { return std::exchange(window_refusals_, 0); }

  absl::Status Check(const v1::Done& done) const override;
  void OnCounted(const std::string& worker, ClosureId closure, const v1::Done& done) override;
  std::uint64_t StepsOf(ClosureId closure, const v1::Done& done) const override;
  OnError Judge(bool user_error, bool repair, std::uint32_t failures) const override;
  std::uint64_t OnLost(ClosureId closure) override { return plan_->Closure(closure).steps; }
  std::string NameOf(ClosureId closure) const override;

  std::string ReadyText(const v1::DescribeResult& described) const override;
  UpdateAccount::Finding CompareUpdates(const std::vector<v1::ShardState>& shards) const override;
  void FillStatus(v1::JobStatus* status) const override;
  absl::Status ReadNote(const v1::JobNote& note, bool ended) override;

 private:
  class Policy;
  void CheckWindow(MonoTime now);
  void Count(const std::string& worker, ClosureId closure, std::uint64_t examples, double loss_sum,
             std::vector<TrainedStep> steps, const EpochAccount::Context& context);

  const JobKind* const kind_;
  bool window_full_ = false, window_said_ = false;
  MonoTime window_full_at_{0};
  std::uint64_t window_refusals_ = 0;
};

}  // namespace evergrad::coordinator
