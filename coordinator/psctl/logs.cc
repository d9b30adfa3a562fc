// psctl logs: shows the newest log lines of the tasks. The lines are read through the coordinator's
// sessions, so the command also works for a remote cluster.
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/daemon/option_table.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/tables.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

constexpr auto kFollowEvery = std::chrono::milliseconds(500);

int Logs(Context& context, const std::vector<std::string>& args) {
  Connection connection;
  std::string output = "text", job;
  std::vector<std::string> tasks;
  bool follow = false;
  std::chrono::milliseconds since{0};
  std::uint32_t lines_max = 1000;
  daemon::OptionTable table(
      "psctl logs",
      "shows the newest log lines of the named tasks, or of all tasks if none is named",
      daemon::OptionTable::Kind::kCommand);
  table.AddRest("TASK", &tasks, "worker/0, ps_server/1, coordinator/0");
  table.Add("follow", &follow, "print new lines until Ctrl-C");
  table.Short('f', "follow");
  table.Add("job", &job, "only lines about this job");
  table.Add("since", &since,
            "only lines that are at most this old; 0: all lines that the tasks keep");
  table.Add("lines", &lines_max, "print at most this number of lines, namely the newest",
            {1, 100000});
  AddConnectionOptions(&table, &connection);
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  auto client = ControlClient::Connect(context, connection);
  if (!client.ok()) return Report(context, client.status());
  v1::ReadTaskLogsRequest request;
  for (const std::string& task : tasks) request.add_tasks(task);
  request.set_job(job);
  request.set_lines_max(lines_max);
  if (since.count() > 0) request.set_since_wall_ms(context.clock->WallMillis() - since.count());
  if (follow) context.handles_signals->store(true);
  for (;;) {
    const auto answer = (*client)->Call<v1::ReadTaskLogsResponse>(request);
    if (!answer.ok()) return Report(context, answer.status());
    for (const v1::LogLine& line : answer->lines())
      context.out << (output == "json" ? Dump(JsonOf(line), -1) : LogText(line)) << "\n";
    context.out.flush();
    if (!follow) return kSucceeded;
    // From here on, the request asks for all lines that are newer than the last line of each task.
    *request.mutable_cursors() = answer->cursors();
    request.set_lines_max(0);
    const MonoTime until = context.clock->Now() + kFollowEvery;
    for (MonoTime now = context.clock->Now(); now < until; now = context.clock->Now()) {
      const auto happening = context.inbox->Take(until - now);
      if (happening && happening->signal != 0) return kInterrupted;
    }
  }
}

}  // namespace

std::string LogText(const v1::LogLine& line) {
  const std::string time = ShowTime(line.wall_ms());
  return absl::StrCat(time.size() > 11 ? time.substr(11) : time, " ",
                      absl::AsciiStrToUpper(Printable(line.level())), " ", Printable(line.task()),
                      line.job().empty() ? "" : absl::StrCat(" [", Printable(line.job()), "]"),
                      "  ", Printable(line.text()));
}

std::vector<Verb> LogsVerbs() {
  return {{"logs", "", "show log lines of tasks; -f follows", Logs}};
}

}  // namespace evergrad::psctl
