#include "coordinator/psctl/json_output.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/escape.h"
#include "common/base/ids.h"
#include "common/client/describe.h"
#include "common/client/protocol.h"
#include "coordinator/psctl/text_table.h"
#include "coordinator/psctl/variable_view.h"

namespace evergrad::psctl {
namespace {

nlohmann::json Number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}
std::string StampText(const v1::Stamp& stamp) { return absl::StrCat(stamp.term(), ".", stamp.n()); }
std::string RoleText(v1::Role role) {
  const auto known = client::FromProto(role);
  return known.ok() ? RoleName(*known) : "unknown";
}

nlohmann::json OptimizerJson(const v1::Optimizer& optimizer) {
  if (optimizer.type().empty()) return nullptr;  // older coordinators do not send it
  const optimizers::Settings settings = client::OptimizerOf(optimizer);
  nlohmann::json out = {{"type", settings.type}};
  for (const optimizers::Member& member : ShownMembers(settings.type)) {
    nlohmann::json& value = out[std::string(member.name)];
    if (member.flag != nullptr)
      value = settings.*member.flag;
    else
      value = Number(settings.*member.number);
  }
  return out;
}

nlohmann::json TableJson(const v1::VariableRow& variable) {
  const v1::TableState& table = variable.table();
  const v1::TableSpec& spec = variable.table_spec();
  nlohmann::json hottest = nlohmann::json::array();
  for (const v1::HotId& hot : table.hottest())
    hottest.push_back({{"id", hot.id()}, {"pushes", hot.pushes()}, {"error", hot.error()}});
  return {{"rows", table.rows()},
          {"dimension", spec.dimension()},
          {"waiting", table.waiting()},
          {"value_bytes", table.bytes()},
          {"slot_bytes", table.slot_bytes()},
          {"memory_bytes", table.memory_bytes()},
          {"index_places", table.index_places()},
          {"admitted", table.admitted()},
          {"evicted_ttl", table.evicted_ttl()},
          {"evicted_lru", table.evicted_lru()},
          {"gradients_dropped", table.gradients_dropped()},
          {"duplicates", table.duplicates()},
          {"refused", table.refused()},
          {"admit_after", std::max<std::uint32_t>(1, spec.admit_after())},
          {"default_row", Number(spec.default_row())},
          {"ttl_steps", spec.ttl_steps()},
          {"bytes_max", spec.bytes_max()},
          {"evict_lru", spec.evict_lru()},
          {"hottest", hottest}};
}

}  // namespace

namespace {

nlohmann::json DeviceJson(const v1::DeviceProgress& d) {
  nlohmann::json recaptures = nlohmann::json::object();
  for (const auto& [reason, count] : d.graph_recaptures()) recaptures[reason] = count;
  return {{"name", d.name()},
          {"memory_bytes",
           {{"used", d.memory_used()},
            {"peak", d.memory_peak()},
            {"reserved", d.memory_reserved()},
            {"free", d.memory_free()}}},
          {"utilization",
           d.utilization_from().empty() ? nlohmann::json(nullptr) : Number(d.utilization())},
          {"utilization_from", d.utilization_from()},
          {"measured_steps", d.measured_steps()},
          {"seconds",
           {{"in", Number(d.in_seconds())},
            {"kernels", Number(d.kernel_seconds())},
            {"out", Number(d.out_seconds())},
            {"stalled", Number(d.stalled_seconds())},
            {"wait", Number(d.wait_seconds())}}},
          {"waits", d.waits()},
          {"batches_ahead", d.batches_ahead()},
          {"steps",
           {{"eager", d.steps_eager()},
            {"captured", d.graph_captures()},
            {"replayed", d.graph_replays()}}},
          {"recaptures", recaptures},
          {"loss_scale", d.loss_scale() > 0 ? Number(d.loss_scale()) : nlohmann::json(nullptr)},
          {"loss_scale_overflows", d.loss_scale_overflows()}};
}

}  // namespace

