#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/fs/file.h"
#include "common/grants/grant_proof.h"
#include "common/random/philox.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

// Refused: mistakes in the YAML (all of them), a counting job without --failpoints, a name that a
// live job has, a full queue.
template <>
void ControlPlane::Serve(const v1::SubmitJobRequest& request, Responder responder) {
  if (!NoNewJobs().ok()) return responder->Answer(StoreRefusal("no new work is accepted"));
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
    return responder->Answer(UserError(absl::InvalidArgumentError(text)));
  }
  config::JobSpec& spec = *parsed.spec;
  if (spec.type == "counting" && !options_.counting_allowed) {
    return responder->Answer(UserError(absl::FailedPreconditionError(
        "spec.type counting is for fault tests: start the daemons with --failpoints")));
  }
  if (const std::string& directory = spec.checkpoint.directory; !directory.empty()) {
    const auto path = fs::LocalPath(directory);
    if (!path.ok()) return responder->Answer(UserError(path.status()));
    if (!options_.checkpoint_roots.Names(*path))
      return responder->Answer(
          options_.checkpoint_roots.Refusal("checkpoint.directory", directory));
  }
  for (const auto& [uid, job] : jobs_) {
    if (!job->ended() && job->name() == spec.name) {
      return responder->Answer(UserError(absl::AlreadyExistsError(
          absl::StrCat("a live job has this name: name=", spec.name, " job_uid=", JobUidString(uid),
                       " state=", JobStateName(job->state())))));
    }
  }
  if (queue_.size() >= options_.jobs_queued_max) {
    metrics_.jobs_queued.refused.Add();
    return responder->Answer(absl::ResourceExhaustedError(
        absl::StrCat("too many jobs queued: limit=", options_.jobs_queued_max)));
  }
  Job::Identity identity;
  do {
    identity.uid = JobUid(random::EntropyFromOs());
  } while (identity.uid.value() == 0 || jobs_.count(identity.uid) != 0);
  identity.grant_key = grants::NewKey();
  identity.yaml = config::EmitSubmission(spec);
  identity.runs_folder =
      absl::StrCat(options_.runs_folder, "/", spec.name, "-", JobUidString(identity.uid));
  identity.spec = std::move(spec);
  const JobUid uid = identity.uid;
  Job* job =
      (jobs_[uid] = std::make_unique<Job>(job_host_.get(), options_.jobs, std::move(identity)))
          .get();
  job_order_.push_back(uid);
  queue_.push_back(uid);
  if (active_.size() >= options_.jobs_running_max) metrics_.jobs_running.refused.Add();  // it waits
  if (!job->Keep()) {
    job_order_.pop_back();
    queue_.pop_back();
    jobs_.erase(uid);
    return responder->Answer(StoreRefusal("the job was not accepted"));
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
    CheckStorePlace();  // as found with its commit: nobody has been told of it yet, and the next
                        // start might not know it
    if (store_place_.ok()) return AnswerWith(*responder, response);
    if (const auto lost = jobs_.find(JobUid(response.job_uid())); lost != jobs_.end())
      lost->second->Cancel();
    responder->Answer(StoreRefusal("the job was not accepted"));
  });
}

}  // namespace evergrad::coordinator
