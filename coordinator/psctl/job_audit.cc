// psctl job audit: what the ledgers of a checkpoint prove about the data of a job (P1 to P3), from
// its files alone.
#include "coordinator/psctl/job_audit.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/interval_set.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/config/job_spec.h"
#include "common/daemon/option_table.h"
#include "common/plan/counting_rows.h"
#include "common/plan/plan.h"
#include "common/sharding/slots.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/messages.h"
#include "common/snapshot/shard_file.h"
#include "coordinator/psctl/audit_rows.h"
#include "coordinator/psctl/checkpoint.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

// Whether update u of closure c has rows for this shard (LEDGER line 3); of a slot of a job that is
// not a counting one: whether it may have, for only its data say.
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

}  // namespace

absl::StatusOr<Audit> AuditCheckpoint(fs::FileSystem& files, const std::string& manifest_uri,
                                      const v1::Manifest& manifest) {
  EG_ASSIGN_OR_RETURN(const plan::Plan plan,
                      plan::Plan::Create(client::PlanSpecOf(manifest.plan())));
  const std::string folder = fs::FolderOf(manifest_uri);
  const config::ParsedJob parsed = config::ParseJob(manifest.yaml(), {});
  Audit audit;
  audit.shards = static_cast<std::uint64_t>(manifest.shards_size());
  audit.complete = manifest.complete();
  const bool resumed = parsed.spec && parsed.spec->checkpoint.resume;
  audit.functions =
      parsed.spec &&
      parsed.spec->type == "functions";  // how many updates its closures have is in no plan
  const std::uint64_t counted_ids =
      parsed.spec && parsed.spec->type == "counting" ? parsed.spec->counting.table_ids : 0;
  std::optional<IntervalSet> everywhere;
  IntervalSet somewhere, refused;
  for (int i = 0; i < manifest.shards_size(); ++i) {
    const v1::ShardFile& entry = manifest.shards(i);
    const v1::ShardSpec& spec = manifest.plan().shards(i);
    IntervalSet done;
    if (!entry.file().empty()) {
      EG_ASSIGN_OR_RETURN(const snapshot::ShardFileReport report,
                          snapshot::CheckShardOf(files, folder, manifest, i, /*whole=*/true));
      done = report.done;
      refused.UnionWith(report.refused);
      const auto violated = [&](const std::string& what) {
        audit.violations.push_back(absl::StrCat(
            "shard ", entry.shard(), " (",
            spec.has_slot() ? absl::StrCat("slot ", spec.slot().slot()) : spec.variable().name(),
            "): ", what, ": file=", entry.file()));
      };
      if (!report.done.Intersect(report.refused).empty())
        violated("closures both done and refused");
      // What its ledger says was applied, update by update, against how many its values say.
      const auto updates_of = [&](const IntervalSet& closures) {
        std::uint64_t updates = 0;
        ForEach(audit.functions ? IntervalSet() : closures, plan.closures(), [&](std::uint64_t c) {
          for (std::uint32_t u = 0; u < plan.Closure(ClosureId(c)).steps; ++u)
            updates += Touches(plan, manifest, spec, counted_ids, ClosureId(c), u);
        });
        return updates;
      };
      std::uint64_t want = updates_of(done);
      for (const auto& [closure, updates] : report.open) {
        const std::uint64_t c = closure.value();
        audit.open_closures.Add(c);
        if (c >= plan.closures() || done.Contains(c))
          violated(absl::StrCat("closure ", c, " is open and should not be"));
        want += updates.size();
      }
      std::uint64_t got = report.counters.updates_applied();
      for (const v1::SkipCount& skip : report.counters.skips()) got += skip.count();
      audit.updates += got;
      // Of a closure that is refused none may be applied any more; those that had been are in the
      // values, and no ledger names them.
      const std::uint64_t over = got > want ? got - want : 0;
      const bool fits = got < want ? spec.has_slot() && counted_ids == 0
                                   : resumed || over == 0 || over <= updates_of(report.refused);
      if (!fits && !audit.functions)
        violated(absl::StrCat("its values hold another number of updates than its ledger: ledger=",
                              want, " values=", got));
      if (resumed)
        audit.earlier_plan_updates += over;
      else if (fits && !audit.functions)
        audit.refused_updates += over;
      if (done != IntervalSet() && *done.FirstAtLeast(0) >= plan.closures())
        violated("closures beyond the plan");
    }
    everywhere = everywhere ? everywhere->Intersect(done) : done;
    somewhere.UnionWith(done);
  }
  if (!everywhere)
    return absl::DataLossError(absl::StrCat("a manifest without shards: path=", manifest_uri));
  if (audit.functions) {
    audit.closures = somewhere.Union(audit.open_closures).size();
    audit.closures_done = everywhere->size();
    return audit;
  }
  // The ranges of an epoch's closures, one behind the other, are its examples: each once.
  for (std::uint32_t e = 0; e < plan.spec().epochs; ++e) {
    AuditEpoch epoch;
    epoch.epoch = e + 1;
    std::uint64_t position = 0;
    for (std::uint64_t c = e * plan.closures_per_epoch(); c < (e + 1) * plan.closures_per_epoch();
         ++c) {
      const plan::ClosureRange range = plan.Closure(ClosureId(c));
      if (range.epoch != e || range.begin != position || range.end <= range.begin)
        audit.violations.push_back(
            absl::StrFormat("closure %d does not go on where the one before ends: want=%d got=%d",
                            c, position, range.begin));
      position = range.end;
      const std::uint64_t n = range.end - range.begin;
      (everywhere->Contains(c)                                    ? epoch.applied
       : refused.Contains(c)                                      ? epoch.refused
       : somewhere.Contains(c) || audit.open_closures.Contains(c) ? epoch.partly
                                                                  : epoch.to_do) += n;
    }
    if (position != plan.spec().train_examples)
      audit.violations.push_back(
          absl::StrFormat("epoch %d does not end with the last example: want=%d got=%d", e + 1,
                          plan.spec().train_examples, position));
    audit.epochs.push_back(epoch);
  }
  audit.closures = plan.closures();
  audit.closures_done = everywhere->size();
  return audit;
}

