// psctl job audit: proves, from the ledgers in the files of a checkpoint alone, which data a job
// has applied (P1 to P3).
#include "coordinator/psctl/job_audit.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "coordinator/psctl/audit_rows.h"
#include "coordinator/psctl/checkpoint.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

std::string Verdict(const Audit& audit) {
  if (!audit.violations.empty())
    return absl::StrCat("VIOLATED: ", audit.violations.size(),
                        audit.violations.size() == 1 ? " finding" : " findings");
  if (audit.functions) {
    return absl::StrCat("exact: ", audit.closures_done, " of ", audit.closures,
                        " closures were applied in every one of ", audit.shards,
                        " shards; still open: ", audit.open_closures.size(),
                        "; no closure is recorded both as done and as cancelled");
  }
  std::uint64_t whole = 0;
  while (whole < audit.epochs.size() && audit.epochs[whole].partly == 0 &&
         audit.epochs[whole].to_do == 0 && audit.epochs[whole].refused == 0)
    ++whole;
  std::string text =
      whole == 0
          ? "no epoch has ended"
          : absl::StrCat("exact: in ",
                         whole == 1 ? "epoch 1" : absl::StrCat("each of epochs 1 to ", whole),
                         " every example was applied exactly once, in every one of ", audit.shards,
                         " shards");
  if (whole < audit.epochs.size())
    absl::StrAppend(
        &text, "; ", audit.closures_done, " of ", audit.closures,
        " closures were applied in every shard; still open: ", audit.open_closures.size());
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

// Returns the job of that name or uid, which must have a checkpoint.
absl::StatusOr<v1::JobStatus> JobWithCheckpoint(Context& context, const Connection& connection,
                                                const std::string& job) {
  EG_ASSIGN_OR_RETURN(auto client, ControlClient::Connect(context, connection));
  v1::GetJobRequest request;
  request.set_job(job);
  EG_ASSIGN_OR_RETURN(const v1::GetJobResponse answer, client->Call<v1::GetJobResponse>(request));
  if (answer.job().checkpoint().number() == 0)
    return UserError(absl::NotFoundError(
        absl::StrCat("the job has no checkpoint to read: job=", Printable(job))));
  return answer.job();
}

// Compares the ledgers with the number of closures that the coordinator counted, if the job has
// succeeded and nothing changes any more.
void CompareWithCoordinator(const v1::JobStatus& job, const v1::Manifest& manifest, Audit* audit) {
  if (job.state() != "SUCCEEDED" || job.checkpoint().number() != manifest.number() ||
      job.closures_succeeded() == audit->closures_done + job.closures_lost())
    return;
  audit->violations.push_back(absl::StrCat(
      "the coordinator and the ledgers disagree on the number of closures: coordinator=",
      job.closures_succeeded(), " of them lost=", job.closures_lost(),
      " ledgers=", audit->closures_done));
}

// `verbose` prints one line per epoch; otherwise consecutive epochs with equal counts share a line.
void ShowAudit(Context& context, const Audit& audit, const FoundManifest& found, bool verbose) {
  context.out << "job         " << Printable(found.manifest.job_name()) << " ("
              << ShowHex(found.manifest.job_uid()) << ")\n"
              << "checkpoint  " << Printable(ShowPath(context, found.uri))
              << (audit.complete ? " (complete)" : "") << "\n\n";
  if (!audit.functions) {
    for (const std::string& line : RenderTable({{verbose ? "epoch" : "epochs", true},
                                                {"examples in every shard", true},
                                                {"in some", true},
                                                {"refused", true},
                                                {"to do", true}},
                                               AuditRows(audit.epochs, verbose)))
      context.out << line << "\n";
  }
  context.out << "\n"
              << Verdict(audit) << "\n"
              << audit.updates << " updates in the shards' values"
              << (audit.functions ? "" : ", each in a ledger");
  if (audit.earlier_plan_updates > 0)
    context.out << ", except for " << audit.earlier_plan_updates
                << " of the plan that the job resumed from";
  if (audit.refused_updates > 0)
    context.out << ", except for " << audit.refused_updates
                << " of closures that were refused later";
  context.out << "\n";
  for (const std::string& violation : audit.violations)
    context.err << "psctl: " << Printable(violation) << "\n";
}

}  // namespace

int AuditJob(Context& context, const std::vector<std::string>& args) {
  Connection connection;
  connection.instead = "give --checkpoint PATH, which needs no coordinator";
  std::string output = "text", job, path;
  bool verbose = false;
  daemon::OptionTable table("psctl job audit",
                            "proves from the ledgers of a job's newest checkpoint which examples "
                            "of each epoch were applied, and how often; reads every byte of the "
                            "checkpoint. Exit code 1 if a guarantee is violated",
                            daemon::OptionTable::Kind::kCommand);
  table.Add("job", &job,
            "uid or name of the job; a name means the newest job of that name. The coordinator "
            "gives the path of the newest checkpoint");
  table.Add("checkpoint", &path,
            "a checkpoint's folder, a manifest, or a job's runs folder, in place of --job; a "
            "plain path, file://, s3:// or gs://");
  table.Add("verbose", &verbose,
            "print one line for each epoch; by default, consecutive epochs with equal numbers of "
            "examples share a line");
  AddConnectionOptions(&table, &connection);
  object_store::StoreOptions stores;
  AddOutputOption(&table, &output);
  object_store::AddStoreOptions(&table, &stores);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  if (job.empty() == path.empty())
    return Report(context, UserError(absl::InvalidArgumentError(
                               "psctl job audit: expected one of --job and --checkpoint")));
  std::optional<v1::JobStatus> status;
  if (!job.empty()) {
    auto found = JobWithCheckpoint(context, connection, job);
    if (!found.ok()) return Report(context, found.status());
    status = *std::move(found);
    path = status->checkpoint().uri();
  }
  const auto files = OpenFiles(context, stores);
  if (!files.ok()) return Report(context, files.status());
  const auto found = FindManifest(**files, UriOf(context, path));
  if (!found.ok()) return ReportCheckpoint(context, found.status());
  auto audit = AuditCheckpoint(**files, found->uri, found->manifest);
  if (!audit.ok()) return ReportCheckpoint(context, audit.status());
  if (status) CompareWithCoordinator(*status, found->manifest, &*audit);
  if (output == "json")
    context.out << Dump(JsonOf(*audit, found->uri)) << "\n";
  else
    ShowAudit(context, *audit, *found, verbose);
  return audit->violations.empty() ? kSucceeded : kFailed;
}

}  // namespace evergrad::psctl
