#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/fs/file.h"
#include "common/grants/grant_proof.h"
#include "common/random/philox.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {
namespace {

// Returns the spec of a job that may be submitted. Otherwise the error names all mistakes in the
// YAML, a counting job without --failpoints, or a folder for checkpoints outside of the allowed
// ones.
absl::StatusOr<config::JobSpec> ReadSpec(const v1::SubmitJobRequest& request,
                                         const ControlOptions& control) {
  config::ParseOptions options;
  options.file_name =
      request.source_name().empty() ? "job.yaml" : request.source_name().substr(0, 1024);
  options.submission = true;
  config::ParsedJob parsed = config::ParseJob(request.yaml(), options);
  if (!parsed.spec) {
    std::string text;
    for (const config::Mistake& mistake : parsed.mistakes) {
      if (text.size() > 3000) break;
      absl::StrAppend(&text, text.empty() ? "" : "\n", mistake.ToString());
    }
    return UserError(absl::InvalidArgumentError(text));
  }
  config::JobSpec& spec = *parsed.spec;
  if (spec.type == "counting" && !control.counting_allowed) {
    return UserError(absl::FailedPreconditionError(
        "spec.type counting is for fault tests: start the daemons with --failpoints"));
  }
  if (const std::string& directory = spec.checkpoint.directory; !directory.empty()) {
    const auto path = fs::LocalPath(directory);
    if (!path.ok()) return UserError(path.status());
    if (!control.checkpoint_roots.Names(*path))
      return control.checkpoint_roots.Refusal("checkpoint.directory", directory);
  }
  return std::move(spec);
}

}  // namespace

// Refuses what ReadSpec refuses, the name of a living job, and any job while the queue is full.
template <>
void ControlPlane::Serve(const v1::SubmitJobRequest& request, Responder responder) {
  if (!store_.no_new_jobs().ok())
    return responder->Answer(store_.Refusal("no new work is accepted"));
  absl::StatusOr<config::JobSpec> spec = ReadSpec(request, options_);
  if (!spec.ok()) return responder->Answer(spec.status());
  if (const Job* job = jobs_.FindLiving(spec->name)) {
    return responder->Answer(UserError(absl::AlreadyExistsError(absl::StrCat(
        "the name belongs to a living job: name=", spec->name,
        " job_uid=", JobUidString(job->uid()), " state=", JobStateName(job->state())))));
  }
  if (jobs_.queued() >= options_.jobs_queued_max) {
    metrics_.jobs_queued.refused.Add();
    return responder->Answer(absl::ResourceExhaustedError(
        absl::StrCat("too many jobs queued: limit=", options_.jobs_queued_max)));
  }
  Job::Identity identity;
  do {
    identity.uid = JobUid(random::EntropyFromOs());
  } while (identity.uid.value() == 0 || jobs_.Contains(identity.uid));
  identity.grant_key = grants::NewKey();
  identity.yaml = config::EmitSubmission(*spec);
  identity.runs_folder =
      absl::StrCat(options_.runs_folder, "/", spec->name, "-", JobUidString(identity.uid));
  identity.spec = *std::move(spec);
  const JobUid uid = identity.uid;
  Job* const job =
      jobs_.Add(std::make_unique<Job>(job_host_.get(), options_.jobs, std::move(identity)));
  if (jobs_.full()) metrics_.jobs_running.refused.Add();  // the job waits in the queue
  if (!job->Keep()) {
    jobs_.TakeBack(uid);
    return responder->Answer(store_.Refusal("the job was not accepted"));
  }
  metrics_.submitted.Add();

  StartNextJob();
  v1::SubmitJobResponse response;
  response.set_job_uid(uid.value());
  response.set_name(job->name());
  response.set_state(std::string(JobStateName(job->state())));
  v1::JobStatus status;
  job->FillStatus(&status, ~0ull);
  response.set_runs_folder(status.runs_folder());
  WhenDurable([this, responder, response = std::move(response)] {
    // The place is checked as it is now, with the job's commit. Nobody has been told of the job
    // yet, and the next start might not find the job.
    CheckStorePlace();
    if (store_.place().ok()) return AnswerWith(*responder, response);
    if (Job* lost = jobs_.Get(JobUid(response.job_uid()))) lost->Cancel();
    responder->Answer(store_.Refusal("the job was not accepted"));
  });
}

}  // namespace evergrad::coordinator
