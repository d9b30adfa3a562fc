// Scenario S5 of the faults, on a real cluster: many pushers, each with a separate connection, push
// to the whole of a job's largest shard at once.
//
//   evergrad-fast-pushers --coordinator ADDR --job NAME --server IDENTITY=ADDR … [--pushers 64]
//   [--each 2] [--again 64] [--lane BYTES]
//
// The pushers push zeros, so that the job's values do not change. The servers accept only pushes
// that prove a grant. Therefore this program registers a worker, and pushes under a grant of that
// worker. Its pushes are updates that the plan does not have, so the job cannot succeed and must be
// cancelled. Every push must be applied. Then --again pushers repeat their last push, which the
// server must recognize as a duplicate. The program prints the outcome. Exit code 0 means that no
// push was lost.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/client/control.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/runtime/executor.h"
#include "common/transport/grpc/grpc_transport.h"
#include "evergrad/v1/api.pb.h"
#include "tests/support/grant_holder.h"

namespace {

using namespace evergrad;
using std::chrono::milliseconds;

constexpr milliseconds kPushDeadline{120000}, kAskDeadline{10000};

struct Held {
  v1::ShardState state;
  std::string server;
};

// Returns the job's largest shard, once all shards exist.
std::optional<Held> LargestShard(transport::Channel& coordinator, const std::string& job) {
  v1::ListVariablesRequest request;
  request.set_job(job);
  const auto variables =
      client::CallControl<v1::ListVariablesResponse>(coordinator, request, kAskDeadline);
  if (!variables.ok()) {
    std::fprintf(stderr, "no list of variables: %s\n", variables.status().ToString().c_str());
    return std::nullopt;
  }
  std::optional<Held> largest;
  for (const v1::VariableRow& variable : variables->variables()) {
    for (int i = 0; i < variable.shards_size(); ++i) {
      if (!largest || variable.shards(i).bytes() > largest->state.bytes())
        largest = Held{variable.shards(i), variable.servers(i)};
    }
  }
  return largest;
}

struct Team {
  v1::Endpoint endpoint;
  Held held;
  std::shared_ptr<const std::vector<std::byte>> zeros;  // Shared with the frames on their way.
  const test::GrantHolder* worker = nullptr;
  v1::Grant grant;
  int each = 0;
  v1::PushAnswer want = v1::APPLIED;
  std::atomic<int> good{0}, other{0}, live{0};
  runtime::WaitableEvent over;
};

// Pushes the updates from `from` to `to` - 1, one after another. The last pusher that ends sets
// `over`.
void Push(Team& team, client::ParameterClient& client, int pusher, int from, int to) {
  v1::RequestHeader header;
  header.set_job_uid(team.held.state.job_uid());
  v1::PushSection& push = *header.add_pushes();
  push.set_shard(team.held.state.shard());
  *push.mutable_epoch() = team.held.state.epoch();
  team.worker->Prove(team.grant, &header);
  push.set_closure(team.grant.closure());
  // The job's own updates have smaller numbers than these. No two pushers use the same number.
  push.set_update(static_cast<std::uint32_t>(1024 + pusher * team.each + from));
  *push.mutable_attempt() = team.grant.attempt();
  push.set_kind(v1::GRADIENT);
  push.set_dtype(v1::DTYPE_FLOAT32);
  push.set_rows(team.held.state.row_end() - team.held.state.row_begin());
  client.Send(team.endpoint, std::move(header), {{team.zeros, std::span(*team.zeros)}}, 0,
              kPushDeadline, [&team, &client, pusher, from, to](auto answer) {
                const bool good = answer.ok() && answer->header->pushes(0).answer() == team.want;
                if (!good)
                  std::fprintf(stderr, "pusher %d: %s\n", pusher,
                               answer.ok() ? answer->header->ShortDebugString().c_str()
                                           : answer.status().ToString().c_str());
                ++(good ? team.good : team.other);
                if (good && from + 1 < to) return Push(team, client, pusher, from + 1, to);
                if (--team.live == 0) team.over.Set();
              });
}

struct Options {
  std::string coordinator, job;
  std::map<std::string, std::string> servers;  // address by identity
  int pushers = 64, each = 2, again = 64;
  transport::ChannelOptions channel;
};

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--coordinator") options.coordinator = value;
    if (flag == "--job") options.job = value;
    if (flag == "--pushers") options.pushers = std::atoi(value.c_str());
    if (flag == "--each") options.each = std::atoi(value.c_str());
    if (flag == "--again") options.again = std::atoi(value.c_str());
    if (flag == "--lane")
      options.channel.lane_ring_bytes = static_cast<std::uint64_t>(std::atoll(value.c_str()));
    if (flag == "--server")
      options.servers[value.substr(0, value.find('='))] = value.substr(value.find('=') + 1);
  }
  options.again = std::min(options.again, options.pushers);
  return options;
}

