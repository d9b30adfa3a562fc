#include "worker/backend/cuda/plan_cache.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "worker/backend/cuda/algorithm_choice.h"
#include "worker/backend/cuda/library.h"

namespace evergrad::worker {
namespace {

constexpr std::int32_t kCandidatesMax = 8, kFirstMax = 4;
constexpr int kMeasuredRuns = 3;  // the first run warms up

}  // namespace

bool PlanCache::Run(const char* name, EgPlanKey key, const EgPlanArguments& arguments) {
  if (!error_->ok()) return true;
  recorder_->EndWait();
  key.reserved = fastest_ ? 1 : 0;
  auto choice = choices_.find(Key{key});
  if (choice != choices_.end() && !choice->second.no_memory.empty() &&
      (work_->device()->use(false).used < choice->second.used_then ||
       ++choice->second.asked_since == kAskedAgain)) {
    choices_.erase(choice);
    choice = choices_.end();
  }
  if (choice == choices_.end()) {
    recorder_->StopCapture("a plan had to be made");
    if (choices_.size() >= kPlansMax) Forget();
    if (!MakeChoice(name, key, arguments)) return true;
    choice = choices_.find(Key{key});
  }
  const Choice& chosen = choice->second;
  if (chosen.plan == nullptr) return false;
  if (chosen.workspace_bytes > 0 &&
      work_->Grow(WorkPiece::kWorkspace, static_cast<std::int64_t>(chosen.workspace_bytes)) ==
          nullptr)
    return true;
  EgPlanArguments with_workspace = arguments;
  with_workspace.workspace = work_->data(WorkPiece::kWorkspace);
  with_workspace.workspace_bytes = chosen.workspace_bytes;
  recorder_->RunPlan(name, chosen.plan, with_workspace);
  return true;
}

const PlanCache::Choice* PlanCache::Find(EgPlanKey key) const {
  key.reserved = fastest_ ? 1 : 0;
  const auto choice = choices_.find(Key{key});
  return choice == choices_.end() ? nullptr : &choice->second;
}

// Measures the candidate plans on the arrays of the call. The outputs of the call may be
// overwritten, because the call itself overwrites them. Returns false if an error was stored.
bool PlanCache::MakeChoice(const char* name, const EgPlanKey& key,
                           const EgPlanArguments& arguments) {
  EgCudaError error{};
  EgPlanInfo infos[kCandidatesMax];
  std::int32_t count = 0;
  Choice choice;
  const std::int32_t offered =
      api_->plans(context_, &key, infos, fastest_ ? kCandidatesMax : kFirstMax, &count, &error);
  if (offered == EG_CUDA_BAD_SHAPE)  // the library has no plan, and reports why
    count = 0, choice.refused = error.text;
  else if (!error_->Check(name, offered, error))
    return false;
  std::vector<AlgorithmCandidate> candidates;
  candidates.reserve(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i)
    candidates.push_back({infos[i].workspace_bytes, infos[i].deterministic != 0});
  std::vector<EgPlan*> made(candidates.size(), nullptr);
  const auto try_one = [&](std::size_t i) -> absl::StatusOr<double> {
    EgCudaError failed{};
    absl::StatusOr<double> seconds = 0.0;
    if (api_->make_plan(context_, &key, static_cast<std::int32_t>(i), &made[i], &failed) !=
        EG_CUDA_OK)
      seconds = StatusOf(failed);
    else if (fastest_)
      seconds = Measure(made[i], candidates[i].workspace_bytes, arguments);
    if (absl::IsResourceExhausted(seconds.status()))
      choice.no_memory = std::string(seconds.status().message());
    return seconds;
  };
  const absl::StatusOr<AlgorithmChoice> chosen =
      ChooseAlgorithm(candidates, workspace_bytes_max_, !fastest_, try_one);
  choice.used_then = work_->device()->use(false).used;
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (made[i] == nullptr) continue;
    if (chosen.ok() && i == chosen->index)
      choice = {made[i], candidates[i].workspace_bytes};
    else
      api_->drop_plan(made[i]);
  }
  choices_[Key{key}] = choice;
  if (choice.plan != nullptr) ++stats_.made;
  if (fastest_ && chosen.ok()) stats_.measured += chosen->measured;
  return error_->ok();
}

absl::StatusOr<double> PlanCache::Measure(EgPlan* plan, std::uint64_t workspace_bytes,
                                          EgPlanArguments arguments) {
  if (workspace_bytes > 0 &&
      work_->Grow(WorkPiece::kWorkspace, static_cast<std::int64_t>(workspace_bytes)) == nullptr)
    return error_->Take();
  arguments.workspace = work_->data(WorkPiece::kWorkspace);
  arguments.workspace_bytes = workspace_bytes;
  EgCudaError error{};
  EgEvent *begin = nullptr, *end = nullptr;
  float best = std::numeric_limits<float>::infinity();
  const auto measured = [&]() -> std::int32_t {
    std::int32_t kind = api_->make_event(context_, 1, &begin, &error);
    if (kind == EG_CUDA_OK) kind = api_->make_event(context_, 1, &end, &error);
    for (int run = 0; run < kMeasuredRuns && kind == EG_CUDA_OK; ++run) {
      float milliseconds = 0;
      kind = api_->record(context_, EG_LANE_COMPUTE, begin, &error);
      if (kind == EG_CUDA_OK) kind = api_->run_plan(context_, plan, &arguments, &error);
      if (kind == EG_CUDA_OK) kind = api_->record(context_, EG_LANE_COMPUTE, end, &error);
      if (kind == EG_CUDA_OK) kind = api_->wait(end, &error);
      if (kind == EG_CUDA_OK) kind = api_->milliseconds(begin, end, &milliseconds, &error);
      if (kind == EG_CUDA_OK && run > 0) best = std::min(best, milliseconds);
    }
    return kind;
  };
  const std::int32_t kind = measured();
  for (EgEvent* const event : {begin, end})
    if (event != nullptr) api_->drop_event(event);
  if (kind != EG_CUDA_OK) return StatusOf(error);
  return static_cast<double>(best) * 1e-3;
}

// Queued work may run the plans' code, so this work must end first. Graphs contain the plans, so
// the graphs are captured again.
void PlanCache::Forget() {
  recorder_->StopCapture("plans were discarded");
  EgCudaError error{};
  EgEvent* done = nullptr;
  if (error_->Check("plans", api_->make_event(context_, 0, &done, &error), error)) {
    if (error_->Check("plans", api_->record(context_, EG_LANE_COMPUTE, done, &error), error))
      error_->Check("plans", api_->wait(done, &error), error);
    api_->drop_event(done);
  }
  Drop();
  choices_.clear();
  ++generation_;
}

void PlanCache::Drop() {
  for (const auto& [key, choice] : choices_)
    if (choice.plan != nullptr) api_->drop_plan(choice.plan);
}

}  // namespace evergrad::worker