nlohmann::json JsonOf(const v1::JobStatus& job) {
  nlohmann::json out = {
      {"job_uid", ShowHex(job.job_uid())},
      {"name", job.name()},
      {"owner", job.owner()},
      {"request_id", job.request_id()},
      {"state", job.state()},
      {"phase", job.phase()},
      {"revision", job.revision()},
      {"waiting_for", job.waiting_for()},
      {"runs_folder", job.runs_folder()},
      {"runs_host", job.runs_host()},
      {"closures_total", job.closures_total()},
      {"closures_succeeded", job.closures_succeeded()},
      {"closures_failed", job.closures_failed()},
      {"closures_cancelled", job.closures_cancelled()},
      {"closures_rerun", job.closures_rerun()},
      {"attempts", job.attempts()},
      {"updates_redone", job.updates_redone()},
      {"shards_rolled_back", job.shards_rolled_back()},
      {"closures_lost", job.closures_lost()},
      {"updates_lost", job.updates_lost()},
      {"steps_total", job.steps_total()},
      {"steps_done", job.steps_done()},
      {"epochs", job.epochs()},
      {"epoch", job.epoch()},
      {"examples_per_second", Number(job.examples_per_second())},
      {"loss", Number(job.loss())},
      {"eta_seconds", job.eta_seconds() < 0 ? nlohmann::json(nullptr) : Number(job.eta_seconds())},
      {"share", job.share()},
      {"workers_serving", job.workers_serving()},
      {"worker_seconds", Number(job.worker_seconds())},
      {"server_bytes", job.server_bytes()},
      {"server_bytes_max", job.server_bytes_max()},
      {"submitted_ms", job.submitted_ms()},
      {"started_ms", job.started_ms()},
      {"ended_ms", job.ended_ms()}};
  out["first_cause"] = nullptr;
  if (job.has_first_cause()) {
    const v1::ErrorDetail& cause = job.first_cause();
    out["first_cause"] = {{"message", cause.message()},
                          {"kind", cause.kind()},
                          {"origin", cause.origin_text()},
                          {"retryable", cause.retryable()},
                          {"code", cause.code()}};
  }
  out["checkpoint"] = nullptr;
  if (job.has_checkpoint()) {
    const v1::CheckpointStatus& checkpoint = job.checkpoint();
    out["checkpoint"] = {{"number", checkpoint.number()},
                         {"written_ms", checkpoint.written_ms()},
                         {"complete", checkpoint.complete()},
                         {"path", checkpoint.uri()},
                         {"manifests", checkpoint.manifests()},
                         {"trouble", checkpoint.trouble()},
                         {"resumed_from", checkpoint.resumed_from()}};
  }
  out["epoch_rows"] = nlohmann::json::array();
  for (const v1::EpochRow& row : job.epoch_rows()) {
    nlohmann::json metrics = nlohmann::json::object();
    for (const auto& [name, value] : row.metrics()) metrics[name] = Number(value);
    out["epoch_rows"].push_back({{"epoch", row.epoch()},
                                 {"steps", row.steps()},
                                 {"train_loss", Number(row.train_loss())},
                                 {"eval_loss", Number(row.eval_loss())},
                                 {"eval_accuracy", Number(row.eval_accuracy())},
                                 {"metrics", metrics},
                                 {"seconds", Number(row.seconds())},
                                 {"examples_per_second", Number(row.examples_per_second())},
                                 {"counting_sum", row.counting_sum()}});
  }
  out["workers"] = nlohmann::json::array();
  for (const v1::WorkerRow& row : job.workers()) {
    out["workers"].push_back({{"identity", row.identity()},
                              {"state", row.state()},
                              {"steps", row.steps()},
                              {"examples", row.examples()},
                              {"closure", row.closure()}});
    if (row.has_device()) out["workers"].back()["device"] = DeviceJson(row.device());
    for (const v1::UnreachedServer& one : row.unreached())
      out["workers"].back()["unreached"].push_back(
          {{"server", one.server()},
           {"address", one.address()},
           {"seconds", Number(static_cast<double>(one.for_ms()) / 1000)},
           {"reason", one.reason()}});
  }
  out["servers"] = nlohmann::json::array();
  for (const v1::ServerRow& row : job.servers())
    out["servers"].push_back({{"identity", row.identity()},
                              {"state", row.state()},
                              {"shards", row.shards()},
                              {"bytes", row.bytes()},
                              {"bytes_moved", row.bytes_moved()},
                              {"duplicates_refused", row.duplicates_refused()}});
  out["weights_exported"] = job.weights_exported();
  out["backing_off"] = nlohmann::json::array();
  for (const v1::TaskBackoff& backoff : job.backing_off())
    out["backing_off"].push_back({{"task", backoff.task()},
                                  {"deaths", backoff.deaths()},
                                  {"idle_deaths", backoff.idle_deaths()},
                                  {"for_ms", backoff.for_ms()},
                                  {"reason", backoff.reason()},
                                  {"host", backoff.host()}});
  out["events"] = nlohmann::json::array();
  for (const v1::Event& event : job.events())
    out["events"].push_back({{"number", event.number()},
                             {"wall_ms", event.wall_ms()},
                             {"kind", event.kind()},
                             {"text", event.text()}});
  out["result"] = nullptr;
  if (!job.result_json().empty()) {
    auto result = nlohmann::json::parse(job.result_json(), nullptr, false);
    if (!result.is_discarded()) out["result"] = std::move(result);
  }
  return out;
}

