#include "worker/runner/job_context.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "worker/runner/job_kind.h"
#include "worker/runner/shortfall.h"

namespace evergrad::worker {
namespace {

std::uint64_t EvalNumber(const Work& work) { return work.closure.value() & 0xffffffff; }

}  // namespace

JobContext::JobContext(const v1::JobInfo& info, Environment environment)
    : env_(std::move(environment)), uid_(info.job_uid()), name_(info.name()), seed_(info.seed()) {
  Read(info);
  Learn(info);
}

void JobContext::Read(const v1::JobInfo& info) {
  config::ParseOptions parse;
  parse.file_name = "job.yaml";  // the name of the job file in the runs folder
  parse.submission = true;
  config::ParsedJob parsed = config::ParseJob(info.yaml(), parse);
  if (!parsed.spec) {
    const std::string first =
        parsed.mistakes.empty() ? "no reason given" : parsed.mistakes.front().ToString();
    spec_error_ = WithShortfall(Shortfall::kAbility,
                                absl::InvalidArgumentError(absl::StrCat(
                                    "the job's YAML cannot be read by this worker: ", first)));
    return;
  }
  spec_ = std::make_shared<const config::JobSpec>(*std::move(parsed.spec));
  compute_ = std::make_shared<ComputeJob>(spec_, seed_, env_.backend, env_.data, env_.data_limit);
  kind_ = FindJobKind(spec_->type, env_.more_kinds);
  // Workers without --failpoints lack the types of jobs that are for tests only.
  if (kind_ == nullptr)
    spec_error_ = WithShortfall(Shortfall::kAbility, absl::FailedPreconditionError(absl::StrCat(
                                                         "jobs of this type run only on daemons "
                                                         "started with --failpoints: spec.type=",
                                                         spec_->type)));
}

void JobContext::Learn(const v1::JobInfo& info) {
  runs_folder_ = info.runs_folder();
  if (info.has_plan() && plan_ == nullptr) SetPlan(info.plan());
}

void JobContext::SetPlan(const v1::Plan& proto) {
  auto plan = plan::Plan::Create(client::PlanSpecOf(proto));
  auto layout = Layout::FromPlan(proto);
  plan_error_ = plan.ok() ? layout.status() : plan.status();
  data_fingerprint_ = proto.data_fingerprint();
  if (!plan_error_.ok()) return;
  plan_ = std::make_shared<const plan::Plan>(*std::move(plan));
  layout_ = std::make_shared<const Layout>(*std::move(layout));
  cache_ = std::make_unique<PullCache>(layout_, env_.allocate);
}

ComputeJob::Needs JobContext::NeedsOf(WorkKind kind) const {
  if (!kind_->opens_input()) return {};
  switch (kind) {
    case WorkKind::kTrain: return {true, false, true};
    case WorkKind::kEvaluate: return {false, true, true};
    case WorkKind::kDescribe: return {true, true, true};
    case WorkKind::kExport:  // vocabularies are built from the training data
      return {NeedsTrain(spec_->data.fields), false, false};
  }
  return {};
}

absl::Status JobContext::Check(WorkKind kind) const {
  EG_RETURN_IF_ERROR(spec_error_);
  EG_RETURN_IF_ERROR(kind_->Check(kind));
  return kind == WorkKind::kDescribe ? absl::OkStatus() : plan_error_;
}

absl::Status JobContext::CheckPlanHas(const Work& work) const {
  if (work.kind == WorkKind::kTrain && work.closure.value() >= plan_->closures())
    return absl::InvalidArgumentError(absl::StrCat(
        "closure beyond the plan: closures=", plan_->closures(), " got=", work.closure.value()));
  if (work.kind == WorkKind::kEvaluate && EvalNumber(work) >= plan_->eval_closures())
    return absl::InvalidArgumentError(
        absl::StrCat("evaluation closure beyond the plan: closures=", plan_->eval_closures(),
                     " got=", EvalNumber(work)));
  for (const ShardId shard : work.targets) {
    if (shard.value() >= layout_->shard_count())
      return absl::InvalidArgumentError(absl::StrCat(
          "target beyond the plan: shards=", layout_->shard_count(), " got=", shard.value()));
  }
  return absl::OkStatus();
}

plan::ClosureRange JobContext::EvalRange(const Work& work) const {
  return plan_->EvalClosure(EvalNumber(work));
}

void JobContext::FillProgress(v1::WorkerProgress* progress) const {
  progress->set_job_uid(uid_.value());
  progress->set_steps(steps);
  progress->set_examples(examples);
}

}  // namespace evergrad::worker
