#include "coordinator/jobs/worker_claims.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/grants/grant_proof.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

// Largest number of answers about one closure that claim a later attempt.
constexpr std::uint32_t kSupersededMax = 8;

UpdateAccount::TouchedLess LessOf(const v1::TouchedLess& said) {
  UpdateAccount::TouchedLess less;
  for (int i = 0; i < std::min(said.shards_size(), said.updates_size()); ++i)
    less.emplace_back(said.shards(i), said.updates(i));
  return less;
}

std::string NameOf(const v1::ShardState& state) {
  return state.row_end() == 0 ? state.variable()
                              : absl::StrCat(state.variable(), " rows ", state.row_begin(), "-",
                                             state.row_end() - 1);
}

}  // namespace

// ---------------------------------------------------------------- grants

std::string WorkerClaims::ProofOf(const std::string& worker, ClosureId closure,
                                  Attempt attempt) const {
  if (id_.grant_key.empty()) return std::string();
  return grants::MakeProof(id_.grant_key, id_.uid, closure, attempt, worker);
}

bool WorkerClaims::IsProved(const v1::HeldAttempt& held, Attempt attempt) const {
  return id_.grant_key.empty() ||
         grants::ProofFits(held.proof(), id_.grant_key, id_.uid, ClosureId(held.closure()), attempt,
                           held.granted_to());
}

// The coordinator has granted no later attempt, so no shard can have seen a later attempt.
bool WorkerClaims::OnSuperseded(ClosureId closure, ShardId shard, const std::string& worker) {
  const std::uint32_t times = ++superseded_[closure.value()];
  if (times < kSupersededMax) return true;
  job_.Fail(
      MakeError(absl::AbortedError(absl::StrCat(
                    "a shard reports an attempt that the coordinator never granted: another "
                    "process forges attempts, or the shard has the state of another job: closure=",
                    closure.value(), " shard=", shard.value(), " times=", times)),
                "fenced", absl::StrCat("worker/", worker)),
      false);
  return false;
}

// ---------------------------------------------------------------- the number of updates

absl::Status WorkerClaims::Check(const v1::Done& done) const {
  if (!done.has_touched() || !plan_ || done.closure() >= plan_->closures()) return absl::OkStatus();
  if (done.touched().shards_size() != done.touched().updates_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a Done has lists of different lengths for shards and their updates: shards=",
                     done.touched().shards_size(), " numbers=", done.touched().updates_size()));
  }
  return UpdateAccount::Check(LessOf(done.touched()), shards_.size(),
                              plan_->Closure(ClosureId(done.closure())).steps);
}

void WorkerClaims::Count(ClosureId closure, const v1::TouchedLess* said) {
  account_.Count(plan_->Closure(closure).steps,
                 said == nullptr ? std::nullopt : std::optional(LessOf(*said)));
}

void WorkerClaims::TakeOver(const ResumePoint& point, bool same_plan) {
  // Files that the coordinator cannot read may hold a part of an epoch that this job does not have.
  // More updates than the job has made are then no error.
  const bool beyond = !point.updates && plan_message_.epochs() < point.manifest.plan().epochs();
  account_.TakeOver({point.updates, point.whole, !same_plan || beyond});
}

UpdateAccount::Finding WorkerClaims::Compare(
    const std::vector<v1::ShardState>& states,
    const std::function<bool(const v1::ShardSpec&)>& by_plan) const {
  std::vector<UpdateAccount::Shard> shards;
  for (const v1::ShardState& state : states) {
    const v1::ShardSpec& spec = plan_message_.shards(static_cast<int>(state.shard()));
    shards.push_back(
        {state.shard(), NameOf(state), by_plan(spec), state.updates_applied() + state.skips()});
  }
  const DurableState& durable = book_->durable();
  return account_.Compare(
      *plan_, {durable.succeeded, durable.dead, epochs_->resumed(), durable.lost}, shards);
}

bool WorkerClaims::Accept(const UpdateAccount::Finding& finding) {
  updates_exact_ = finding.verdict == UpdateAccount::Verdict::kExact;
  if (finding.verdict != UpdateAccount::Verdict::kDifferent) return true;
  job_.Fail(MakeError(absl::DataLossError(
                          absl::StrCat(finding.difference,
                                       ": a worker reported work that it did not do, or a "
                                       "server lost updates unnoticed")),
                      "mismatch", "coordinator"),
            false);
  return false;
}

// ---------------------------------------------------------------- the journal

void WorkerClaims::Fill(v1::JobSnapshot* s) const {
  v1::UpdatesAccount& account = *s->mutable_updates();
  for (const auto& [shard, updates] : account_.touched_less()) {
    v1::ShardUpdates& one = *account.add_touched_less();
    one.set_shard(shard);
    one.set_updates(updates);
  }
  account.set_touched_unknown(account_.unreported());
  if (const auto& before = account_.before()) {
    for (std::size_t p = 0; before->updates && p < before->updates->size(); ++p) {
      v1::ShardUpdates& one = *account.add_before();
      one.set_shard(static_cast<std::uint32_t>(p));
      one.set_updates((*before->updates)[p]);
    }
    account.set_before_unknown(!before->updates);
    account.set_before_is_whole(before->whole);
    account.set_another_plan(before->another_plan);
  }
  account.set_exact(updates_exact_);
}

void WorkerClaims::Read(const v1::JobSnapshot& s) {
  if (!s.has_updates()) {
    // The build that wrote the snapshot did not count updates: the slots of its job are not
    // compared, and the updates that the job took over are unknown.
    std::optional<UpdateAccount::Before> before;
    if (!epochs_->resumed().empty())
      before = UpdateAccount::Before{std::nullopt, false, /*another_plan=*/true};
    return account_.Restore({}, /*unreported=*/s.has_plan(), std::move(before));
  }
  const v1::UpdatesAccount& account = s.updates();
  std::map<std::uint32_t, std::uint64_t> touched_less;
  for (const v1::ShardUpdates& one : account.touched_less())
    touched_less[one.shard()] = one.updates();
  std::optional<UpdateAccount::Before> before;
  if (account.before_unknown() || account.before_size() > 0) {
    before = UpdateAccount::Before{};
    before->whole = account.before_is_whole();
    before->another_plan = account.another_plan();
    if (!account.before_unknown()) {
      std::vector<std::uint64_t> updates(static_cast<std::size_t>(account.before_size()));
      for (const v1::ShardUpdates& one : account.before()) {
        if (one.shard() < updates.size()) updates[one.shard()] = one.updates();
      }
      before->updates = std::move(updates);
    }
  }
  account_.Restore(std::move(touched_less), account.touched_unknown(), std::move(before));
  updates_exact_ = account.exact();
}

}  // namespace evergrad::coordinator
