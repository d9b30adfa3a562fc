// psctl task: list, drain, cordon, uncordon.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/client/protocol.h"
#include "common/daemon/option_table.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/tables.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

constexpr std::size_t kCellBytesMax = 64;  // keeps the table narrower than a terminal

int List(Context& context, const std::vector<std::string>& args) {
  Connection connection;
  std::string output = "text";
  daemon::OptionTable table(
      "psctl task list",
      "lists the tasks of the cluster with their hosts and their present activity",
      daemon::OptionTable::Kind::kCommand);
  AddConnectionOptions(&table, &connection);
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  auto client = ControlClient::Connect(context, connection);
  if (!client.ok()) return Report(context, client.status());
  const auto tasks = (*client)->Call<v1::ListTasksResponse>(v1::ListTasksRequest());
  if (!tasks.ok()) return Report(context, tasks.status());
  if (output == "json") {
    nlohmann::json rows = nlohmann::json::array();
    for (const v1::TaskRow& task : tasks->tasks()) rows.push_back(JsonOf(task));
    context.out << Dump({{"tasks", rows}}) << "\n";
  } else {
    for (const std::string& line : TaskTable(*tasks, context.clock->WallMillis()))
      context.out << line << "\n";
  }
  return kSucceeded;
}

// The task and the connection that the verbs about one task need.
struct OneTask {
  Connection connection;
  std::string task;
  std::unique_ptr<ControlClient> client;
};
// Returns an exit code if the verb has ended.
std::optional<int> OpenTask(Context& context, daemon::OptionTable* table,
                            const std::vector<std::string>& args, OneTask* one) {
  table->AddArgument("ROLE/INDEX", &one->task, "worker/0, ps_server/1");
  AddConnectionOptions(table, &one->connection);
  if (const auto code = ParseArguments(context, table, args)) return *code;
  auto client = ControlClient::Connect(context, one->connection);
  if (!client.ok()) return Report(context, client.status());
  one->client = *std::move(client);
  return std::nullopt;
}

// Tells a task to leave. The task leaves in the background, and `psctl task list` shows its
// progress.
int Drain(Context& context, const std::vector<std::string>& args) {
  OneTask one;
  daemon::OptionTable table(
      "psctl task drain",
      "tells one task to hand over its work or shards and leave, like a preemption notice",
      daemon::OptionTable::Kind::kCommand);
  if (const auto code = OpenTask(context, &table, args, &one)) return *code;
  v1::DrainTaskRequest request;
  request.set_task(one.task);
  if (const auto told = one.client->Call<v1::DrainTaskResponse>(request); !told.ok())
    return Report(context, told.status());
  context.out << one.task << " has been told to leave (psctl task list shows its state)\n";
  return kSucceeded;
}

int SetCordon(Context& context, const std::vector<std::string>& args, bool on) {
  OneTask one;
  daemon::OptionTable table(
      on ? "psctl task cordon" : "psctl task uncordon",
      on ? "gives a worker no new work, or a server no new shards, until `psctl task uncordon` or "
           "the end of the process; it keeps its shards and finishes the work that it has begun"
         : "gives a cordoned task work or shards again",
      daemon::OptionTable::Kind::kCommand);
  if (const auto code = OpenTask(context, &table, args, &one)) return *code;
  v1::CordonTaskRequest request;
  request.set_task(one.task);
  request.set_on(on);
  if (const auto told = one.client->Call<v1::CordonTaskResponse>(request); !told.ok())
    return Report(context, told.status());
  context.out << one.task << (on ? " is cordoned\n" : " is not cordoned\n");
  return kSucceeded;
}

}  // namespace

std::vector<std::string> TaskTable(const v1::ListTasksResponse& tasks, std::int64_t now_ms) {
  std::vector<std::vector<std::string>> rows;
  bool insecure = false;
  for (const v1::TaskRow& task : tasks.tasks()) {
    const auto role = client::FromProto(task.role());
    insecure = insecure || task.insecure_listen();
    std::string note = Printable(task.activity());
    if (!task.reason().empty())
      absl::StrAppend(&note, note.empty() ? "" : "; ", Printable(task.reason()));
    if (!task.recommendation().empty())
      absl::StrAppend(&note, note.empty() ? "" : "; ", Printable(task.recommendation()));
    if (task.cordoned()) absl::StrAppend(&note, note.empty() ? "" : "; ", "cordoned");
    if (task.insecure_listen())
      absl::StrAppend(&note, note.empty() ? "" : "; ", "INSECURE: open without encryption");
    std::string jobs;
    for (const v1::TaskJob& job : task.jobs()) {
      absl::StrAppend(&jobs, jobs.empty() ? "" : ", ", Printable(job.name()));
      if (task.jobs_size() > 1)
        absl::StrAppend(&jobs, " ", job.shards(), " / ", ShowBytes(job.bytes()));
    }
    rows.push_back(
        {absl::StrCat(role.ok() ? RoleName(*role) : "unknown", "/", Printable(task.identity())),
         Printable(task.state()),
         task.since_ms() > 0 ? ShowAge(std::max<std::int64_t>(0, now_ms - task.since_ms())) : "-",
         absl::StrCat(task.pid()), client::CleanText(Printable(task.host()), kCellBytesMax),
         client::CleanText(Printable(task.address()), kCellBytesMax),
         absl::StrCat(task.registrations()), absl::StrCat(task.steps()),
         task.shards() == 0 ? "-" : absl::StrCat(task.shards(), " / ", ShowBytes(task.bytes())),
         jobs.empty() ? "-" : jobs, note});
  }
  std::vector<std::string> lines = RenderTable({{"task"},
                                                {"state"},
                                                {"since", true},
                                                {"pid", true},
                                                {"host"},
                                                {"address"},
                                                {"registrations", true},
                                                {"steps", true},
                                                {"shards", true},
                                                {"job"},
                                                {"doing"}},
                                               rows);
  if (tasks.tasks_size() == 0) lines.emplace_back("no task has registered yet");
  if (insecure)
    lines.emplace_back(
        "warning: tasks marked INSECURE can be read, changed and stopped by anyone who can connect "
        "to them; certificates protect them (psctl cert init)");
  return lines;
}

std::vector<Verb> TaskVerbs() {
  return {{"task", "list", "list tasks", List},
          {"task", "drain", "let one task hand over its work or shards and leave", Drain},
          {"task", "cordon", "give one task no new work or shards",
           [](Context& context, const std::vector<std::string>& args) {
             return SetCordon(context, args, true);
           }},
          {"task", "uncordon", "give a cordoned task work or shards again",
           [](Context& context, const std::vector<std::string>& args) {
             return SetCordon(context, args, false);
           }}};
}

}  // namespace evergrad::psctl
