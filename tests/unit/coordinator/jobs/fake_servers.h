// The servers of a FakeCluster. They answer each message of a job at once, and write their files
// to a file system in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/client/protocol.h"
#include "common/snapshot/shard_file.h"
#include "fake_host.h"

namespace evergrad::coordinator {

struct FakeServer {
  struct Shard {
    v1::Assign assign;
    bool sealed = false, stopped = false;
    bool loading = false;  // whether the server's Hello says that it still loads the shard
    IntervalSet done;
    IntervalSet refused = {};
    std::uint64_t lsn = 0;
    std::optional<v1::ShardFile> saved;  // the last snapshot, if the shard has not changed since
    std::uint64_t stopped_in = 0;
  };
  TaskId task;
  std::uint64_t process = 0;
  std::string identity;
  std::map<std::uint32_t, Shard> shards;
  bool silent = false;  // if true, the server receives messages and never answers
  std::uint64_t bytes = 0;
  bool ended = false;
  // Shards that this server has received for a move and does not own yet. Each one comes with the
  // shard epoch that it had at the server that sent it.
  std::map<std::uint32_t, std::pair<v1::Stamp, Shard>> moving;
  std::string leaving;  // the reason for leaving that the server's Hello states
  int drained = 0;      // number of Drained messages received
  std::string cannot;   // why the shards cannot be moved, from the last Drained message
};

// The base of FakeCluster for servers. Tests reach these members through the cluster.
class FakeServers {
 public:
  virtual ~FakeServers() = default;
  // Sends a message of a task to the job.
  virtual void Say(TaskId task, const v1::TaskMessage& message) = 0;

  std::map<std::string, FakeServer> servers;
  std::uint64_t server_budget_bytes_max = 0;  // memory limit that the servers state in their Hello
  std::function<absl::Status(const v1::CutShards&, std::uint32_t shard)> cut_error =
      [](const v1::CutShards&, std::uint32_t) { return absl::OkStatus(); };
  // The file system to which the servers write. Null stands for the coordinator's file system.
  std::shared_ptr<fs::MemoryFileSystem> elsewhere;
  std::function<void(const std::string& uri, const v1::ShardFile&)> on_saved =
      [](const std::string&, const v1::ShardFile&) {};
  std::uint64_t cuts = 0;  // number of shards that were saved
  std::vector<v1::Assign> assigns;
  // Returns whether a message to a server is lost.
  std::function<bool(const FakeServer&, const v1::CoordinatorMessage&)> lose =
      [](const FakeServer&, const v1::CoordinatorMessage&) { return false; };
  // Returns the error with which a server fails to stop or to receive a shard that must move.
  std::function<absl::Status(const FakeServer&, std::uint32_t shard)> move_error =
      [](const FakeServer&, std::uint32_t) { return absl::OkStatus(); };
  std::function<bool(const v1::Assign&)> hold_assign = [](const v1::Assign&) { return false; };
  // Number of applied updates that each shard reports, at any time.
  std::uint64_t updates_reported = 32;

 protected:
  // Returns the Hello of a new session, with the shards that the server holds.
  v1::Hello HelloOf(const FakeServer& server, JobUid job) const {
    v1::Hello hello;
    hello.set_host("host-of-" + server.identity);
    hello.mutable_endpoint()->set_address("inproc:" + server.identity + "." +
                                          std::to_string(server.task.value()));
    hello.mutable_endpoint()->set_budget_bytes_max(server_budget_bytes_max);
    for (const auto& [p, shard] : server.shards) {
      v1::HeldShard* held = hello.add_shards();
      held->set_job_uid(job.value());
      held->set_shard(p);
      *held->mutable_epoch() = shard.assign.epoch();
      *held->mutable_start() = shard.assign.start();
      *held->mutable_done() = client::ToProto(shard.done);
      held->set_loading(shard.loading);
      held->set_stopped_in(shard.stopped_in);
    }
    hello.set_leaving(server.leaving);
    hello.set_process_uid(server.process);
    return hello;
  }

  // Does what a server does with this message of the coordinator.
  void AtServer(FakeServer& server, const v1::CoordinatorMessage& message, FakeHost& host) {
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kAssign: OnAssign(server, message.assign(), host); break;
      case v1::CoordinatorMessage::kDrop: OnDrop(server, message.drop()); break;
      case v1::CoordinatorMessage::kStop: OnStop(server, message.stop(), host); break;
      case v1::CoordinatorMessage::kReceive: OnReceive(server, message.receive()); break;
      case v1::CoordinatorMessage::kDrained:
        ++server.drained;
        server.cannot = message.drained().cannot();
        break;
      case v1::CoordinatorMessage::kClose: OnClose(server, message.close()); break;
      case v1::CoordinatorMessage::kCut: OnCut(server, message.cut(), host); break;
      case v1::CoordinatorMessage::kSeal: OnSeal(server, message.seal()); break;
      case v1::CoordinatorMessage::kReportShards: OnReport(server, message.report_shards()); break;
      case v1::CoordinatorMessage::kJobEnded:
        server.ended = true;
        server.shards.clear();
        break;
      default: break;
    }
  }

