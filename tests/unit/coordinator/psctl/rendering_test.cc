// Tests how statuses are rendered as lines for people.
#include <cmath>
#include <limits>
#include <sstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/progress.h"
#include "coordinator/psctl/require.h"
#include "coordinator/psctl/tables.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

using Lines = std::vector<std::string>;

v1::JobStatus Running() {
  v1::JobStatus job;
  job.set_job_uid(0xabc);
  job.set_name("fashion-mlp");
  job.set_state("RUNNING");
  job.set_phase("training");
  job.set_epochs(5);
  job.set_epoch(2);
  job.set_steps_total(2345);
  job.set_steps_done(612);
  job.set_examples_per_second(21300.4);
  job.set_loss(0.43119);
  job.set_eta_seconds(80);
  for (int i = 0; i < 2; ++i) {
    v1::WorkerRow* worker = job.add_workers();
    worker->set_identity(std::to_string(i));
    worker->set_state(i == 0 ? "running" : "gone");
    worker->set_steps(300 + static_cast<std::uint64_t>(i));
    worker->set_closure(38);
  }
  return job;
}

v1::EpochRow Epoch(std::uint64_t n) {
  v1::EpochRow row;
  row.set_epoch(n);
  row.set_steps(469);
  row.set_train_loss(0.52461);
  row.set_eval_loss(0.44);
  row.set_eval_accuracy(0.8421);
  row.set_examples_per_second(21300);
  row.set_seconds(2.8);
  return row;
}

TEST_CASE(
    "the activity of a worker's device has two lines and a third for the loss scale, in text and "
    "JSON") {
  v1::JobStatus job = Running();
  CHECK(DeviceLines(job.workers(0)).empty());
  CHECK_FALSE(JsonOf(job)["workers"][0].contains("device"));
  v1::DeviceProgress& device = *job.mutable_workers(0)->mutable_device();
  device.set_name("gpu:0 NVIDIA H100");
  device.set_memory_used(3ull << 30);
  device.set_memory_peak(4ull << 30);
  device.set_memory_reserved(5ull << 30);
  CHECK(
      DeviceLines(job.workers(0)) ==
      Lines{"worker/0 on gpu:0 NVIDIA H100: memory 3.0 GiB used, 4.0 GiB peak, 5.0 GiB reserved"});
  device.set_measured_steps(100);
  device.set_kernel_seconds(2.5);
  device.set_in_seconds(0.12);
  device.set_out_seconds(0.0135);
  device.set_stalled_seconds(0.04);
  device.set_waits(50);
  device.set_wait_seconds(0.1);
  device.set_batches_ahead(99);
  device.set_utilization(0.876);
  device.set_utilization_from("nvml");
  device.set_steps_eager(4);
  device.set_graph_captures(3);
  device.set_graph_replays(93);
  (*device.mutable_graph_recaptures())["addresses changed"] = 1;
  CHECK(
      DeviceLines(job.workers(0)) ==
      Lines{
          "worker/0 on gpu:0 NVIDIA H100: 87.60 % busy (reported by the driver), memory 3.0 GiB "
          "used, 4.0 GiB peak, 5.0 GiB reserved",
          "  per step: kernels 25 ms, copies in 1.2 ms, copies out 0.135 ms, waits within the step "
          "0.4 ms, waits before the step 2 ms; batches copied ahead: 99; steps 93 replayed, 3 "
          "captured, 4 eager, "
          "captured again: addresses changed (1)"});
  device.set_utilization_from("kernels");
  CHECK(DeviceLines(job.workers(0))[0].find("87.60 % of the time in kernels, memory") !=
        std::string::npos);
  const nlohmann::json shown = JsonOf(job)["workers"][0]["device"];
  CHECK(shown["seconds"]["kernels"] == 2.5);
  CHECK(shown["seconds"]["wait"] == 0.1);
  CHECK(shown["memory_bytes"]["peak"] == 4ull << 30);
  CHECK(shown["steps"]["replayed"] == 93);
  CHECK(shown["recaptures"]["addresses changed"] == 1);
  CHECK(shown["utilization_from"] == "kernels");
  CHECK_FALSE(JsonOf(job)["workers"][1].contains("device"));
  // The loss scale is shown only if the job scales its losses.
  CHECK(shown["loss_scale"].is_null());
  device.set_loss_scale(16384);
  device.set_loss_scale_overflows(2);
  REQUIRE(DeviceLines(job.workers(0)).size() == 3);
  CHECK(DeviceLines(job.workers(0))[2] == "  loss scale 16384, too large in 2 steps of this job");
  CHECK(JsonOf(job)["workers"][0]["device"]["loss_scale"] == 16384);
  CHECK(JsonOf(job)["workers"][0]["device"]["loss_scale_overflows"] == 2);
  CHECK(ProgressBlock(job, 120)[2] == "  worker/0 running closure 38, 300 steps, loss scale 16384");
}