// The number of pushes that got the expected answer, and of those that got another.
struct Outcome {
  int good = 0, other = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Prints the outcome. Returns whether no push was lost.
bool Report(const Options& options, const v1::ShardState& before, const v1::ShardState& after,
            const Outcome& first, const Outcome& again, int lanes) {
  const auto known = after.duplicates_refused() - before.duplicates_refused();
  const auto counted = after.updates_applied() - before.updates_applied();
  const int pushed = options.pushers * options.each;
  std::printf(
      "bytes=%llu pushed=%d applied=%d other=%d sent_again=%d known=%llu updates_more=%llu "
      "lanes=%d\n",
      static_cast<unsigned long long>(before.bytes()), pushed, first.good, first.other, again.good,
      static_cast<unsigned long long>(known), static_cast<unsigned long long>(counted), lanes);
  // `counted` includes the job's own updates, so it may be larger than `pushed`.
  return first == Outcome{pushed, 0} && again == Outcome{options.again, 0} &&
         known == static_cast<std::uint64_t>(options.again) &&
         counted >= static_cast<std::uint64_t>(pushed);
}

}  // namespace

int main(int argc, char** argv) {
  transport::TuneAllocator();
  Options options = Parse(argc, argv);
  std::atomic<int> lanes{0};
  options.channel.on_lane = [&lanes](const absl::Status& status) { lanes += status.ok(); };
  const auto transport = transport::MakeGrpcTransport(nullptr);
  auto coordinator = transport->Dial({.host_port = options.coordinator}, {});
  if (!coordinator.ok()) return 2;
  const auto before = LargestShard(**coordinator, options.job);
  if (!before || !options.servers.contains(before->server)) {
    std::fprintf(stderr, "no shard to push to\n");
    return 2;
  }
  test::GrantHolder worker(transport.get(), options.coordinator, "fast");
  const auto grant = worker.WaitGrant(before->state.job_uid(), kAskDeadline);
  if (!grant) {
    std::fprintf(stderr, "nothing was granted to the pushers\n");
    return 2;
  }
  std::vector<std::unique_ptr<client::ParameterClient>> clients;
  for (int i = 0; i < options.pushers; ++i) {
    clients.push_back(std::make_unique<client::ParameterClient>(
        transport.get(), options.channel, "worker/fast-" + std::to_string(i)));
  }
  const auto zeros = std::make_shared<const std::vector<std::byte>>(before->state.bytes());
  const auto run = [&](int count, int from, v1::PushAnswer want) {
    Team team;
    team.endpoint.set_address(options.servers[before->server]);
    team.held = *before;
    team.zeros = zeros;
    team.worker = &worker;
    team.grant = *grant;
    team.each = options.each;
    team.want = want;
    team.live = count;
    for (int i = 0; i < count; ++i)
      Push(team, *clients[static_cast<std::size_t>(i)], i, from, options.each);
    team.over.Wait();
    return Outcome{team.good, team.other};
  };
  const Outcome first = run(options.pushers, 0, v1::APPLIED),
                again = run(options.again, options.each - 1, v1::DUPLICATE);
  const auto after = LargestShard(**coordinator, options.job);
  if (!after) return 2;
  return Report(options, before->state, after->state, first, again, lanes.load()) ? 0 : 1;
}
