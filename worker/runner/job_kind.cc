#include "worker/runner/job_kind.h"

#include "worker/runner/describe_run.h"
#include "worker/runner/evaluation_run.h"
#include "worker/runner/function_run.h"
#include "worker/runner/training_run.h"

namespace evergrad::worker {
namespace {

class TrainingKind final : public JobKind {
 public:
  absl::string_view type() const override { return "training"; }

  std::shared_ptr<AttemptRun> MakeRun(const Parts& parts, const Work& work) const override {
    if (work.kind == WorkKind::kDescribe)
      return std::make_shared<DescribeRun>(
          parts.run, work, [compute = parts.run.job->compute()] { return compute->Describe(); });
    if (work.kind == WorkKind::kEvaluate)
      return std::make_shared<EvaluationRun>(parts.run, work, parts.streams);
    return std::make_shared<TrainingRun>(
        parts.run, work, parts.measures,
        TrainingRun::Options{parts.streams, parts.device, parts.skip_not_finite});
  }
};

class FunctionsKind final : public JobKind {
 public:
  absl::string_view type() const override { return "functions"; }
  bool opens_input() const override { return false; }

  absl::Status Check(WorkKind kind) const override {
    if (kind != WorkKind::kDescribe) return absl::OkStatus();
    return absl::InternalError("a worker cannot describe a functions job");
  }

  std::shared_ptr<AttemptRun> MakeRun(const Parts& parts, const Work& work) const override {
    return std::make_shared<FunctionRun>(parts.run, work, parts.measures, parts.functions,
                                         parts.skip_not_finite);
  }
};

}  // namespace

const JobKind* FindJobKind(absl::string_view type, const std::vector<const JobKind*>& more) {
  static const TrainingKind training;
  static const FunctionsKind functions;
  for (const JobKind* kind : std::initializer_list<const JobKind*>{&training, &functions})
    if (kind->type() == type) return kind;
  for (const JobKind* kind : more)
    if (kind->type() == type) return kind;
  return nullptr;
}

}  // namespace evergrad::worker