nlohmann::json JsonOf(const v1::TaskRow& task) {
  nlohmann::json jobs = nlohmann::json::array();
  for (const v1::TaskJob& job : task.jobs())
    jobs.push_back({{"name", job.name()},
                    {"job_uid", ShowHex(job.job_uid())},
                    {"shards", job.shards()},
                    {"bytes", job.bytes()}});
  return {{"role", RoleText(task.role())},
          {"identity", task.identity()},
          {"registration", StampText(task.registration())},
          {"state", task.state()},
          {"since_ms", task.since_ms()},
          {"reason", task.reason()},
          {"recommendation", task.recommendation()},
          {"cordoned", task.cordoned()},
          {"pid", task.pid()},
          {"host", task.host()},
          {"address", task.address()},
          {"metrics_address", task.metrics_address()},
          {"registrations", task.registrations()},
          {"activity", task.activity()},
          {"jobs", jobs},
          {"steps", task.steps()},
          {"shards", task.shards()},
          {"bytes", task.bytes()},
          {"insecure_listen", task.insecure_listen()},
          {"build_id", task.build_id()},
          {"started_ms", task.started_ms()},
          {"process_uid", ShowHex(task.process_uid())}};
}

nlohmann::json JsonOf(const v1::VariableRow& variable) {
  nlohmann::json shards = nlohmann::json::array();
  for (int i = 0; i < variable.shards_size(); ++i) {
    const v1::ShardState& shard = variable.shards(i);
    shards.push_back({{"shard", shard.shard()},
                      {"variable", shard.variable()},
                      {"rows", {shard.row_begin(), shard.row_end()}},
                      {"bytes", shard.bytes()},
                      {"slot_bytes", shard.slot_bytes()},
                      {"server", i < variable.servers_size() ? variable.servers(i) : ""},
                      {"epoch", StampText(shard.epoch())},
                      {"start", StampText(shard.start())},
                      {"lsn", shard.lsn()},
                      {"vlsn", shard.vlsn()},
                      {"updates_applied", shard.updates_applied()},
                      {"skips", shard.skips()},
                      {"duplicates_refused", shard.duplicates_refused()},
                      {"pulls", shard.pulls()},
                      {"pushes", shard.pushes()},
                      {"bytes_in", shard.bytes_received()},
                      {"bytes_out", shard.bytes_sent()},
                      {"digest", ShowHex(shard.digest())},
                      {"slot_digest", ShowHex(shard.slot_digest())}});
  }
  nlohmann::json shape = nlohmann::json::array();
  for (const std::uint64_t d : variable.shape()) shape.push_back(d);
  return {{"name", variable.name()},
          {"shape", shape},
          {"dtype", variable.dtype() == v1::DTYPE_FLOAT32 ? "float32" : "unknown"},
          {"bytes", variable.bytes()},
          {"digest", ShowHex(variable.digest())},
          {"slot_digest", ShowHex(variable.slot_digest())},
          {"complete", variable.complete()},
          {"optimizer", OptimizerJson(variable.has_table() ? variable.table_spec().optimizer()
                                                           : variable.variable_spec().optimizer())},
          {"table", variable.has_table() ? TableJson(variable) : nlohmann::json(nullptr)},
          {"shards", shards}};
}

nlohmann::json JsonOf(const v1::LogLine& line) {
  return {{"wall_ms", line.wall_ms()},
          {"level", line.level()},
          {"task", line.task()},
          {"job", line.job()},
          {"text", line.text()}};
}

nlohmann::json JsonOf(const v1::GetClusterInfoResponse& info) {
  return {{"term", info.term()},
          {"life_id", ShowHex(info.life_id())},
          {"build_id", info.build_id()},
          {"protocol_version", info.protocol_version()},
          {"runs_folder", info.runs_folder()},
          {"pid", info.pid()},
          {"servers_alive", info.servers_alive()},
          {"workers_alive", info.workers_alive()},
          {"address", info.address()}};
}

std::string Dump(const nlohmann::json& json, int indent) {
  return JsonWithoutHidden(json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace evergrad::psctl
