#include "coordinator/jobs/task_totals.h"

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

// Above this number of entries, a worker that is gone loses its entry if it completed no work.
constexpr std::size_t kWorkersKeptMax = 4096;

void CleanDevice(const v1::DeviceProgress& said, v1::DeviceProgress* to) {
  constexpr std::size_t kReasonsMax = 16;
  *to = said;
  to->set_name(client::CleanText(said.name(), 256));
  to->set_utilization_from(client::CleanText(said.utilization_from(), 16));
  to->clear_graph_recaptures();
  for (const auto& [reason, count] : said.graph_recaptures()) {
    if (static_cast<std::size_t>(to->graph_recaptures_size()) == kReasonsMax) break;
    (*to->mutable_graph_recaptures())[client::CleanText(reason, 64)] = count;
  }
}

void FillCounts(const Counts& counts, v1::JobCounts* out) {
  out->set_steps(counts.steps);
  out->set_examples(counts.examples);
  out->set_bytes(counts.bytes);
  out->set_duplicates(counts.duplicates);
}

Counts ReadCounts(const v1::JobCounts& in) {
  return {in.steps(), in.examples(), in.bytes(), in.duplicates()};
}

void FillTally(const Tally& tally, v1::JobTally* out) {
  const Tally::Parts parts = tally.parts();
  out->set_begun(parts.begun);
  out->set_process_uid(parts.process);
  out->set_stint(parts.stint);
  FillCounts(parts.former, out->mutable_former());
  FillCounts(parts.last, out->mutable_last());
}

Tally ReadTally(const v1::JobTally& in) {
  return Tally::Of(
      {in.begun(), in.process_uid(), in.stint(), ReadCounts(in.former()), ReadCounts(in.last())});
}

}  // namespace

bool TaskTotals::BeginWorker(const std::string& identity, std::uint64_t process) {
  return workers_[identity].tally.Begin(process);
}

bool TaskTotals::BeginServer(const std::string& identity, std::uint64_t process,
                             const v1::Endpoint& endpoint) {
  Server& server = servers_[identity];
  const bool moved = (server.endpoint ? server.endpoint->address() : "") != endpoint.address();
  server.endpoint = endpoint;
  return server.tally.Begin(process) || moved;
}

void TaskTotals::CountClosure(const std::string& worker, std::uint64_t steps,
                              std::uint64_t examples) {
  Worker& sum = workers_[worker];
  sum.steps += steps;
  sum.examples += examples;
}

void TaskTotals::ReportWorker(const std::string& identity, const v1::WorkerProgress& said) {
  Worker& worker = workers_[identity];
  if (said.has_device()) CleanDevice(said.device(), &worker.device.emplace());
  worker.tally.Report(said.job_stint(), {said.steps(), said.examples(), said.job_bytes(), 0});
}

void TaskTotals::ReportServer(const std::string& identity, const v1::JobUsage& said) {
  servers_[identity].tally.Report(
      said.stint(), {0, 0, said.bytes_sent() + said.bytes_received(), said.duplicates_refused()});
}

void TaskTotals::ForgetIdleWorker(const std::string& identity) {
  if (workers_.size() <= kWorkersKeptMax) return;
  const auto found = workers_.find(identity);
  if (found == workers_.end() || found->second.steps > 0 || found->second.tally.total().steps > 0)
    return;
  workers_.erase(found);
}

bool TaskTotals::HasCountedClosures(const std::string& worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.steps > 0;
}

Counts TaskTotals::OfServer(const std::string& identity) const {
  const auto found = servers_.find(identity);
  return found == servers_.end() ? Counts{} : found->second.tally.total();
}

const v1::Endpoint* TaskTotals::EndpointOf(const std::string& server) const {
  const auto found = servers_.find(server);
  return found == servers_.end() || !found->second.endpoint ? nullptr : &*found->second.endpoint;
}

std::uint64_t TaskTotals::duplicates_refused() const {
  std::uint64_t duplicates = 0;
  for (const auto& [identity, server] : servers_) duplicates += server.tally.total().duplicates;
  return duplicates;
}

std::map<std::string, v1::WorkerRow> TaskTotals::WorkerRows() const {
  std::map<std::string, v1::WorkerRow> rows;
  for (const auto& [identity, worker] : workers_) {
    v1::WorkerRow& row = rows[identity];
    row.set_identity(identity);
    row.set_state("gone");
    const Counts counts = worker.tally.total();
    row.set_steps(counts.steps);
    row.set_examples(counts.examples);
    if (worker.device) *row.mutable_device() = *worker.device;
  }
  return rows;
}

std::vector<ReportTask> TaskTotals::Workers() const {
  std::vector<ReportTask> list;
  for (const auto& [identity, worker] : workers_)
    list.push_back({absl::StrCat("worker/", identity), worker.steps, worker.tally.total().bytes});
  return list;
}

std::vector<ReportTask> TaskTotals::Servers(const std::vector<v1::ShardState>& shards,
                                            const std::vector<std::string>& owners) const {
  std::map<std::string, ReportTask> totals;
  for (const auto& [identity, server] : servers_)
    totals[identity] = {absl::StrCat("ps_server/", identity), 0, server.tally.total().bytes};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    ReportTask& total = totals[owners[i]];
    total.name = absl::StrCat("ps_server/", owners[i]);
    total.steps += shards[i].updates_applied();
  }
  std::vector<ReportTask> list;
  for (auto& [identity, total] : totals) list.push_back(std::move(total));
  return list;
}

// ---------------------------------------------------------------- the journal

void TaskTotals::Fill(v1::JobSnapshot* snapshot) const {
  for (const auto& [identity, worker] : workers_) {
    v1::JobWorkerTotal* one = snapshot->add_workers();
    one->set_identity(identity);
    one->set_steps(worker.steps);
    one->set_examples(worker.examples);
    FillTally(worker.tally, one->mutable_tally());
  }
  for (const auto& [identity, server] : servers_) {
    v1::JobServerTotal* one = snapshot->add_servers();
    one->set_identity(identity);
    FillTally(server.tally, one->mutable_tally());
    if (server.endpoint) *one->mutable_endpoint() = *server.endpoint;
  }
}

void TaskTotals::Read(const v1::JobSnapshot& snapshot) {
  for (const v1::JobWorkerTotal& one : snapshot.workers())
    workers_[one.identity()] = {one.steps(), one.examples(), ReadTally(one.tally())};
  for (const v1::JobServerTotal& one : snapshot.servers()) {
    Server& server = servers_[one.identity()];
    server.tally = ReadTally(one.tally());
    if (one.has_endpoint()) server.endpoint = one.endpoint();
  }
}

}  // namespace evergrad::coordinator