TEST_CASE("a task with a host name of 4,000 characters does not widen the table of tasks") {
  v1::ListTasksResponse tasks;
  v1::TaskRow* task = tasks.add_tasks();
  task->set_role(v1::ROLE_WORKER);
  task->set_identity("0");
  task->set_host(std::string(4000, 'h'));
  task->set_address(std::string(1000, 'a'));
  for (const std::string& line : TaskTable(tasks, 0)) CHECK(line.size() < 300);
  task->set_host("a-host-with-a-long-name.but.an.honest.one.example");
  CHECK(TaskTable(tasks, 0).at(1).find(task->host()) != std::string::npos);
}

TEST_CASE(
    "a worker that cannot reach a server is shown with the server, its address and the duration") {
  v1::UnreachedServer unreached;
  unreached.set_server("0");
  unreached.set_address("127.0.0.1:4000");
  unreached.set_for_ms(12'900);
  CHECK(UnreachedLine("1", unreached) ==
        "worker/1 cannot reach ps_server/0 at 127.0.0.1:4000 for 12 s");
  unreached.set_reason("connection refused\x1b");
  CHECK(UnreachedLine("1", unreached).find(" for 12 s: connection refused") != std::string::npos);
  CHECK(UnreachedLine("1", unreached).find('\x1b') == std::string::npos);
}

TEST_CASE("a plain line shows state, epoch, step, speed, loss, remaining time and workers") {
  CHECK(ProgressLine(Running()) ==
        "RUNNING  epoch 2/5  step 612/2345 (26 %)  21300 examples/s  loss 0.4312  ETA 1 min 20 s  "
        "workers: worker/0 running, worker/1 gone");
  v1::JobStatus waiting;
  waiting.set_state("STARTING");
  waiting.set_waiting_for("a worker");
  CHECK(ProgressLine(waiting) == "STARTING  waiting for a worker");
  // While the job waits, the former speed and remaining time would mislead users, so they are not
  // shown.
  v1::JobStatus stalled = Running();
  stalled.set_waiting_for("servers: ps_server/1 has been disconnected for 12 s and holds 3 shards");
  CHECK(ProgressLine(stalled) ==
        "RUNNING  epoch 2/5  step 612/2345 (26 %)  loss 0.4312  waiting for servers: ps_server/1 "
        "has been disconnected for 12 s and holds 3 shards  "
        "workers: worker/0 running, worker/1 gone");
  stalled.set_waiting_for("");
  stalled.set_phase("repairing");
  CHECK_THAT(ProgressLine(stalled), !Catch::Contains("ETA") && !Catch::Contains("examples/s"));
}

TEST_CASE(
    "the block on a terminal has a bar and one line for each worker, and fits the width of the "
    "terminal") {
  CHECK(ProgressBlock(Running(), 120) ==
        Lines{"RUNNING [##########..............................]",
              "epoch 2/5  step 612/2345 (26 %)  21300 examples/s  loss 0.4312  ETA 1 min 20 s",
              "  worker/0 running closure 38, 300 steps", "  worker/1 gone, 301 steps"});
  for (const std::size_t columns : {20u, 40u, 80u})
    for (const std::string& line : ProgressBlock(Running(), columns)) CHECK(Width(line) < columns);
  // The loss must be visible on a terminal of 80 columns, which is the narrowest usual one.
  CHECK_THAT(ProgressBlock(Running(), 80)[1], Catch::EndsWith("loss 0.4312  ETA 1 min 20 s"));
}

TEST_CASE("epochs are a table with aligned columns") {
  CHECK(EpochHeader(false) == "epoch  steps  train loss  test loss  accuracy  examples/s  seconds");
  CHECK(EpochLine(Epoch(1), false) ==
        "    1    469      0.5246     0.4400   84.21 %       21300      2.8");
  v1::EpochRow row = Epoch(12);
  row.set_eval_accuracy(std::nan(""));
  row.set_eval_loss(std::nan(""));
  CHECK(EpochLine(row, false) ==
        "   12    469      0.5246          -         -       21300      2.8");
  // A very large loss must fit into its column.
  const std::string header = EpochHeader(false);
  for (const double loss : {1e30, -1e300, 12345.678, std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(), std::nan("")}) {
    v1::EpochRow wild = Epoch(3);
    wild.set_train_loss(loss);
    wild.set_eval_loss(loss);
    const std::string line = EpochLine(wild, false);
    INFO(line);
    CHECK(line.size() == header.size());
    CHECK(line.find("84.21 %") + 7 == header.find("accuracy") + 8);
  }
  CHECK(ShowNumber(1e30, 4) == "1.00e+30");
  CHECK(ShowNumber(-1e300, 4) == "-1.0e+300");
  CHECK(ShowNumber(9999.5, 4) == "9999.5000");
  CHECK(ShowNumber(123456789, 0) == "123456789");
  v1::JobStatus diverged = Running();
  diverged.set_loss(1e38);
  CHECK_THAT(ProgressLine(diverged), Catch::Contains("  loss 1.00e+38  "));
  diverged.set_loss(std::numeric_limits<double>::infinity());
  CHECK_THAT(ProgressLine(diverged), Catch::Contains("  loss inf  "));
  row.set_counting_sum(600);
  CHECK(EpochLine(row, true) == "   12    469              600      2.8");
}

TEST_CASE("other metrics of an evaluation have columns, with a dash for an epoch without them") {
  v1::JobStatus job = Running();
  *job.add_epoch_rows() = Epoch(1);
  v1::EpochRow& second = *job.add_epoch_rows();
  second = Epoch(2);
  (*second.mutable_metrics())["auc"] = 0.78125;
  (*second.mutable_metrics())["root_mean_squared_error"] = 0.86;
  (*second.mutable_metrics())["binary_accuracy"] = 0.5;
  const Lines metrics = EpochMetrics(job);
  CHECK(metrics == Lines{"auc", "binary_accuracy", "root_mean_squared_error"});
  CHECK(EpochHeader(false, metrics) ==
        "epoch  steps  train loss  test loss  accuracy  examples/s  seconds       auc  "
        "binary_accuracy      rmse");
  CHECK(EpochLine(job.epoch_rows(0), false, metrics) ==
        "    1    469      0.5246     0.4400   84.21 %       21300      2.8         -              "
        "  -         -");
  CHECK(EpochLine(second, false, metrics) ==
        "    2    469      0.5246     0.4400   84.21 %       21300      2.8    0.7812           "
        "0.5000    0.8600");
  CHECK(JsonOf(job)["epoch_rows"][1]["metrics"]["auc"] == 0.78125);
  CHECK(JsonOf(job)["epoch_rows"][0]["metrics"].empty());
}

TEST_CASE("without a terminal news is printed once, and the status line occasionally") {
  std::ostringstream out;
  ProgressPrinter printer(out, {});
  v1::JobStatus job = Running();
  printer.Update(job, std::chrono::seconds(1));
  job.set_steps_done(613);
  printer.Update(job, std::chrono::milliseconds(1500));  // too soon for another progress line
  *job.add_epoch_rows() = Epoch(1);
  v1::Event* event = job.add_events();
  event->set_number(7);
  event->set_kind("death");
  event->set_text("worker/1\033[2J died");
  printer.Update(job, std::chrono::milliseconds(1600));
  printer.Update(job, std::chrono::milliseconds(3100));
  printer.Update(job, std::chrono::milliseconds(9000));  // nothing has changed, so nothing is added
  const std::string text = out.str();
  CHECK(printer.events_shown() == 7);
  CHECK_THAT(text, Catch::Contains("step 612/2345") && Catch::Contains("step 613/2345") &&
                       Catch::Contains("-  death: worker/1\\x1b[2J died\n") &&
                       !Catch::Contains("\033"));
  std::size_t lines = 0;
  for (const char c : text) lines += c == '\n';
  CHECK(lines == 5);
}

TEST_CASE("without a terminal a wait prints an occasional line, not one each second") {
  std::ostringstream out;
  ProgressPrinter printer(out, {});
  v1::JobStatus job = Running();
  for (int second = 0; second < 10; ++second) {
    job.set_waiting_for("servers: ps_server/1 has been disconnected for " + std::to_string(second) +
                        " s and holds 3 shards");
    printer.Update(job, std::chrono::seconds(second));
  }
  job.set_waiting_for("");
  printer.Update(job, std::chrono::milliseconds(9001));  // the end of the job is printed at once
  std::size_t lines = 0;
  const std::string text = out.str();
  for (const char c : text) lines += c == '\n';
  CHECK(lines == 6);
  CHECK_THAT(text, Catch::EndsWith("ETA 1 min 20 s  workers: worker/0 running, worker/1 gone\n"));
}

TEST_CASE("the row of an epoch is printed after its evaluation") {
  std::ostringstream out;
  ProgressPrinter printer(out, {});
  v1::JobStatus job = Running();
  job.set_epoch(1);
  v1::EpochRow* row = job.add_epoch_rows();
  *row = Epoch(1);
  row->set_eval_loss(std::nan(""));
  row->set_eval_accuracy(std::nan(""));
  printer.Update(job, std::chrono::seconds(1));
  CHECK_THAT(out.str(), !Catch::Contains("accuracy"));
  *row = Epoch(1);
  printer.Update(job, std::chrono::seconds(2));
  CHECK_THAT(out.str(), Catch::Contains("84.21 %"));
  // If an epoch has no evaluation, its row is printed when the job begins the next epoch.
  row = job.add_epoch_rows();
  *row = Epoch(2);
  row->set_eval_loss(std::nan(""));
  row->set_eval_accuracy(std::nan(""));
  job.set_epoch(2);
  printer.Update(job, std::chrono::seconds(3));
  CHECK_THAT(out.str(), !Catch::Contains("    2    469"));
  job.set_epoch(3);
  printer.Update(job, std::chrono::seconds(4));
  CHECK_THAT(out.str(), Catch::Contains("    2    469      0.5246          -         -"));
}

TEST_CASE("on a terminal each block replaces the former one") {
  std::ostringstream out;
  ProgressPrinter printer(out, {true, 100, std::chrono::milliseconds(0)});
  v1::JobStatus job = Running();
  printer.Update(job, std::chrono::seconds(1));
  const std::size_t first = out.str().size();
  printer.Update(job, std::chrono::seconds(2));
  CHECK(out.str().size() == first);  // the same status prints nothing more
  job.set_steps_done(700);
  printer.Update(job, std::chrono::seconds(3));
  CHECK_THAT(out.str().substr(first),
             Catch::StartsWith("\033[4A\r\033[J") && Catch::Contains("step 700/2345"));
  printer.Say("worker/1 restarted");
  CHECK_THAT(out.str(), Catch::Contains("\033[Jworker/1 restarted\nRUNNING"));
  printer.Clear();
  CHECK_THAT(out.str(), Catch::EndsWith("\033[4A\r\033[J"));
}

TEST_CASE("the summary states the number of lines that are missing from metrics.jsonl") {
  v1::JobStatus job = Running();
  job.set_state("SUCCEEDED");
  job.set_result_json(R"({"lines_lost": 2931})");
  const Lines lines = SummaryLines(job);
  CHECK(std::count(
            lines.begin(), lines.end(),
            "metrics.jsonl lacks 2931 lines, which were dropped because the buffer was full") == 1);
  job.set_result_json(R"({"lines_lost": 0})");
  for (const std::string& line : SummaryLines(job)) CHECK_THAT(line, !Catch::Contains("lacks"));
}

TEST_CASE(
    "the summary claims exactly-once only if the coordinator found the planned updates in every "
    "shard") {
  v1::JobStatus job = Running();
  job.set_state("SUCCEEDED");
  job.set_steps_done(2345);
  job.set_runs_folder("runs/fashion-mlp-1");
  // The second shard is a slot. One batch had no row in this slot, so the slot has one update less.
  job.set_result_json(
      R"({"metrics": {"accuracy": 0.876, "loss": 0.3431}, "tasks": [{"role": "worker"}, {"role": "worker"}, {"role": "ps_server"}],
                          "shards": [{"updates_applied": 2345}, {"updates_applied": 2344}]})");
  job.set_updates_exact(true);
  CHECK(SummaryLines(job) ==
        Lines{"accuracy 87.60 %, 2 workers, 1 server, 2345 steps, each applied exactly once",
              "the run's files: runs/fashion-mlp-1/   (report.html, result.json, metrics.jsonl, "
              "weights.npz, weights.safetensors, job.yaml)"});
  job.set_updates_exact(false);
  job.set_result_json(
      R"({"metrics": {"accuracy": 0.876}, "tasks": [], "shards": [{"updates_applied": 2345}, {"updates_applied": 2345}]})");
  CHECK(SummaryLines(job)[0] == "accuracy 87.60 %, 0 workers, 0 servers, 2345 steps");
  job.set_result_json("{");
  job.set_shards_rolled_back(8);
  job.set_closures_rerun(3);
  job.set_updates_redone(48);
  job.mutable_checkpoint()->set_number(7);
  job.mutable_checkpoint()->set_complete(true);
  job.mutable_checkpoint()->set_uri("/runs/x/checkpoint/manifest-000000000007.egmanifest");
  CHECK(SummaryLines(job)[0] == "2345 steps");
  CHECK(SummaryLines(job)[1] ==
        "servers were lost: 8 shards returned to the last saved state, 3 closures were run again "
        "for them, 48 updates redone");
  CHECK(SummaryLines(job)[2] ==
        "checkpoint 7 (complete): /runs/x/checkpoint/manifest-000000000007.egmanifest");
  // A file that could not be written, because the disk was full, must not be listed.
  CHECK_THAT(SummaryLines(job, [](const std::string& name) { return name == "job.yaml"; }).back(),
             Catch::EndsWith("/   (job.yaml)"));
  CHECK_THAT(SummaryLines(job, [](const std::string&) { return false; }).back(),
             Catch::EndsWith("/   (no file could be written)"));
  // While a job is running, only the files that exist from its start are listed.
  v1::JobStatus runs = job;
  runs.set_state("RUNNING");
  CHECK_THAT(SummaryLines(runs).back(), Catch::EndsWith("/   (metrics.jsonl, job.yaml)"));
  runs.set_state("QUEUED");
  for (const std::string& line : SummaryLines(runs))
    CHECK_THAT(line, !Catch::Contains("the run's files"));
  job.set_result_json(
      R"({"tables": [{"table": "users", "dimension": 16, "rows": 610}, {"table": "movies", "dimension": 16, "rows": 9724}]})");
  CHECK(SummaryLines(job)[3] ==
        "tables: users (610 rows), movies (9724 rows)   psctl checkpoint export "
        "/runs/x/checkpoint/manifest-000000000007.egmanifest --to FILE.npz");
  job.set_state("FAILED");
  job.mutable_first_cause()->set_message("bad record: file=x offset=4");
  job.mutable_first_cause()->set_origin_text("worker/1");
  CHECK(SummaryLines(job)[0] == "failed: bad record: file=x offset=4 (from worker/1)");
}

