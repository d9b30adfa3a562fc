#include "coordinator/jobs/run_result.h"

#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/snapshot/checksum.h"
#include "coordinator/dashboard/metric_text.h"
#include "coordinator/jobs/job_error.h"

namespace evergrad::coordinator {
namespace {

// Returns the number of rows of a dense shard, or the rows of all tables in a slot.
std::uint64_t RowsOf(const v1::ShardState& shard) {
  std::uint64_t rows = shard.row_end() - shard.row_begin();
  for (const v1::TableState& table : shard.tables()) rows += table.rows();
  return rows;
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

// ---------------------------------------------------------------- the sections of result.json

Json HeadJson(const RunFacts& facts) {
  const bool started = facts.started && facts.times.started_ms != 0;
  Json cause = nullptr;
  if (facts.cause != nullptr)
    cause = Json{{"origin", facts.cause->origin_text()},
                 {"kind", facts.cause->kind()},
                 {"message", facts.cause->message()}};
  return Json{{"schema_version", 1},
              {"name", facts.id.spec.name},
              {"uid", JobUidString(facts.id.uid)},
              {"start", started ? Json(Rfc3339(facts.times.started_ms)) : Json(nullptr)},
              {"end", Rfc3339(facts.times.ended_ms)},
              {"seconds", started ? facts.times.seconds() : 0.0},
              {"state", facts.state},
              {"first_cause", cause}};
}

Json MetricsJson(const RunFacts& facts) {
  Json metrics = Json::object();
  const EvaluationResult& evaluation = facts.epochs.evaluation();
  for (const std::string& name : MetricsInOrder(facts.id.spec.model.metrics, evaluation.metrics))
    metrics[name] = Real(evaluation.metrics.at(name));
  for (const auto& [name, count] : evaluation.counts) metrics[name] = count;
  return metrics;
}

Json TasksJson(const RunFacts& facts) {
  Json json = Json::array();
  const auto add = [&](absl::string_view role, const std::vector<ReportTask>& tasks) {
    for (const ReportTask& task : tasks) {
      json.push_back(Json{{"role", std::string(role)},
                          {"identity", task.name.substr(role.size() + 1)},
                          {"steps", task.steps},
                          {"bytes", task.bytes}});
    }
  };
  add("worker", facts.tasks.Workers());
  add("ps_server", facts.tasks.Servers(facts.shards.shards, facts.shards.servers));
  return json;
}

void AddCounts(const RunFacts& facts, Json* json) {
  const ClosureCounts& closures = facts.closures;
  (*json)["closures"] = Json{{"succeeded", facts.epochs.succeeded()},
                             {"failed", closures.failed},
                             {"cancelled", closures.cancelled},
                             {"attempts", closures.attempts}};
  json->update(facts.source);
  (*json)["duplicates_refused"] = facts.tasks.duplicates_refused();
  (*json)["repair"] = Json{{"shards_rolled_back", facts.shards_rolled_back},
                           {"closures_rerun", closures.rerun},
                           {"updates_redone", closures.updates_redone}};
  (*json)["updates_exact"] = facts.updates_exact;
  (*json)["lost"] = Json{{"closures", closures.lost}, {"updates", closures.updates_lost}};
}

void AddCheckpoint(const v1::CheckpointStatus& checkpoint, Json* json) {
  const auto text = [](const std::string& said) {
    return said.empty() ? Json(nullptr) : Json(said);
  };
  (*json)["checkpoint"] = checkpoint.number() == 0 ? Json(nullptr)
                                                   : Json{{"number", checkpoint.number()},
                                                          {"path", checkpoint.uri()},
                                                          {"complete", checkpoint.complete()},
                                                          {"written_ms", checkpoint.written_ms()}};
  (*json)["checkpoint_trouble"] = text(checkpoint.trouble());
  (*json)["resumed_from"] = text(checkpoint.resumed_from());
}

// Returns the list of the exported files. The names of the files are relative to the runs folder.
Json FilesJson(const RunFacts& facts) {
  Json json = Json::array();
  for (const v1::RunFileInfo& file : facts.files)
    json.push_back(Json{{"name", file.name()},
                        {"bytes", file.bytes()},
                        {"sha256", snapshot::Hex(snapshot::BytesOf(file.sha256()))}});
  return json;
}

Json DeathsJson(const RunFacts& facts) {
  Json json = Json::array();
  for (const EventLog::Death& death : facts.events.deaths())
    json.push_back(Json{{"task", absl::StrCat(RoleName(death.role), "/", death.identity)},
                        {"role", RoleName(death.role)},
                        {"identity", death.identity},
                        {"reason", death.reason},
                        {"wall_ms", death.wall_ms}});
  return json;
}

Json TablesJson(const RunFacts& facts) {
  Json json = Json::array();
  for (int t = 0; facts.plan != nullptr && t < facts.plan->tables_size(); ++t) {
    const v1::TableSpec& table = facts.plan->tables(t);
    std::uint64_t rows = 0;
    for (const v1::ShardState& s : facts.shards.shards) {
      if (s.tables_size() > t) rows += s.tables(t).rows();
    }
    json.push_back(Json{{"table", table.name()}, {"dimension", table.dimension()}, {"rows", rows}});
  }
  return json;
}

Json ShardsJson(const RunFacts& facts) {
  Json json = Json::array();
  for (std::size_t i = 0; i < facts.shards.shards.size(); ++i) {
    const v1::ShardState& s = facts.shards.shards[i];
    json.push_back(Json{{"shard", s.shard()},
                        {"variable", s.variable()},
                        {"rows", RowsOf(s)},
                        {"bytes", s.bytes()},
                        {"server", facts.shards.servers[i]},
                        {"lsn", s.lsn()},
                        {"updates_applied", s.updates_applied()}});
  }
  return json;
}

}  // namespace

std::string ResultJson(const RunFacts& facts, std::uint64_t lines_lost) {
  Json json = HeadJson(facts);
  json["metrics"] = MetricsJson(facts);
  json["examples_per_second"] = Real(facts.epochs.speed());
  json["tasks"] = TasksJson(facts);
  AddCounts(facts, &json);
  AddCheckpoint(facts.checkpoint, &json);
  json["lines_lost"] = lines_lost;
  json["files"] = FilesJson(facts);
  json["deaths"] = DeathsJson(facts);
  json["tables"] = TablesJson(facts);
  json["shards"] = ShardsJson(facts);
  return Dump(json, 2) + "\n";
}

std::string WithLinesLost(const std::string& result, std::uint64_t lines_lost) {
  Json json = Json::parse(result, nullptr, false);
  if (!json.is_object()) return result;
  json["lines_lost"] = lines_lost;
  return Dump(json, 2) + "\n";
}

std::string EndLine(const RunFacts& facts, std::uint64_t lines_lost) {
  return Dump(Json{{"kind", "end"},
                   {"wall_ms", facts.times.ended_ms},
                   {"state", facts.state},
                   {"step_lines_dropped", facts.epochs.step_lines_dropped()},
                   {"lines_lost", lines_lost}});
}

ReportData MakeReport(const RunFacts& facts) {
  ReportData data;
  data.name = facts.id.spec.name;
  data.job_uid = JobUidString(facts.id.uid);
  data.state = facts.state;
  if (facts.cause != nullptr) data.first_cause = ErrorText(*facts.cause);
  data.submitted = WallText(facts.times.submitted_ms);
  data.seconds = facts.times.seconds();
  data.metric_names = facts.id.spec.model.metrics;
  facts.epochs.FillReport(&data);
  data.rate_by_time = facts.rate.curve().points();
  data.closures_failed = facts.closures.failed;
  data.closures_cancelled = facts.closures.cancelled;
  data.attempts = facts.closures.attempts;
  data.reruns = facts.closures.rerun;
  data.deaths = facts.events.deaths_total();
  data.duplicates_refused = facts.tasks.duplicates_refused();
  data.workers = facts.tasks.Workers();
  data.servers = facts.tasks.Servers(facts.shards.shards, facts.shards.servers);
  for (std::size_t i = 0; i < facts.shards.shards.size(); ++i) {
    const v1::ShardState& s = facts.shards.shards[i];
    data.shards.push_back({s.shard(), s.variable(),
                           absl::StrCat("ps_server/", facts.shards.servers[i]), RowsOf(s),
                           s.bytes(), s.updates_applied()});
  }
  const auto seconds = [&](std::int64_t wall_ms) {
    return static_cast<double>(wall_ms - facts.times.submitted_ms) / 1000.0;
  };
  for (const v1::Event& event : facts.events.events())
    data.events.push_back({seconds(event.wall_ms()), event.kind(), event.text()});
  data.events.push_back({seconds(facts.times.ended_ms), "state", data.state});
  data.model_summary = facts.model_summary;
  data.yaml = facts.id.yaml;
  return data;
}

}  // namespace evergrad::coordinator
