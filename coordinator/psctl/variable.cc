// psctl variable: list.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/daemon/option_table.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/tables.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

int List(Context& context, const std::vector<std::string>& args) {
  Connection connection;
  std::string output = "text", job;
  bool shards = false;
  daemon::OptionTable table("psctl variable list", "lists a job's variables, their digests and where their shards lie",
                            daemon::OptionTable::Kind::kCommand);
  table.Add("job", &job, "name or uid; left out: the newest job");
  table.Add("shards", &shards, "a line for each shard too");
  AddConnectionOptions(&table, &connection);
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  auto client = ControlClient::Connect(context, connection);
  if (!client.ok()) return Report(context, client.status());
  if (job.empty()) {
    const auto jobs = (*client)->ListJobs();
    if (!jobs.ok()) return Report(context, jobs.status());
    if (jobs->jobs_size() == 0) {
      context.err << "psctl: the coordinator knows no job (psctl job submit JOB.yaml gives it one)\n";
      return kUsage;
    }
    const v1::JobStatus* newest = &jobs->jobs(0);
    for (const v1::JobStatus& candidate : jobs->jobs())
      if (candidate.submitted_ms() >= newest->submitted_ms()) newest = &candidate;
    job = ShowHex(newest->job_uid());
  }
  const auto variables = (*client)->ListVariables(job);
  if (!variables.ok()) return Report(context, variables.status());
  if (output == "json") {
    nlohmann::json rows = nlohmann::json::array();
    for (const v1::VariableRow& variable : variables->variables()) rows.push_back(JsonOf(variable));
    context.out << Dump({{"variables", rows}}) << "\n";
  } else {
    for (const std::string& line : VariableTable(*variables, shards)) context.out << line << "\n";
  }
  return kSucceeded;
}

}  // namespace

std::vector<std::string> VariableTable(const v1::ListVariablesResponse& variables, bool shards) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::VariableRow& variable : variables.variables()) {
    std::vector<std::string> servers;
    for (const std::string& server : variable.servers())
      if (std::find(servers.begin(), servers.end(), server) == servers.end()) servers.push_back(Printable(server));
    rows.push_back({Printable(variable.name()), absl::StrCat("[", absl::StrJoin(variable.shape(), ", "), "]"), ShowBytes(variable.bytes()),
                    absl::StrCat(variable.shards_size()), absl::StrJoin(servers, ","),
                    variable.complete() ? ShowHex(variable.digest()) : "(not every shard answered)"});
  }
  std::vector<std::string> lines = RenderTable({{"variable"}, {"shape"}, {"bytes", true}, {"shards", true}, {"servers"}, {"digest"}}, rows);
  if (!shards) return lines;
  rows.clear();
  for (const v1::VariableRow& variable : variables.variables())
    for (int i = 0; i < variable.shards_size(); ++i) {
      const v1::ShardState& shard = variable.shards(i);
      rows.push_back({absl::StrCat(shard.shard()), Printable(variable.name()), absl::StrCat(shard.row_begin(), "..", shard.row_end()),
                      ShowBytes(shard.bytes()), i < variable.servers_size() ? Printable(variable.servers(i)) : "-", absl::StrCat(shard.lsn()),
                      absl::StrCat(shard.updates_applied()), absl::StrCat(shard.duplicates_refused()), ShowHex(shard.digest())});
    }
  lines.push_back("");
  for (std::string& line : RenderTable(
           {{"shard", true}, {"variable"}, {"rows"}, {"bytes", true}, {"server"}, {"lsn", true}, {"applied", true}, {"duplicates", true}, {"digest"}},
           rows))
    lines.push_back(std::move(line));
  return lines;
}

std::vector<Verb> VariableVerbs() { return {{"variable", "list", "list a job's variables", List}}; }

}  // namespace evergrad::psctl
