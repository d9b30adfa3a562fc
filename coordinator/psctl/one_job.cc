#include "coordinator/psctl/one_job.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/daemon/option_table.h"
#include "common/runtime/executor.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/progress.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

using std::chrono::milliseconds;

// Longest wait of one call, which the coordinator limits to 10 s.
constexpr milliseconds kCallWait{5000};
// A coordinator that has answered before may be restarting for this time.
constexpr milliseconds kAway{60000};
constexpr milliseconds kPause{200};  // between two calls to an unreachable coordinator

// Returns the exit code of `psctl job wait` for a job in this state, or nullopt while it must wait.
std::optional<int> WaitEnded(const v1::JobStatus& job, const std::string& condition) {
  if (condition == "running" && (job.state() == "RUNNING" || job.state() == "SUCCEEDED"))
    return kSucceeded;
  if (!IsEnded(job)) return std::nullopt;
  if (condition == "ended" || (condition == "succeeded" && job.state() == "SUCCEEDED"))
    return kSucceeded;
  return job.state() == "CANCELLED" ? kCancelled : kFailed;
}

}  // namespace

std::optional<int> OpenJob(Context& context, daemon::OptionTable* table,
                           const std::vector<std::string>& args, OneJob* one) {
  table->AddArgument("JOB", &one->job,
                     "uid or name of the job; a name means the newest job of that name");
  AddConnectionOptions(table, &one->connection);
  AddOutputOption(table, &one->output);
  if (const auto code = ParseArguments(context, table, args)) return *code;
  auto client = ControlClient::Connect(context, one->connection);
  if (!client.ok()) return Report(context, client.status());
  one->client = *std::move(client);
  return std::nullopt;
}

int WaitForJob(Context& context, const std::vector<std::string>& args) {
  OneJob one;
  std::string condition = "succeeded";
  milliseconds within{0};
  daemon::OptionTable table(
      "psctl job wait",
      "waits until a job is in a state, and prints the state. Exit code 0 if the job is or was in "
      "the state, 1 if the job has failed, 3 if it was cancelled, 5 if --within has passed",
      daemon::OptionTable::Kind::kCommand);
  table.AddChoice("for", &condition, {"succeeded", "ended", "running"},
                  "the state: succeeded, ended (in any way), or running");
  table.Add("within", &within, "longest wait; 0ms: no limit", milliseconds(0),
            std::chrono::hours(24 * 365));
  if (const auto code = OpenJob(context, &table, args, &one)) return *code;
  const MonoTime begun = context.clock->Now();
  MonoTime answered = begun;
  v1::GetJobRequest request;
  request.set_job(one.job);
  bool known = false;
  for (;;) {
    const MonoTime now = context.clock->Now();
    const MonoTime left = within.count() == 0 ? MonoTime(kCallWait) : begun + within - now;
    const auto wait = std::clamp<std::int64_t>(
        std::chrono::duration_cast<milliseconds>(left).count(), 0, kCallWait.count());
    request.set_wait_ms(known ? static_cast<std::uint32_t>(wait) : 0);
    const auto answer = one.client->Call<v1::GetJobResponse>(request, milliseconds(wait));
    if (!answer.ok()) {
      const bool away =
          absl::IsUnavailable(answer.status()) || absl::IsDeadlineExceeded(answer.status());
      const MonoTime failed = context.clock->Now();
      const bool late = within.count() > 0 && failed - begun >= within;
      if (!known || !away || late || failed - answered > kAway)
        return Report(context, answer.status());
      runtime::WaitableEvent never;  // never set; the pause waits for it with a timeout
      never.WaitFor(kPause);
      continue;
    }
    answered = context.clock->Now();
    known = true;
    const v1::JobStatus& job = answer->job();
    request.set_seen_revision(job.revision());
    // The job is fixed now, even if another job of this name is submitted.
    request.set_job(ShowHex(job.job_uid()));
    std::optional<int> code = WaitEnded(job, condition);
    const bool late = !code && within.count() > 0 && answered - begun >= within;
    if (late) code = kRequirementUnmet;
    if (!code) continue;
    if (one.output == "json")
      context.out << Dump(JsonOf(job)) << "\n";
    else
      context.out << Printable(job.name()) << " (" << ShowHex(job.job_uid())
                  << "): " << Printable(job.state()) << (late ? "; --within has passed" : "")
                  << "\n";
    return *code;
  }
}

int CancelJob(Context& context, const std::vector<std::string>& args) {
  OneJob one;
  daemon::OptionTable table("psctl job cancel",
                            "cancels a job; updates that were applied are not undone",
                            daemon::OptionTable::Kind::kCommand);
  if (const auto code = OpenJob(context, &table, args, &one)) return *code;
  v1::CancelJobRequest request;
  request.set_job(one.job);
  const auto cancelled = one.client->Call<v1::CancelJobResponse>(request);
  if (!cancelled.ok()) return Report(context, cancelled.status());
  v1::JobStatus now;
  now.set_state(cancelled->state());
  if (one.output == "json")
    context.out << Dump({{"job", one.job}, {"state", now.state()}}) << "\n";
  else
    context.out << Printable(one.job) << ": " << Printable(now.state())
                << (IsEnded(now) ? "" : ", being cancelled (psctl job watch follows it)") << "\n";
  return kSucceeded;
}

int DeleteJob(Context& context, const std::vector<std::string>& args) {
  OneJob one;
  bool files = false;
  daemon::OptionTable table(
      "psctl job delete",
      "forgets a job that has ended: it is removed from the coordinator's list and journal",
      daemon::OptionTable::Kind::kCommand);
  table.Add("files", &files,
            "also remove the runs folder of the job on the coordinator's host, with the "
            "checkpoints in it; checkpoints in the job's checkpoint.directory stay");
  if (const auto code = OpenJob(context, &table, args, &one)) return *code;
  v1::DeleteJobRequest request;
  request.set_job(one.job);
  request.set_files(files);
  const auto deleted = one.client->Call<v1::DeleteJobResponse>(request);
  if (!deleted.ok()) return Report(context, deleted.status());
  if (one.output == "json")
    context.out << Dump({{"job_uid", ShowHex(deleted->job_uid())},
                         {"name", deleted->name()},
                         {"runs_folder", deleted->runs_folder()},
                         {"files_removed", files}})
                << "\n";
  else
    context.out << Printable(deleted->name()) << " (" << ShowHex(deleted->job_uid())
                << ") deleted; its runs folder " << Printable(deleted->runs_folder())
                << (files ? " was removed" : " was kept") << "\n";
  return kSucceeded;
}

}  // namespace evergrad::psctl
