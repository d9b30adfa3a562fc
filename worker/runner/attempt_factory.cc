#include "worker/runner/attempt_factory.h"

namespace evergrad::worker {

std::shared_ptr<AttemptRun> AttemptFactory::Make(const Work& work, JobContext* job,
                                                 const v1::Stamp& registration) {
  JobKind::Parts parts = env_.parts;
  parts.run.job = job;
  parts.run.exchange.cache = job->cache();
  parts.run.exchange.job = job->uid();
  parts.run.exchange.registration = registration;
  if (work.kind == WorkKind::kExport)
    return std::make_shared<ExportRun>(parts.run, work,
                                       ExportRun::Options{env_.send, env_.host, &disk_full_});
  return job->kind().MakeRun(parts, work);
}

}  // namespace evergrad::worker
