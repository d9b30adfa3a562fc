// The files of the runs folder: job.yaml, metrics.jsonl, result.json, and what report.html is made
// of.
#include <algorithm>
#include <cmath>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/client/protocol.h"
#include "common/client/run_file_names.h"
#include "common/snapshot/checksum.h"
#include "coordinator/dashboard/metric_text.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/jobs/json_lines.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

// A dense shard's range, or what a slot has of all tables.
std::uint64_t RowsOf(const v1::ShardState& shard) {
  std::uint64_t rows = shard.row_end() - shard.row_begin();
  for (const v1::TableState& table : shard.tables()) rows += table.rows();
  return rows;
}

Json CauseJson(const v1::ErrorDetail& cause) {
  return Json{
      {"origin", cause.origin_text()}, {"kind", cause.kind()}, {"message", cause.message()}};
}

std::string WallText(std::int64_t wall_ms) {
  const std::time_t seconds = static_cast<std::time_t>(wall_ms / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return absl::StrFormat("%04d-%02d-%02d %02d:%02d:%02d UTC", parts.tm_year + 1900,
                         parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min,
                         parts.tm_sec);
}

std::string Rfc3339(std::int64_t wall_ms) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(wall_ms),
                          absl::UTCTimeZone());
}

}  // namespace

void Job::WriteJobFile() {
  std::vector<RunFile> files;
  files.push_back({client::kRunMarkFile, [text = client::RunMark(id_.uid)] { return text; }});
  files.push_back({"job.yaml", [text = id_.yaml] { return text; }});
  std::weak_ptr<bool> alive = alive_;
  host_->WriteFiles(id_.runs_folder, std::move(files), [this, alive](const absl::Status& status) {
    if (!alive.expired() && !status.ok())
      Event("warning", absl::StrCat("cannot write to the runs folder: ", status.message()));
  });
}

// Lines go to the file once the journal has them, so that a restart knows what the file must hold.
void Job::FlushLines() {
  if (state_ == JobState::kQueued) return;
  if (!journals()) {
    metrics_file_.Commit(/*durable=*/true);
  } else if (journal_.whole_wanted()) {
    PersistWhole();
  } else {
    Persist(Record());
  }
  metrics_file_.Write();
}

void Job::EventLine(const v1::Event& event) {
  // Tasks come and go while the last files are written; what is read by programs ends with its end
  // line.
  if (phase_ >= Phase::kWriting) return;
  metrics_file_.Add(Dump(Json{{"kind", "event"},
                              {"wall_ms", event.wall_ms()},
                              {"event", event.kind()},
                              {"text", event.text()}}),
                    false);
}

std::string Job::EndLine() const {
  return Dump(Json{{"kind", "end"},
                   {"wall_ms", ended_ms_},
                   {"state", std::string(JobStateName(ending_))},
                   {"step_lines_dropped", epochs_.step_lines_dropped()},
                   {"lines_lost", metrics_file_.lost()}});
}

bool Job::Paused() const {
  return phase_ == Phase::kTraining && book_ && (book_->RepairsPending() || !WaitingFor().empty());
}

EpochAccount::Context Job::AccountContext() {
  return {host_->Now(), host_->WallMillis(), &metrics_file_};
}

// A stretch of repair, or of waiting, is no slow training: it would make the time that is left look
// endless.
void Job::SampleRate() {
  if (epochs_.examples_done() == rate_.examples() && Paused()) return BeginRate();
  if (!rate_.Sample(started_at_, host_->Now(), epochs_.examples_done())) return;
  if (v1::JobNote* const note = journal_.Note()) rate_.FillNote(note);
  metrics_file_.Add(Dump(Json{{"kind", "rate"},
                              {"seconds", rate_.at_seconds()},
                              {"examples_per_second", Real(rate_.rate())},
                              {"steps_done", epochs_.steps_done()},
                              {"closures_done", epochs_.succeeded()}}),
                    true);
}