 private:
  fs::MemoryFileSystem* DiskOf(FakeHost& host) {
    return elsewhere ? elsewhere.get() : host.disk.get();
  }
  // Sets the job, the shard and the epoch, which every answer about a shard has. The job and the
  // epoch are those of the order.
  template <class Answer, class Order>
  static void Address(const Order& order, std::uint32_t shard, Answer* answer) {
    answer->set_job_uid(order.job_uid());
    answer->set_shard(shard);
    *answer->mutable_epoch() = order.epoch();
  }

  void OnAssign(FakeServer& server, const v1::Assign& assign, FakeHost& host) {
    const std::uint32_t p = assign.spec().shard();
    v1::TaskMessage answer;
    v1::Assigned* assigned = answer.mutable_assigned();
    Address(assign, p, assigned);
    assigns.push_back(assign);
    server.shards[p] = {assign, false, false, false, {}, {}, 0, std::nullopt, 0};
    absl::Status status;
    if (assign.has_moved_from()) status = TakeMoved(server, assign);
    if (status.ok() && assign.has_snapshot())
      status = Load(assign, DiskOf(host), &server.shards[p]);
    if (!status.ok()) {
      server.shards.erase(p);
      *assigned->mutable_error() = client::ToErrorDetail(status);
    } else if (hold_assign(assign)) {
      return;
    } else {
      assigned->set_ok(true);
    }
    Say(server.task, answer);
  }
  static absl::Status TakeMoved(FakeServer& server, const v1::Assign& assign) {
    const auto moved = server.moving.extract(assign.spec().shard());
    if (moved.empty() || moved.mapped().first.n() != assign.moved_from().n())
      return absl::NotFoundError("this server does not have the state of a moved shard");
    FakeServer::Shard& shard = server.shards[assign.spec().shard()];
    shard.done = moved.mapped().second.done;
    shard.refused = moved.mapped().second.refused;
    shard.lsn = moved.mapped().second.lsn;
    return absl::OkStatus();
  }
  static absl::Status Load(const v1::Assign& assign, fs::MemoryFileSystem* disk,
                           FakeServer::Shard* shard) {
    const auto report = snapshot::VerifyShardFile(*disk, assign.snapshot().uri());
    if (!report.ok()) return report.status();
    shard->done = report->done;
    if (auto more = client::FromProto(assign.refused()); more.ok())
      shard->refused = report->refused.Union(*more);
    shard->lsn = report->header.lsn();
    if (assign.snapshot().replace_ledger()) {
      if (auto done = client::FromProto(assign.snapshot().done()); done.ok()) shard->done = *done;
    }
    return absl::OkStatus();
  }

  static void OnDrop(FakeServer& server, const v1::Drop& drop) {
    const auto is = [&](const v1::Stamp& epoch) {
      return epoch.term() == drop.epoch().term() && epoch.n() == drop.epoch().n();
    };
    if (const auto moved = server.moving.find(drop.shard());
        moved != server.moving.end() && is(moved->second.first))
      server.moving.erase(moved);
    if (const auto held = server.shards.find(drop.shard());
        held != server.shards.end() && is(held->second.assign.epoch()))
      server.shards.erase(held);
  }

  void OnStop(FakeServer& server, const v1::StopShard& stop, FakeHost& host) {
    v1::TaskMessage answer;
    v1::ShardStopped* stopped = answer.mutable_stopped();
    Address(stop, stop.shard(), stopped);
    if (absl::Status status = move_error(server, stop.shard()); !status.ok()) {
      *stopped->mutable_error() = client::ToErrorDetail(status);
    } else {
      FakeServer::Shard& shard = server.shards.at(stop.shard());
      shard.stopped = true;
      shard.stopped_in = host.term().value();
      stopped->set_bytes(100);
      stopped->set_sha256(std::string(32, 's'));
    }
    Say(server.task, answer);
  }

  void OnReceive(FakeServer& server, const v1::ReceiveShard& receive) {
    const std::uint32_t p = receive.spec().shard();
    v1::TaskMessage answer;
    v1::ShardReceived* received = answer.mutable_received();
    Address(receive, p, received);
    const auto from = servers.find(receive.from().server());
    absl::Status status = move_error(server, p);
    if (status.ok() && (from == servers.end() || from->second.shards.count(p) == 0))
      status = absl::UnavailableError("nobody is there");
    if (!status.ok()) {
      *received->mutable_error() = client::ToErrorDetail(status);
    } else {
      const FakeServer::Shard& state = from->second.shards.at(p);
      if (!state.stopped || receive.sha256() != std::string(32, 's'))
        throw std::runtime_error("a shard is moved that its owner has not stopped");
      server.moving[p] = {receive.epoch(), state};
    }
    Say(server.task, answer);
  }

