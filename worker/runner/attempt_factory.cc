#include "worker/runner/attempt_factory.h"

#include "worker/runner/counting_run.h"
#include "worker/runner/describe_run.h"
#include "worker/runner/evaluation_run.h"
#include "worker/runner/function_run.h"
#include "worker/runner/training_run.h"

namespace evergrad::worker {

std::shared_ptr<AttemptRun> AttemptFactory::Make(const Work& work, JobContext* job,
                                                 const v1::Stamp& registration) {
  AttemptRun::Environment environment = env_.run;
  environment.job = job;
  environment.exchange.cache = job->cache();
  environment.exchange.job = job->uid();
  environment.exchange.registration = registration;
  switch (work.kind) {
    case WorkKind::kDescribe: return std::make_shared<DescribeRun>(environment, work);
    case WorkKind::kExport:
      return std::make_shared<ExportRun>(environment, work,
                                         ExportRun::Options{env_.send, env_.host, &disk_full_});
    case WorkKind::kEvaluate:
      if (job->counting()) return MakeCountingRun(environment, work, env_.measures);
      return std::make_shared<EvaluationRun>(environment, work, env_.streams);
    case WorkKind::kTrain: break;
  }
  if (job->counting()) return MakeCountingRun(environment, work, env_.measures);
  if (job->functions())
    return std::make_shared<FunctionRun>(environment, work, env_.measures, env_.functions,
                                         env_.skip_not_finite);
  return std::make_shared<TrainingRun>(
      environment, work, env_.measures,
      TrainingRun::Options{env_.streams, env_.device, env_.skip_not_finite});
}

}  // namespace evergrad::worker
