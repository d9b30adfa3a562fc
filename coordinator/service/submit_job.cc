#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/config/job_type.h"
#include "common/fs/file.h"
#include "common/fs/object_uri.h"
#include "common/grants/grant_proof.h"
#include "common/random/philox.h"
#include "coordinator/service/job_calls.h"

namespace evergrad::coordinator {
namespace {

// Returns the spec of a job that may be submitted. Otherwise the error names all mistakes in the
// YAML, a counting job without --failpoints, or a folder for checkpoints that is not in an allowed
// folder.
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
  if (config::TypeOf(spec).for_tests_only && !control.counting_allowed) {
    return UserError(absl::FailedPreconditionError(absl::StrCat(
        "spec.type ", spec.type, " is for fault tests: start the daemons with --failpoints")));
  }
  if (spec.name.size() == 16 &&
      spec.name.find_first_not_of("0123456789abcdef") == std::string::npos) {
    return UserError(
        absl::InvalidArgumentError(absl::StrCat("metadata.name has 16 hexadecimal digits, like the "
                                                "uid of a job; choose another name: name=",
                                                spec.name)));
  }
  if (const std::string& directory = spec.checkpoint.directory; !directory.empty()) {
    EG_RETURN_IF_ERROR(UserError(fs::CheckUri(directory)));
    const bool in_store = fs::IsObjectUri(directory);
    if (!control.checkpoint_roots.Names(in_store ? directory : *fs::LocalPath(directory)))
      return control.checkpoint_roots.Refusal("checkpoint.directory", directory);
  }
  return std::move(spec);
}

constexpr std::size_t kRequestIdBytesMax = 256;

v1::SubmitJobResponse ResponseFor(const Job& job) {
  v1::SubmitJobResponse response;
  response.set_job_uid(job.uid().value());
  response.set_name(job.name());
  response.set_state(std::string(JobStateName(job.state())));
  v1::JobStatus status;
  job.FillStatus(&status, ~0ull);
  response.set_runs_folder(status.runs_folder());
  return response;
}

}  // namespace

// Returns the newest job that the caller has submitted with this request_id, or null.
const Job* JobCalls::FindRequest(const std::string& request_id, const Caller& caller) const {
  if (request_id.empty()) return nullptr;
  const std::vector<JobUid>& order = parts_.jobs->by_submission();
  for (auto uid = order.rbegin(); uid != order.rend(); ++uid) {
    const Job* job = parts_.jobs->Get(*uid);
    if (job != nullptr && job->request_id() == request_id && job->owner() == caller.task)
      return job;
  }
  return nullptr;
}

// Submits a job. In addition to the errors of ReadSpec it refuses a name that a living job has, and
// a full queue.
void JobCalls::Serve(const v1::SubmitJobRequest& request, const Caller& caller,
                     const Responder& responder) {
  if (!parts_.store_watch->no_new_jobs().ok())
    return responder->Answer(parts_.store_watch->Refusal("no new work is accepted"));
  if (request.request_id().size() > kRequestIdBytesMax) {
    return responder->Answer(UserError(absl::InvalidArgumentError(
        absl::StrCat("request_id is too long: bytes=", request.request_id().size(),
                     " max=", kRequestIdBytesMax))));
  }
  if (const Job* job = FindRequest(request.request_id(), caller)) {
    return parts_.gate->WhenDurable(
        [responder, response = ResponseFor(*job)] { AnswerWith(*responder, response); });
  }
  absl::StatusOr<config::JobSpec> spec = ReadSpec(request, *parts_.options);
  if (!spec.ok()) return responder->Answer(spec.status());
  if (const Job* job = parts_.jobs->FindLiving(spec->name)) {
    return responder->Answer(UserError(absl::AlreadyExistsError(absl::StrCat(
        "the name belongs to a job that has not ended: name=", spec->name,
        " job_uid=", JobUidString(job->uid()), " state=", JobStateName(job->state())))));
  }
  if (parts_.jobs->queued() >= parts_.options->jobs_queued_max) {
    parts_.metrics->jobs_queued.refused.Add();
    return responder->Answer(absl::ResourceExhaustedError(
        absl::StrCat("too many jobs queued: limit=", parts_.options->jobs_queued_max)));
  }
  Job::Identity identity;
  do {
    identity.uid = JobUid(random::EntropyFromOs());
  } while (identity.uid.value() == 0 || parts_.jobs->Contains(identity.uid));
  identity.grant_key = grants::NewKey();
  identity.owner = caller.task;
  identity.request_id = request.request_id();
  identity.yaml = config::EmitSubmission(*spec);
  identity.runs_folder =
      absl::StrCat(parts_.options->runs_folder, "/", spec->name, "-", JobUidString(identity.uid));
  identity.spec = *std::move(spec);
  const JobUid uid = identity.uid;
  Job* const job =
      parts_.jobs->Add(std::make_unique<Job>(host_, parts_.options->jobs, std::move(identity)));
  if (parts_.jobs->full()) parts_.metrics->jobs_running.refused.Add();  // this job must wait
  if (!job->Keep()) {
    parts_.jobs->TakeBack(uid);
    return responder->Answer(parts_.store_watch->Refusal("the job was not accepted"));
  }
  parts_.metrics->submitted.Add();

  supervisor_->StartNext();
  parts_.gate->WhenDurable([this, responder, response = ResponseFor(*job)] {
    // The place of the store is checked once more after the job's commit. If the next start would
    // not find the job, the job is cancelled. No client knows the job yet.
    supervisor_->CheckStorePlace();
    if (parts_.store_watch->place().ok()) return AnswerWith(*responder, response);
    if (Job* lost = parts_.jobs->Get(JobUid(response.job_uid()))) lost->Cancel();
    responder->Answer(parts_.store_watch->Refusal("the job was not accepted"));
  });
}

}  // namespace evergrad::coordinator