TEST_CASE(
    "the summary of a failed or cancelled job names its weights, or the command that exports "
    "them") {
  const std::string state = GENERATE("FAILED", "CANCELLED");
  v1::JobStatus job = Running();
  job.set_state(state);
  job.set_runs_folder("/runs/x");
  job.mutable_checkpoint()->set_number(7);
  job.mutable_checkpoint()->set_uri("/runs/x/checkpoint/manifest-7.egmanifest");
  const auto all = [&] {
    std::string text;
    for (const std::string& line : SummaryLines(job)) text += line + "\n";
    return text;
  };
  CHECK_THAT(all(), Catch::Contains("its weights: psctl checkpoint export "
                                    "/runs/x/checkpoint/manifest-7.egmanifest --to weights.npz\n"));
  CHECK_THAT(all(), !Catch::Contains("weights.safetensors"));
  job.set_weights_exported(true);
  CHECK_THAT(all(), !Catch::Contains("psctl checkpoint export"));
  CHECK_THAT(all(), Catch::Contains("metrics.jsonl, weights.npz, weights.safetensors, job.yaml)"));
  job.set_weights_exported(false);
  job.mutable_checkpoint()->set_number(0);
  CHECK_THAT(all(),
             Catch::Contains("the weights of the job are lost, because it has no checkpoint\n"));
  job.set_steps_done(0);
  CHECK_THAT(all(), !Catch::Contains("weights"));
  job.set_state("SUCCEEDED");
  job.set_steps_done(10);
  CHECK_THAT(all(), !Catch::Contains("its weights") && !Catch::Contains("no weights"));
}