std::string Job::ResultJson() const {
  Json json;
  json["schema_version"] = 1;
  json["name"] = id_.spec.name;
  json["uid"] = JobUidString(id_.uid);
  const bool started = started_ms_ != 0 && !never_started_;
  json["start"] = started ? Json(Rfc3339(started_ms_)) : Json(nullptr);
  json["end"] = Rfc3339(ended_ms_);
  json["seconds"] = started ? std::chrono::duration<double>(ended_at_ - started_at_).count() : 0.0;
  json["state"] = std::string(JobStateName(ending_));
  json["first_cause"] = first_cause_ ? CauseJson(*first_cause_) : Json(nullptr);
  Json metrics = Json::object();
  const EvaluationResult& evaluation = epochs_.evaluation();
  for (const std::string& name : MetricsInOrder(id_.spec.model.metrics, evaluation.metrics))
    metrics[name] = Real(evaluation.metrics.at(name));
  for (const auto& [name, count] : evaluation.counts) metrics[name] = count;
  json["metrics"] = std::move(metrics);
  json["examples_per_second"] = Real(epochs_.speed());
  json["tasks"] = Json::array();
  const auto add_tasks = [&](absl::string_view role, const std::vector<ReportTask>& tasks) {
    for (const ReportTask& task : tasks) {
      json["tasks"].push_back(Json{{"role", std::string(role)},
                                   {"identity", task.name.substr(role.size() + 1)},
                                   {"steps", task.steps},
                                   {"bytes", task.bytes}});
    }
  };
  add_tasks("worker", totals_.Workers());
  add_tasks("ps_server", totals_.Servers(final_.shards, final_.servers));
  json["closures"] = Json{{"succeeded", epochs_.succeeded()},
                          {"failed", closures_failed_},
                          {"cancelled", closures_cancelled()},
                          {"attempts", attempts_}};
  source_->FillResult(&json);
  json["duplicates_refused"] = totals_.duplicates_refused();
  // What was lost with servers, and done again.
  json["repair"] = Json{{"shards_rolled_back", placer_.rolled_back()},
                        {"closures_rerun", reruns_},
                        {"updates_redone", updates_redone_}};
  // Succeeded, lost with a server, and not to be run again.
  // Each update is in each shard that it touches exactly once: compared with the plan, and with
  // what the workers reported of tables.
  json["updates_exact"] = claims_.updates_exact();
  json["lost"] = Json{{"closures", closures_lost_}, {"updates", updates_lost_}};
  const v1::CheckpointStatus& checkpoint = rounds_.status();
  json["checkpoint"] = checkpoint.number() == 0 ? Json(nullptr)
                                                : Json{{"number", checkpoint.number()},
                                                       {"path", checkpoint.uri()},
                                                       {"complete", checkpoint.complete()},
                                                       {"written_ms", checkpoint.written_ms()}};
  json["checkpoint_trouble"] =
      checkpoint.trouble().empty() ? Json(nullptr) : Json(checkpoint.trouble());
  json["resumed_from"] =
      checkpoint.resumed_from().empty() ? Json(nullptr) : Json(checkpoint.resumed_from());
  // Of metrics.jsonl, for want of room.
  json["lines_lost"] = metrics_file_.lost();
  // What was exported and read back, relative to the runs folder.
  json["files"] = Json::array();
  for (const v1::RunFileInfo& file : export_.files())
    json["files"].push_back(Json{{"name", file.name()},
                                 {"bytes", file.bytes()},
                                 {"sha256", snapshot::Hex(snapshot::BytesOf(file.sha256()))}});
  json["deaths"] = Json::array();
  for (const EventLog::Death& death : events_.deaths()) {
    json["deaths"].push_back(Json{{"task", absl::StrCat(RoleName(death.role), "/", death.identity)},
                                  {"role", RoleName(death.role)},
                                  {"identity", death.identity},
                                  {"reason", death.reason},
                                  {"wall_ms", death.wall_ms}});
  }
  json["tables"] = Json::array();
  for (int t = 0; plan_ && t < plan_message_.tables_size(); ++t) {
    const v1::TableSpec& table = plan_message_.tables(t);
    std::uint64_t rows = 0;
    for (const v1::ShardState& s : final_.shards) {
      if (s.tables_size() > t) rows += s.tables(t).rows();
    }
    json["tables"].push_back(
        Json{{"table", table.name()}, {"dimension", table.dimension()}, {"rows", rows}});
  }
  json["shards"] = Json::array();
  for (std::size_t i = 0; i < final_.shards.size(); ++i) {
    const v1::ShardState& s = final_.shards[i];
    json["shards"].push_back(Json{{"shard", s.shard()},
                                  {"variable", s.variable()},
                                  {"rows", RowsOf(s)},
                                  {"bytes", s.bytes()},
                                  {"server", final_.servers[i]},
                                  {"lsn", s.lsn()},
                                  {"updates_applied", s.updates_applied()}});
  }
  return Dump(json, 2) + "\n";
}

void Job::SetLinesLost() {
  Json result = Json::parse(result_json_, nullptr, false);
  if (!result.is_object()) return;
  result["lines_lost"] = metrics_file_.lost();
  result_json_ = Dump(result, 2) + "\n";
}

ReportData Job::MakeReport() const {
  ReportData data;
  data.name = id_.spec.name;
  data.job_uid = JobUidString(id_.uid);
  data.state = std::string(JobStateName(ending_));
  if (first_cause_) data.first_cause = ErrorText(*first_cause_);
  data.submitted = WallText(submitted_ms_);
  data.seconds = std::chrono::duration<double>(ended_at_ - started_at_).count();
  data.metric_names = id_.spec.model.metrics;
  epochs_.FillReport(&data);
  data.rate_by_time = rate_.curve().points();
  data.closures_failed = closures_failed_;
  data.closures_cancelled = closures_cancelled();
  data.attempts = attempts_;
  data.reruns = reruns_;
  data.deaths = events_.deaths_total();
  data.duplicates_refused = totals_.duplicates_refused();
  data.workers = totals_.Workers();
  data.servers = totals_.Servers(final_.shards, final_.servers);
  for (std::size_t i = 0; i < final_.shards.size(); ++i) {
    const v1::ShardState& s = final_.shards[i];
    data.shards.push_back({s.shard(), s.variable(), absl::StrCat("ps_server/", final_.servers[i]),
                           RowsOf(s), s.bytes(), s.updates_applied()});
  }
  for (const v1::Event& event : events_.events()) {
    data.events.push_back({static_cast<double>(event.wall_ms() - submitted_ms_) / 1000.0,
                           event.kind(), event.text()});
  }
  data.events.push_back(
      {static_cast<double>(ended_ms_ - submitted_ms_) / 1000.0, "state", data.state});
  data.model_summary = described_.model_summary();
  data.yaml = id_.yaml;
  return data;
}

std::uint64_t Job::closures_cancelled() const {
  const std::uint64_t ended = epochs_.succeeded() + closures_failed_;
  return scheduled_ > ended ? scheduled_ - ended : 0;
}

}  // namespace evergrad::coordinator
