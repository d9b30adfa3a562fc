// The lines that psctl prints when a job has ended (progress.h).
#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/psctl/progress.h"
#include "coordinator/psctl/require.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

using Lines = std::vector<std::string>;

// Returns "1 worker" or "2 workers".
std::string Counted(std::uint64_t count, absl::string_view one) {
  return absl::StrCat(count, " ", one, count == 1 ? "" : "s");
}

// Returns the metrics that the job asked for, in the order of the job, or the loss if it asked for
// none.
std::vector<std::string> MetricTexts(absl::string_view result_json) {
  const auto metrics = MetricsInOrder(result_json);
  const bool asked = std::any_of(metrics.begin(), metrics.end(), [](const auto& m) {
    return m.first != "loss" && m.first != "count";
  });
  std::vector<std::string> texts;
  for (const auto& [name, value] : metrics) {
    if (name == "count" || (name == "loss" && asked)) continue;
    const bool share = name == "accuracy" || name == "binary_accuracy";
    texts.push_back(
        absl::StrCat(Printable(name), " ", share ? ShowPercent(value) : ShowNumber(value, 4)));
  }
  return texts;
}

std::string SucceededLine(const v1::JobStatus& job, const nlohmann::json& result) {
  Lines parts = MetricTexts(job.result_json());
  if (result.is_object() && result.contains("tasks") && result["tasks"].is_array()) {
    std::uint64_t workers = 0, servers = 0;
    for (const auto& task : result["tasks"]) {
      workers += task.is_object() && task.value("role", "") == "worker";
      servers += task.is_object() && task.value("role", "") == "ps_server";
    }
    parts.push_back(Counted(workers, "worker"));
    parts.push_back(Counted(servers, "server"));
  }
  // The coordinator has compared every shard's updates with the plan, and the updates of tables
  // with the workers' reports.
  parts.push_back(absl::StrCat(job.steps_done(), " steps",
                               job.updates_exact() ? ", each applied exactly once" : ""));
  return absl::StrJoin(parts, ", ");
}

void AddEnd(const v1::JobStatus& job, const nlohmann::json& result, Lines* lines) {
  if (job.state() == "FAILED") {
    const v1::ErrorDetail& cause = job.first_cause();
    lines->push_back(absl::StrCat(
        "failed: ", cause.message().empty() ? "no cause was reported" : Printable(cause.message()),
        cause.origin_text().empty()
            ? ""
            : absl::StrCat(" (from ", Printable(cause.origin_text()), ")")));
  } else if (job.state() == "CANCELLED") {
    lines->push_back(absl::StrCat(
        "cancelled after ", job.steps_done(),
        job.steps_total() == 0 ? "" : absl::StrCat(" of ", job.steps_total()), " steps"));
  } else if (job.state() == "SUCCEEDED") {
    lines->push_back(SucceededLine(job, result));
  }
}

void AddRepairs(const v1::JobStatus& job, Lines* lines) {
  if (job.shards_rolled_back() > 0) {
    lines->push_back(absl::StrCat("servers were lost: ", Counted(job.shards_rolled_back(), "shard"),
                                  " returned to the last saved state, ", job.closures_rerun(),
                                  job.closures_rerun() == 1 ? " closure was" : " closures were",
                                  " run again for them, ", job.updates_redone(),
                                  " updates redone"));
  }
  if (job.closures_lost() == 0) return;
  // The plan does not know the number of updates of a user's closure. `on_lost_updates` does not
  // apply to such a closure: its arguments were discarded, or it failed when it ran again.
  const bool functions = job.steps_total() == 0;
  lines->push_back(
      absl::StrCat("LOST: ", functions ? "updates" : Counted(job.updates_lost(), "update"), " of ",
                   Counted(job.closures_lost(), "closure"),
                   " that could not be run again for the shards that lost them",
                   functions ? ", an unknown number" : " (on_lost_updates: report)"));
}

void AddCheckpoint(const v1::JobStatus& job, const std::string& on_host, Lines* lines) {
  const v1::CheckpointStatus& checkpoint = job.checkpoint();
  if (!checkpoint.resumed_from().empty())
    lines->push_back(absl::StrCat("resumed from ", Printable(checkpoint.resumed_from())));
  if (checkpoint.number() > 0) {
    lines->push_back(absl::StrCat("checkpoint ", checkpoint.number(),
                                  checkpoint.complete() ? " (complete)" : "", ": ", on_host,
                                  Printable(checkpoint.uri())));
    if (IsEnded(job) && !checkpoint.trouble().empty())
      lines->push_back(Printable(checkpoint.trouble()));
  } else if (!checkpoint.trouble().empty()) {
    lines->push_back(absl::StrCat("no checkpoint: ", Printable(checkpoint.trouble())));
  }
}

