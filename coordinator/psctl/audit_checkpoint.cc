// Compares the ledgers of a checkpoint with its values and with the job's plan (job_audit.h).
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/config/job_spec.h"
#include "common/config/job_type.h"
#include "common/plan/counting_rows.h"
#include "common/plan/plan.h"
#include "common/sharding/slots.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/messages.h"
#include "common/snapshot/shard_file.h"
#include "coordinator/psctl/job_audit.h"

namespace evergrad::psctl {
namespace {

// Returns whether update u of closure c has rows in this shard (LEDGER line 3). Returns true for a
// table slot of a job with data, because only the data decide which slots an update touches.
// For a counting job (counted_ids > 0) the result is exact for table slots, too.
bool Touches(const plan::Plan& plan, const v1::Manifest& manifest, const v1::ShardSpec& spec,
             std::uint64_t counted_ids, ClosureId c, std::uint32_t u) {
  if (spec.has_slot()) {
    if (counted_ids == 0) return true;
    for (const v1::TableSpec& table : manifest.plan().tables()) {
      const std::uint64_t key = sharding::SlotKey(table.name());
      const plan::CountingRows rows =
          plan::CountingRowsOf(c.value(), u, table.index(), table.dimension(), counted_ids);
      if (std::any_of(rows.ids.begin(), rows.ids.end(), [&](std::int64_t id) {
            return sharding::SlotOf(key, id, spec.slot().slots()) == spec.slot().slot();
          }))
        return true;
    }
    return false;
  }
  if (spec.variable().name() != plan::kCountingSamples) return true;
  const std::vector<std::uint64_t> batch = plan.Batch(c, UpdateIndex(u));
  return std::any_of(batch.begin(), batch.end(), [&](std::uint64_t row) {
    return row >= spec.row_begin() && row < spec.row_end();
  });
}

// Calls `each` for every closure of the plan in `set`.
template <class Each>
void ForEach(const IntervalSet& set, std::uint64_t closures, Each each) {
  for (auto c = set.FirstAtLeast(0); c && *c < closures; c = set.FirstAtLeast(*c + 1)) each(*c);
}

// The facts about the job that the audit needs. These facts come from the YAML in the checkpoint's
// manifest.
struct AuditedJob {
  bool resumed = false;
  bool functions = false;  // a functions job: no plan states how many updates a closure has
  // Number of ids of the tables of a counting job. The number is 0 for other jobs, because their
  // data decide which slots have rows.
  std::uint64_t counted_ids = 0;

  static AuditedJob Of(const v1::Manifest& manifest) {
    const config::ParsedJob parsed = config::ParseJob(manifest.yaml(), {});
    if (!parsed.spec) return {};
    const config::CountingSpec* const counting = config::CountingOf(*parsed.spec);
    return {parsed.spec->checkpoint.resume, config::TypeOf(*parsed.spec).scheduled_by_client,
            counting == nullptr ? 0 : counting->table_ids};
  }
};

// Processes the shards of one checkpoint one after another, then the epochs.
class Auditor {
 public:
  Auditor(const plan::Plan& plan, const v1::Manifest& manifest)
      : plan_(plan), manifest_(manifest), job_(AuditedJob::Of(manifest)) {
    audit_.shards = static_cast<std::uint64_t>(manifest.shards_size());
    audit_.complete = manifest.complete();
    audit_.functions = job_.functions;
  }

  // Adds a shard that has no file and therefore holds no closure.
  void AddEmptyShard() { AddDone(IntervalSet()); }

  void AddShard(int i, const snapshot::ShardFileReport& report) {
    AddDone(report.done);
    refused_.UnionWith(report.refused);
    if (!report.done.Intersect(report.refused).empty())
      Violated(i, "closures are both done and refused");
    CompareUpdates(i, report);
    if (!report.done.empty() && *report.done.FirstAtLeast(0) >= plan_.closures())
      Violated(i, "closures beyond the plan");
  }

  // Returns nullopt if there was no shard.
  std::optional<Audit> Finish() {
    if (!everywhere_) return std::nullopt;
    audit_.closures_done = everywhere_->size();
    if (job_.functions) {
      audit_.closures = somewhere_.Union(audit_.open_closures).size();
    } else {
      for (std::uint32_t e = 0; e < plan_.spec().epochs; ++e) AddEpoch(e);
      audit_.closures = plan_.closures();
    }
    return std::move(audit_);
  }

 private:
  void AddDone(const IntervalSet& done) {
    everywhere_ = everywhere_ ? everywhere_->Intersect(done) : done;
    somewhere_.UnionWith(done);
  }

  void Violated(int i, absl::string_view text) {
    const v1::ShardFile& entry = manifest_.shards(i);
    const v1::ShardSpec& spec = manifest_.plan().shards(i);
    audit_.violations.push_back(absl::StrCat(
        "shard ", entry.shard(), " (",
        spec.has_slot() ? absl::StrCat("slot ", spec.slot().slot()) : spec.variable().name(),
        "): ", text, ": file=", entry.file()));
  }