  void OnClose(FakeServer& server, const v1::Close& close) {
    v1::TaskMessage answer;
    v1::Closed* closed = answer.mutable_closed();
    const auto held = server.shards.find(close.shard());
    const bool taken = held != server.shards.end() && !held->second.stopped;
    if (auto done = client::FromProto(close.done()); taken && done.ok())
      held->second.done.UnionWith(*done);
    if (auto refused_set = client::FromProto(close.refused()); taken && refused_set.ok())
      held->second.refused.UnionWith(*refused_set);
    Address(close, close.shard(), closed);
    *closed->mutable_version() = close.version();
    closed->set_taken(taken);
    Say(server.task, answer);
  }

  void OnCut(FakeServer& server, const v1::CutShards& cut, FakeHost& host) {
    for (const v1::CutShard& one : cut.shards()) {
      v1::TaskMessage durable;
      v1::ShardDurable* said = durable.mutable_shard_durable();
      said->set_job_uid(cut.job_uid());
      said->set_shard(one.shard());
      *said->mutable_epoch() = one.epoch();
      const absl::Status status = cut_error(cut, one.shard());
      // This error means that the server sends no answer.
      if (absl::IsDeadlineExceeded(status)) continue;
      if (status.ok()) {
        *said->mutable_file() = Save(cut, DiskOf(host), &server.shards.at(one.shard()));
      } else {
        *said->mutable_error() = client::ToErrorDetail(status);
      }
      said->set_tried_again(absl::IsResourceExhausted(status));
      Say(server.task, durable);
    }
  }
  v1::ShardFile Save(const v1::CutShards& cut, fs::MemoryFileSystem* disk,
                     FakeServer::Shard* shard) {
    if (shard->saved &&
        client::FromProto(shard->saved->done())->ToString() == shard->done.ToString() &&
        client::FromProto(shard->saved->refused())->ToString() == shard->refused.ToString())
      return *shard->saved;
    ++cuts;
    const v1::ShardFile said =
        WriteShardFile(disk, cut, shard->assign.spec(), shard->assign.epoch(),
                       shard->assign.start(), ++shard->lsn, shard->done, shard->refused);
    shard->saved = said;
    on_saved(fs::JoinUri(cut.folder(), said.file()), said);
    return said;
  }

  void OnSeal(FakeServer& server, const v1::Seal& seal) {
    v1::TaskMessage answer;
    server.shards[seal.shard()].sealed = true;
    Address(seal, seal.shard(), answer.mutable_sealed());
    Say(server.task, answer);
  }

  void OnReport(FakeServer& server, const v1::ReportShards& request) {
    // As in the daemon, a heartbeat with the counters is sent before the report.
    v1::TaskMessage beat;
    v1::JobUsage* use = beat.mutable_heartbeat()->mutable_server()->add_jobs();
    use->set_job_uid(request.job_uid());
    use->set_stint(1);
    use->set_duplicates_refused(server.shards.size());
    use->set_bytes_received(server.bytes);
    Say(server.task, beat);
    v1::TaskMessage answer;
    v1::ShardReport* report = answer.mutable_shard_report();
    report->set_request_id(request.request_id());
    for (const auto& [p, shard] : server.shards) {
      // Each message has one shard, as if a server with many shards had to split its report.
      if (report->shards_size() > 0) {
        report->set_more(true);
        Say(server.task, answer);
        report->clear_shards();
        report->set_more(false);
      }
      FillState(p, shard, request.job_uid(), report->add_shards());
    }
    Say(server.task, answer);
  }
  void FillState(std::uint32_t p, const FakeServer::Shard& shard, std::uint64_t job,
                 v1::ShardState* state) const {
    const v1::ShardSpec& spec = shard.assign.spec();
    state->set_job_uid(job);
    state->set_shard(p);
    state->set_variable(spec.variable().name());
    state->set_row_begin(spec.row_begin());
    state->set_row_end(spec.row_end());
    state->set_bytes((spec.row_end() - spec.row_begin()) * 4);
    *state->mutable_epoch() = shard.assign.epoch();
    *state->mutable_start() = shard.assign.start();
    state->set_lsn(40 + p);
    state->set_updates_applied(updates_reported);
    state->set_duplicates_refused(1);
    state->set_digest(1000 + p);
  }
};

}  // namespace evergrad::coordinator