void AddLostLines(const nlohmann::json& result, Lines* lines) {
  if (!result.is_object() || !result.contains("lines_lost") ||
      !result["lines_lost"].is_number_unsigned() || result["lines_lost"] == 0)
    return;
  lines->push_back(absl::StrCat("metrics.jsonl lacks ",
                                Counted(result["lines_lost"].get<std::uint64_t>(), "line"),
                                ", which were dropped because the buffer was full"));
}

// Describes the weights of a job that did not succeed.
void AddUnexportedWeights(const v1::JobStatus& job, Lines* lines) {
  if ((job.state() != "FAILED" && job.state() != "CANCELLED") || job.steps_done() == 0 ||
      job.weights_exported())
    return;
  lines->push_back(job.checkpoint().number() > 0
                       ? absl::StrCat("to export its weights: psctl checkpoint export ",
                                      Printable(job.checkpoint().uri()), " --to weights.npz")
                       : "the weights of the job are lost, because it has no checkpoint");
}

void AddTables(const v1::JobStatus& job, const nlohmann::json& result, Lines* lines) {
  if (job.state() != "SUCCEEDED" || !result.is_object() || !result.contains("tables") ||
      !result["tables"].is_array() || result["tables"].empty())
    return;
  Lines tables;
  for (const auto& table : result["tables"]) {
    if (!table.is_object() || !table.contains("table") || !table["table"].is_string() ||
        !table.contains("rows") || !table["rows"].is_number_unsigned())
      continue;
    tables.push_back(absl::StrCat(Printable(table["table"].get<std::string>()), " (",
                                  table["rows"].get<std::uint64_t>(), " rows)"));
  }
  lines->push_back(
      absl::StrCat("tables: ", absl::StrJoin(tables, ", "),
                   job.checkpoint().number() > 0
                       ? absl::StrCat("   psctl checkpoint export ",
                                      Printable(job.checkpoint().uri()), " --to FILE.npz")
                       : "; lost, because there is no checkpoint"));
}

void AddFiles(const v1::JobStatus& job, const std::function<bool(const std::string& name)>& there,
              const RunPlace& place, const std::string& on_host, Lines* lines) {
  if (job.runs_folder().empty() || job.state() == "QUEUED") return;
  Lines files = {"metrics.jsonl", "job.yaml"};
  if (IsEnded(job)) files = {"report.html", "result.json", "metrics.jsonl", "job.yaml"};
  if (job.state() == "SUCCEEDED" || job.weights_exported())
    files = {"report.html", "result.json",         "metrics.jsonl",
             "weights.npz", "weights.safetensors", "job.yaml"};
  if (there) std::erase_if(files, [&](const std::string& name) { return !there(name); });
  const std::string names = files.empty() ? "no file could be written" : absl::StrJoin(files, ", ");
  if (place.here || !place.fetched.empty()) {
    lines->push_back(absl::StrCat(
        "the run's files",
        place.here ? "" : absl::StrCat(", copied from host ", Printable(job.runs_host())), ": ",
        Printable(place.here ? job.runs_folder() : place.fetched), "/   (", names, ")"));
    return;
  }
  lines->push_back(absl::StrCat("the run's files: ", on_host, Printable(job.runs_folder()), "/   (",
                                names, ")"));
  lines->push_back(
      absl::StrCat("  psctl job fetch ", ShowHex(job.job_uid()), " --to DIR   copies them here"));
}

}  // namespace

std::vector<std::string> SummaryLines(const v1::JobStatus& job,
                                      const std::function<bool(const std::string& name)>& there,
                                      const RunPlace& place) {
  const std::string on_host =
      place.here ? "" : absl::StrCat("on host ", Printable(job.runs_host()), ": ");
  const auto result = nlohmann::json::parse(job.result_json(), nullptr, false);
  Lines lines;
  AddEnd(job, result, &lines);
  AddRepairs(job, &lines);
  AddCheckpoint(job, on_host, &lines);
  AddLostLines(result, &lines);
  AddUnexportedWeights(job, &lines);
  AddTables(job, result, &lines);
  AddFiles(job, there, place, on_host, &lines);
  return lines;
}

}  // namespace evergrad::psctl