namespace {

std::string Verdict(const Audit& audit) {
  if (!audit.violations.empty())
    return absl::StrCat("VIOLATED: ", audit.violations.size(),
                        audit.violations.size() == 1 ? " finding" : " findings");
  if (audit.functions) {
    return absl::StrCat("exact: ", audit.closures_done, " of ", audit.closures,
                        " closures are in every one of ", audit.shards, " shards, ",
                        audit.open_closures.size(), " are open, and none is both done and refused");
  }
  std::uint64_t whole = 0;
  while (whole < audit.epochs.size() && audit.epochs[whole].partly == 0 &&
         audit.epochs[whole].to_do == 0 && audit.epochs[whole].refused == 0)
    ++whole;
  std::string text =
      whole == 0
          ? "no epoch is over"
          : absl::StrCat("exact: in ",
                         whole == 1 ? "epoch 1" : absl::StrCat("each of epochs 1 to ", whole),
                         " every example was applied exactly once, in every one of ", audit.shards,
                         " shards");
  if (whole < audit.epochs.size())
    absl::StrAppend(&text, "; ", audit.closures_done, " of ", audit.closures,
                    " closures are in every shard, ", audit.open_closures.size(), " are open");
  return text;
}

nlohmann::json JsonOf(const Audit& audit, const std::string& uri) {
  nlohmann::json json = {{"manifest", uri},
                         {"exact", audit.violations.empty()},
                         {"complete", audit.complete},
                         {"shards", audit.shards},
                         {"updates", audit.updates},
                         {"earlier_plan_updates", audit.earlier_plan_updates},
                         {"refused_updates", audit.refused_updates},
                         {"closures", audit.closures},
                         {"closures_done", audit.closures_done},
                         {"closures_open", audit.open_closures.size()},
                         {"epochs", nlohmann::json::array()},
                         {"violations", audit.violations}};
  for (const AuditEpoch& epoch : audit.epochs) {
    json["epochs"].push_back({{"epoch", epoch.epoch},
                              {"applied", epoch.applied},
                              {"partly", epoch.partly},
                              {"refused", epoch.refused},
                              {"to_do", epoch.to_do}});
  }
  return json;
}

}  // namespace