TEST_CASE(
    "a task that gets no work for a while is shown with its name, the duration and the reason") {
  v1::TaskBackoff backoff;
  backoff.set_task("worker/2");
  backoff.set_deaths(7);
  backoff.set_idle_deaths(30);
  backoff.set_for_ms(12'300);
  backoff.set_reason("its session closed");
  backoff.set_host("far\x1b[31m");
  CHECK_THAT(BackoffLine(backoff),
             Catch::StartsWith("worker/2 is given no work for 12 s: it died 7 times in a row while "
                               "it held work, without completing any, "
                               "then 30 times without work; last death on host far") &&
                 Catch::EndsWith(": its session closed") && !Catch::Contains("\x1b"));
  backoff.set_for_ms(0);
  backoff.set_idle_deaths(0);
  CHECK_THAT(BackoffLine(backoff),
             Catch::StartsWith("worker/2 may be given work again: it died 7 times in a row while "
                               "it held work, without completing any; last"));
  v1::TaskBackoff young;
  young.set_task("worker/3");
  young.set_for_ms(900);
  young.set_reason("its processes were replaced or ended soon after their start");
  CHECK(BackoffLine(young) ==
        "worker/3 is given no work for 0.9 s: its processes were replaced or ended soon after "
        "their start");
  v1::JobStatus job = Running();
  *job.add_backing_off() = backoff;
  const nlohmann::json json = JsonOf(job);
  CHECK(json["backing_off"][0]["task"] == "worker/2");
  CHECK(json["backing_off"][0]["deaths"] == 7);
  CHECK(json["weights_exported"] == false);
}

TEST_CASE("the summary begins with the job's first metric, or with the loss if there is none") {
  v1::JobStatus job = Running();
  job.set_state("SUCCEEDED");
  job.set_result_json(R"({"metrics": {"auc": 0.91234, "binary_accuracy": 0.851, "loss": 0.33}})");
  CHECK_THAT(SummaryLines(job)[0],
             Catch::StartsWith("auc 0.9123, binary_accuracy 85.10 %, 612 steps"));
  job.set_result_json(R"({"metrics": {"root_mean_squared_error": 0.848, "loss": 0.72}})");
  CHECK_THAT(SummaryLines(job)[0], Catch::StartsWith("root_mean_squared_error 0.8480, 612 steps"));
  job.set_result_json(R"({"metrics": {"loss": 0.33}})");
  CHECK_THAT(SummaryLines(job)[0], Catch::StartsWith("loss 0.3300, 612 steps"));
}

TEST_CASE(
    "lost updates are counted if a plan gives their number, and are unknown for user closures") {
  v1::JobStatus job = Running();
  job.set_state("SUCCEEDED");
  job.set_closures_lost(2);
  job.set_updates_lost(16);
  CHECK_THAT(SummaryLines(job)[1],
             Catch::Equals("LOST: 16 updates of 2 closures that could not be run again for the "
                           "shards that lost them (on_lost_updates: report)"));
  job.set_steps_total(0);
  job.set_updates_lost(0);
  CHECK_THAT(SummaryLines(job)[1],
             Catch::Equals("LOST: updates of 2 closures that could not be run again for the shards "
                           "that lost them, an unknown number"));
}

TEST_CASE("requirements are parsed, compared, and named if they are not met") {
  const auto at_least = ParseRequirement("accuracy>=0.86"), below = ParseRequirement(" loss < 0.5");
  REQUIRE((at_least.ok() && below.ok()));
  CHECK(Unmet({*at_least, *below}, {{"accuracy", 0.86}, {"loss", 0.4}}).empty());
  CHECK(Unmet({*at_least, *below}, {{"accuracy", 0.8599}, {"loss", 0.5}}) ==
        Lines{"not met: accuracy>=0.86: got 0.8599", "not met:  loss < 0.5: got 0.5"});
  CHECK(Unmet({*at_least}, {{"loss", 1}}) ==
        Lines{"not met: accuracy>=0.86: the job has no metric `accuracy` (it has: loss)"});
  CHECK(Unmet({*at_least}, {{"accuracy", std::nan("")}}).size() == 1);
  for (const char* bad : {"accuracy", "accuracy=0.8", ">=0.8", "accuracy>=", "accuracy>=high", ""})
    CHECK_FALSE(ParseRequirement(bad).ok());
  CHECK(MetricsOf(R"({"metrics": {"accuracy": 0.5, "name": "x", "loss": null}})") ==
        std::map<std::string, double>{{"accuracy", 0.5}});
  CHECK(MetricsOf("[]").empty());
  CHECK(MetricsOf("not json").empty());
}

TEST_CASE("JSON has ids of 16 digits, numbers as numbers and NaN as null") {
  v1::JobStatus job = Running();
  job.set_loss(std::nan(""));
  job.set_eta_seconds(-1);
  job.set_result_json(R"({"state": "SUCCEEDED"})");
  const nlohmann::json json = JsonOf(job);
  CHECK(json["job_uid"] == "0000000000000abc");
  CHECK(json["steps_done"] == 612);
  CHECK(json["loss"].is_null());
  CHECK(json["eta_seconds"].is_null());
  CHECK(json["first_cause"].is_null());
  CHECK(json["result"]["state"] == "SUCCEEDED");
  v1::VariableRow variable;
  variable.set_name("dense/kernel");
  variable.set_digest(255);
  variable.add_shards()->set_updates_applied(9);
  variable.add_servers("1");
  CHECK(JsonOf(variable)["digest"] == "00000000000000ff");
  CHECK(JsonOf(variable)["shards"][0]["server"] == "1");
  CHECK(JsonOf(variable)["shards"][0]["updates_applied"] == 9);
  v1::TaskRow task;
  task.set_role(v1::ROLE_PS_SERVER);
  CHECK(JsonOf(task)["role"] == "ps_server");
}

TEST_CASE("the table of jobs and the title of a job name the owner") {
  v1::ListJobsResponse jobs;
  *jobs.add_jobs() = Running();
  *jobs.add_jobs() = Running();
  jobs.mutable_jobs(1)->set_owner("user/alice\x1b[2J");
  // clang-format off
  CHECK(JobTable(jobs) ==
        Lines{R"(name         uid               owner              state    epoch     steps  share  workers  memory  submitted  note)",
              R"(fashion-mlp  0000000000000abc  -                  RUNNING    2/5  612/2345      0        0       -  -)",
              R"(fashion-mlp  0000000000000abc  user/alice\x1b[2J  RUNNING    2/5  612/2345      0        0       -  -)"});
  // clang-format on
  CHECK(JobTitle(jobs.jobs(0)) == "fashion-mlp (0000000000000abc), submitted -");
  CHECK(JobTitle(jobs.jobs(1)) ==
        "fashion-mlp (0000000000000abc), submitted by user/alice\\x1b[2J -");
  CHECK(JsonOf(jobs.jobs(0))["owner"] == "");
  CHECK(JsonOf(jobs.jobs(1))["owner"] == "user/alice\x1b[2J");
}

TEST_CASE("the task table marks unencrypted connections") {
  v1::ListTasksResponse tasks;
  CHECK(TaskTable(tasks, 0).back() == "no task has registered yet");
  v1::TaskRow* task = tasks.add_tasks();
  task->set_role(v1::ROLE_WORKER);
  task->set_identity("0");
  task->set_state("alive");
  task->set_since_ms(1000);
  task->set_insecure_listen(true);
  task->set_activity("closure 7");
  const Lines lines = TaskTable(tasks, 43000);
  CHECK_THAT(lines[1], Catch::Contains("worker/0") && Catch::Contains("42 s") &&
                           Catch::Contains("closure 7; INSECURE"));
  CHECK_THAT(lines[2], Catch::StartsWith("warning: tasks marked INSECURE"));
}

TEST_CASE("the task table shows a cloud's recommendation to leave the machine") {
  v1::ListTasksResponse tasks;
  v1::TaskRow* task = tasks.add_tasks();
  task->set_role(v1::ROLE_WORKER);
  task->set_activity("closure 7");
  task->set_recommendation("EC2 recommends to leave\x1b[2J");
  CHECK_THAT(TaskTable(tasks, 0)[1], Catch::Contains("closure 7; EC2 recommends to leave"));
  CHECK(TaskTable(tasks, 0)[1].find('\x1b') == std::string::npos);
  CHECK_THAT(JsonOf(*task)["recommendation"].get<std::string>(),
             Catch::StartsWith("EC2 recommends to leave"));
}

TEST_CASE("sizes, durations and widths have readable formats") {
  CHECK(ShowBytes(1023) == "1023 B");
  CHECK(ShowBytes(1536 * 1024) == "1.5 MiB");
  CHECK(ShowSeconds(0.25) == "0.2 s");
  CHECK(ShowSeconds(59.6) == "1 min 00 s");
  CHECK(ShowSeconds(7620) == "2 h 07 min");
  CHECK(ShowSeconds(-1) == "?");
  CHECK(Fit("abcdef", 4) == "abc…");
  CHECK(Width("é…") == 2);
  CHECK(RenderTable({{"name"}, {"n", true}}, {{"a", "100"}, {"long name", "1"}}) ==
        Lines{"name         n", "a          100", "long name    1"});
}

}  // namespace
}  // namespace evergrad::psctl