  // Returns the number of updates of whole closures that have rows for shard i.
  std::uint64_t UpdatesOf(int i, const IntervalSet& closures) const {
    if (job_.functions) return 0;
    std::uint64_t updates = 0;
    ForEach(closures, plan_.closures(), [&](std::uint64_t c) {
      for (std::uint32_t u = 0; u < plan_.Closure(ClosureId(c)).steps; ++u)
        updates += Touches(plan_, manifest_, manifest_.plan().shards(i), job_.counted_ids,
                           ClosureId(c), u);
    });
    return updates;
  }

  // Compares the updates that a shard's ledger lists with the number that its values hold.
  void CompareUpdates(int i, const snapshot::ShardFileReport& report) {
    std::uint64_t want = UpdatesOf(i, report.done);
    for (const auto& [closure, updates] : report.open) {
      const std::uint64_t c = closure.value();
      audit_.open_closures.Add(c);
      if (c >= plan_.closures() || report.done.Contains(c))
        Violated(i,
                 absl::StrCat("closure ", c, " is open, but it is also done or beyond the plan"));
      want += updates.size();
    }
    std::uint64_t got = report.counters.updates_applied();
    for (const v1::SkipCount& skip : report.counters.skips()) got += skip.count();
    audit_.updates += got;
    if (job_.functions) return;
    // Updates of a refused closure are not applied any more. Updates that were applied before the
    // refusal stay in the values, and no ledger lists them.
    const std::uint64_t over = got > want ? got - want : 0;
    const bool data_place_rows = manifest_.plan().shards(i).has_slot() && job_.counted_ids == 0;
    const bool fits = got < want
                          ? data_place_rows
                          : job_.resumed || over == 0 || over <= UpdatesOf(i, report.refused);
    if (!fits)
      Violated(i, absl::StrCat(
                      "its values and its ledger have different numbers of updates: ledger=", want,
                      " values=", got));
    if (job_.resumed)
      audit_.earlier_plan_updates += over;
    else if (fits)
      audit_.refused_updates += over;
  }

  // Checks that the ranges of an epoch's closures follow each other and cover each of its examples
  // once.
  void AddEpoch(std::uint32_t e) {
    AuditEpoch epoch;
    epoch.epoch = e + 1;
    std::uint64_t position = 0;
    const std::uint64_t closures = plan_.closures_per_epoch();
    for (std::uint64_t c = e * closures; c < (e + 1) * closures; ++c) {
      const plan::ClosureRange range = plan_.Closure(ClosureId(c));
      if (range.epoch != e || range.begin != position || range.end <= range.begin)
        audit_.violations.push_back(absl::StrFormat(
            "closure %d does not begin at the end of the previous closure: want=%d got=%d", c,
            position, range.begin));
      position = range.end;
      CountOf(c, &epoch) += range.end - range.begin;
    }
    if (position != plan_.spec().train_examples)
      audit_.violations.push_back(
          absl::StrFormat("epoch %d does not end with the last example: want=%d got=%d", e + 1,
                          plan_.spec().train_examples, position));
    audit_.epochs.push_back(epoch);
  }

  std::uint64_t& CountOf(std::uint64_t closure, AuditEpoch* epoch) const {
    if (everywhere_->Contains(closure)) return epoch->applied;
    if (refused_.Contains(closure)) return epoch->refused;
    if (somewhere_.Contains(closure) || audit_.open_closures.Contains(closure))
      return epoch->partly;
    return epoch->to_do;
  }

  const plan::Plan& plan_;
  const v1::Manifest& manifest_;
  const AuditedJob job_;
  Audit audit_;
  std::optional<IntervalSet> everywhere_;  // closures that are done in every shard so far
  IntervalSet somewhere_, refused_;
};

}  // namespace

absl::StatusOr<Audit> AuditCheckpoint(fs::FileSystem& files, const std::string& manifest_uri,
                                      const v1::Manifest& manifest) {
  EG_ASSIGN_OR_RETURN(const plan::Plan plan,
                      plan::Plan::Create(client::PlanSpecOf(manifest.plan())));
  const std::string folder = fs::FolderOf(manifest_uri);
  Auditor auditor(plan, manifest);
  for (int i = 0; i < manifest.shards_size(); ++i) {
    if (manifest.shards(i).file().empty()) {
      auditor.AddEmptyShard();
      continue;
    }
    EG_ASSIGN_OR_RETURN(const snapshot::ShardFileReport report,
                        snapshot::CheckShardOf(files, folder, manifest, i, /*whole=*/true));
    auditor.AddShard(i, report);
  }
  std::optional<Audit> audit = auditor.Finish();
  if (!audit)
    return absl::DataLossError(absl::StrCat("the manifest has no shards: path=", manifest_uri));
  return *std::move(audit);
}

}  // namespace evergrad::psctl