int AuditJob(Context& context, const std::vector<std::string>& args) {
  Connection connection;
  connection.instead = "--checkpoint PATH needs no coordinator";
  std::string output = "text", job, path;
  bool verbose = false;
  daemon::OptionTable table("psctl job audit",
                            "proves from the ledgers of a job's newest checkpoint which examples "
                            "of each epoch were applied, and how often: reads every "
                            "byte of it. Exit code 1 when a promise is violated",
                            daemon::OptionTable::Kind::kCommand);
  table.Add("job", &job,
            "its name (the newest of that name) or its uid: the coordinator says where its "
            "checkpoint lies");
  table.Add("checkpoint", &path,
            "a checkpoint's folder, a manifest, or a job's runs folder, in place of --job; file:// "
            "or a plain path");
  table.Add("verbose", &verbose,
            "a line for each epoch; without it epochs with equal numbers share one, which shows "
            "the examples of each");
  AddConnectionOptions(&table, &connection);
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  if (job.empty() == path.empty())
    return Report(context, UserError(absl::InvalidArgumentError(
                               "psctl job audit: expected one of --job and --checkpoint")));
  std::optional<v1::JobStatus> status;
  if (!job.empty()) {
    auto client = ControlClient::Connect(context, connection);
    if (!client.ok()) return Report(context, client.status());
    v1::GetJobRequest request;
    request.set_job(job);
    const auto answer = (*client)->GetJob(request);
    if (!answer.ok()) return Report(context, answer.status());
    status = answer->job();
    if (status->checkpoint().number() == 0)
      return Report(context, UserError(absl::NotFoundError(absl::StrCat(
                                 "job has no checkpoint to read: job=", Printable(job)))));
    path = status->checkpoint().uri();
  }
  const auto files = fs::MakeLocalFileSystem();
  const auto found = FindManifest(*files, UriOf(context, path));
  if (!found.ok()) return ReportCheckpoint(context, found.status());
  auto audit = AuditCheckpoint(*files, found->uri, found->manifest);
  if (!audit.ok()) return ReportCheckpoint(context, audit.status());
  // What the coordinator says has succeeded, once nothing changes any more.
  if (status && status->state() == "SUCCEEDED" &&
      status->checkpoint().number() == found->manifest.number() &&
      status->closures_succeeded() != audit->closures_done + status->closures_lost()) {
    audit->violations.push_back(absl::StrCat(
        "the coordinator counted another number of closures than the ledgers hold: coordinator=",
        status->closures_succeeded(), " of them lost=", status->closures_lost(),
        " ledgers=", audit->closures_done));
  }
  if (output == "json") {
    context.out << Dump(JsonOf(*audit, found->uri)) << "\n";
    return audit->violations.empty() ? kSucceeded : kFailed;
  }
  context.out << "job         " << Printable(found->manifest.job_name()) << " ("
              << ShowHex(found->manifest.job_uid()) << ")\n"
              << "checkpoint  " << Printable(ShowPath(context, found->uri))
              << (audit->complete ? " (complete)" : "") << "\n\n";
  if (!audit->functions) {
    // Of equal epochs the examples of one are shown.
    for (const std::string& line : RenderTable({{verbose ? "epoch" : "epochs", true},
                                                {"examples in every shard", true},
                                                {"in some", true},
                                                {"refused", true},
                                                {"to do", true}},
                                               AuditRows(audit->epochs, verbose)))
      context.out << line << "\n";
  }
  context.out << "\n"
              << Verdict(*audit) << "\n"
              << audit->updates << " updates in the shards' values"
              << (audit->functions ? "" : ", each in a ledger");
  if (audit->earlier_plan_updates > 0)
    context.out << ", but for " << audit->earlier_plan_updates
                << " of the plan that it was resumed from";
  if (audit->refused_updates > 0)
    context.out << ", but for " << audit->refused_updates << " of closures that are refused now";
  context.out << "\n";
  for (const std::string& violation : audit->violations)
    context.err << "psctl: " << Printable(violation) << "\n";
  return audit->violations.empty() ? kSucceeded : kFailed;
}

}  // namespace evergrad::psctl
