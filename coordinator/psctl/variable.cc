// psctl variable: list, describe, top.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/daemon/option_table.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/tables.h"
#include "coordinator/psctl/text_table.h"
#include "coordinator/psctl/variable_view.h"

namespace evergrad::psctl {
namespace {

// Fills in the newest job, and its name for people. If there is no job, prints an error and returns
// an exit code.
std::optional<int> NewestIfUnnamed(Context& context, ControlClient& client, std::string* job,
                                   std::string* name = nullptr) {
  if (name != nullptr) *name = *job;
  if (!job->empty()) return std::nullopt;
  const auto jobs = client.Call<v1::ListJobsResponse>(v1::ListJobsRequest());
  if (!jobs.ok()) return Report(context, jobs.status());
  if (jobs->jobs_size() == 0) {
    context.err << "psctl: the coordinator has no job (psctl job submit JOB.yaml submits one)\n";
    return kUsage;
  }
  const v1::JobStatus* newest = &jobs->jobs(0);
  for (const v1::JobStatus& candidate : jobs->jobs())
    if (candidate.submitted_ms() >= newest->submitted_ms()) newest = &candidate;
  *job = ShowHex(newest->job_uid());
  if (name != nullptr) *name = newest->name();
  return std::nullopt;
}

int List(Context& context, const std::vector<std::string>& args) {
  Connection connection;
  std::string output = "text", job;
  bool shards = false;
  daemon::OptionTable table(
      "psctl variable list",
      "lists a job's variables, their digests and the servers of their shards",
      daemon::OptionTable::Kind::kCommand);
  table.Add("job", &job, "name or uid; if left out, the newest job");
  table.Add("shards", &shards, "print one more line for each shard");
  AddConnectionOptions(&table, &connection);
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  auto client = ControlClient::Connect(context, connection);
  if (!client.ok()) return Report(context, client.status());
  if (const auto code = NewestIfUnnamed(context, **client, &job)) return *code;
  v1::ListVariablesRequest request;
  request.set_job(job);
  const auto variables = (*client)->Call<v1::ListVariablesResponse>(request);
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

// Sends the request of `describe` and `top`; the answer has exactly one row.
absl::StatusOr<v1::VariableRow> Ask(ControlClient& client, const std::string& job,
                                    const std::string& name, bool digests) {
  v1::ListVariablesRequest request;
  request.set_job(job);
  request.set_variable(name);
  request.set_without_digests(!digests);
  auto answer = client.Call<v1::ListVariablesResponse>(request);
  if (!answer.ok()) return answer.status();
  for (v1::VariableRow& row : *answer->mutable_variables())
    if (row.name() == name) return std::move(row);
  return absl::InternalError(absl::StrCat(
      "the answer of the coordinator does not have exactly the requested variable: variable=", name,
      " rows=", answer->variables_size()));
}

struct OneVariable {
  Connection connection;
  std::string output = "text", job, job_name, name;
  std::uint32_t count = 10;
};
void AddOptions(daemon::OptionTable* table, OneVariable* one) {
  table->AddArgument("NAME", &one->name, "name of the variable or table (psctl variable list)");
  table->Add("job", &one->job, "name or uid; if left out, the newest job");
  table->Add("count", &one->count,
             "largest number of shards and of ids that are shown, the busiest first; a server "
             "keeps 64 ids",
             {1, 65536});
  AddConnectionOptions(table, &one->connection);
  AddOutputOption(table, &one->output);
}

int Describe(Context& context, const std::vector<std::string>& args) {
  OneVariable one;
  daemon::OptionTable table("psctl variable describe",
                            "shows one variable: its kind, optimizer, memory, the counters of its "
                            "rows, its traffic by server and shard, its hottest ids",
                            daemon::OptionTable::Kind::kCommand);
  AddOptions(&table, &one);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  auto client = ControlClient::Connect(context, one.connection);
  if (!client.ok()) return Report(context, client.status());
  if (const auto code = NewestIfUnnamed(context, **client, &one.job, &one.job_name)) return *code;
  const auto row = Ask(**client, one.job, one.name, /*digests=*/true);
  if (!row.ok()) return Report(context, row.status());
  if (one.output == "json") {
    nlohmann::json json = JsonOf(*row);
    json["traffic"] = JsonOf(ViewOf(*row), one.count);
    context.out << Dump(json) << "\n";
  } else {
    for (const std::string& line : VariableDescription(*row, one.job_name, one.count))
      context.out << line << "\n";
  }
  return kSucceeded;
}

// Runs `variable top`. The first sample shows totals; each later sample shows the difference from
// the previous sample.
int Top(Context& context, const std::vector<std::string>& args) {
  OneVariable one;
  bool once = false;
  std::uint32_t samples = 0;
  std::chrono::milliseconds interval{2000};
  daemon::OptionTable table("psctl variable top",
                            "shows the traffic of a variable by server and shard, and its hottest "
                            "ids; on a terminal it is updated until Ctrl-C",
                            daemon::OptionTable::Kind::kCommand);
  AddOptions(&table, &one);
  table.Add("interval", &interval, "time between two samples", std::chrono::milliseconds(100));
  table.Add("samples", &samples,
            "number of samples; 0: one sample if the output is not a terminal, otherwise samples "
            "until Ctrl-C. The first sample shows totals, and later samples show rates");
  table.Add("once", &once,
            "print one sample, with totals since the servers got the shards, and end");
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  if (once && table.IsSet("samples")) {
    context.err << "psctl: --once and --samples cannot both be given\n";
    return kUsage;
  }
  const bool json = one.output == "json", live = context.out_terminal && !json;
  if (once || (samples == 0 && !live)) samples = 1;
  auto client = ControlClient::Connect(context, one.connection);
  if (!client.ok()) return Report(context, client.status());
  if (const auto code = NewestIfUnnamed(context, **client, &one.job, &one.job_name)) return *code;
  if (samples != 1) context.handles_signals->store(true);
  v1::VariableRow before;
  MonoTime before_at{0};
  for (std::uint32_t sample = 0;; ++sample) {
    auto row = Ask(**client, one.job, one.name, /*digests=*/false);
    if (!row.ok()) return Report(context, row.status());
    const MonoTime at = context.clock->Now();
    const VariableView view =
        sample == 0 ? ViewOf(*row)
                    : ViewOf(*row, before, std::chrono::duration<double>(at - before_at).count());
    if (json) {
      nlohmann::json line = JsonOf(view, one.count);
      line["variable"] = row->name();
      line["complete"] = row->complete();
      if (row->has_table()) {
        line["rows"] = row->table().rows();
        line["memory_bytes"] = row->table().memory_bytes();
      }
      context.out << Dump(line, samples == 1 ? 1 : -1) << "\n";
    } else {
      if (live && samples != 1)
        context.out << "\033[H\033[J";
      else if (sample > 0)
        context.out << "\n";
      for (const std::string& line : VariableTop(*row, view, one.job_name, one.count))
        context.out << (live ? Fit(line, context.columns) : line) << "\n";
    }
    context.out.flush();
    if (samples != 0 && sample + 1 == samples) return kSucceeded;
    before = *std::move(row);
    before_at = at;
    for (MonoTime now = at; now < at + interval; now = context.clock->Now()) {
      const auto happening = context.inbox->Take(at + interval - now);
      if (happening && happening->signal != 0) return kInterrupted;
    }
  }
}

}  // namespace

std::vector<std::string> VariableTable(const v1::ListVariablesResponse& variables, bool shards) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::VariableRow& variable : variables.variables()) {
    std::vector<std::string> servers;
    for (const std::string& server : variable.servers())
      if (std::find(servers.begin(), servers.end(), server) == servers.end())
        servers.push_back(Printable(server));
    rows.push_back(
        {Printable(variable.name()), absl::StrCat("[", absl::StrJoin(variable.shape(), ", "), "]"),
         ShowBytes(variable.bytes()), absl::StrCat(variable.shards_size()),
         absl::StrJoin(servers, ","),
         variable.complete() ? ShowHex(variable.digest()) : "(not every shard answered)"});
  }
  std::vector<std::string> lines = RenderTable(
      {{"variable"}, {"shape"}, {"bytes", true}, {"shards", true}, {"servers"}, {"digest"}}, rows);
  if (!shards) return lines;
  rows.clear();
  for (const v1::VariableRow& variable : variables.variables())
    for (int i = 0; i < variable.shards_size(); ++i) {
      const v1::ShardState& shard = variable.shards(i);
      rows.push_back({absl::StrCat(shard.shard()), Printable(variable.name()),
                      absl::StrCat(shard.row_begin(), "..", shard.row_end()),
                      ShowBytes(shard.bytes()),
                      i < variable.servers_size() ? Printable(variable.servers(i)) : "-",
                      absl::StrCat(shard.lsn()), absl::StrCat(shard.updates_applied()),
                      absl::StrCat(shard.duplicates_refused()), ShowHex(shard.digest())});
    }
  lines.emplace_back();
  for (std::string& line : RenderTable({{"shard", true},
                                        {"variable"},
                                        {"rows"},
                                        {"bytes", true},
                                        {"server"},
                                        {"lsn", true},
                                        {"applied", true},
                                        {"duplicates", true},
                                        {"digest"}},
                                       rows))
    lines.push_back(std::move(line));
  return lines;
}

std::vector<Verb> VariableVerbs() {
  return {
      {"variable", "list", "list a job's variables", List},
      {"variable", "describe", "show one variable or table, its memory and its traffic", Describe},
      {"variable", "top",
       "watch the traffic of one variable by server and shard, and its hottest ids", Top}};
}

}  // namespace evergrad::psctl
