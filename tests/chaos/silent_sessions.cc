// Opens sessions with a coordinator that send a Hello and nothing else. Scenario W19 runs it.
//
//   evergrad-silent-sessions --coordinator ADDR [--sessions 150] [--name f] [--life MS]
//
// The sessions are opened one after another. Each sends the Hello of a worker with a fresh name,
// waits for the coordinator's answer, and is closed after --life. The program prints how many
// sessions were registered, how many were refused because of a limit, how many of the refused ones
// got a time to retry, and how many grants arrived.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/client/protocol.h"
#include "common/random/philox.h"
#include "common/runtime/executor.h"
#include "common/transport/grpc/grpc_transport.h"
#include "evergrad/v1/session.pb.h"

namespace {

using namespace evergrad;
using std::chrono::milliseconds;

constexpr milliseconds kAnswerWithin{10000};

struct Heard {
  Mutex mu;
  int registered ABSL_GUARDED_BY(mu) = 0;
  int limited ABSL_GUARDED_BY(mu) = 0, told_when ABSL_GUARDED_BY(mu) = 0,
              other ABSL_GUARDED_BY(mu) = 0;
  int grants ABSL_GUARDED_BY(mu) = 0;
};

bool OneSession(transport::Transport& transport, const std::string& coordinator,
                const std::string& name, milliseconds life, Heard& heard) {
  auto channel = transport.Dial({coordinator, ""}, {});
  if (!channel.ok()) return false;
  runtime::WaitableEvent answered;
  transport::MessageStreamEvents events;
  events.on_message = [&](const std::string& bytes) {
    v1::CoordinatorBatch batch;
    if (!batch.ParseFromString(bytes)) return;
    MutexLock lock(&heard.mu);
    for (const v1::CoordinatorMessage& message : batch.messages()) {
      heard.registered += message.has_registered();
      heard.grants += message.has_grant();
      if (message.has_rejected() && message.rejected().kind() == "limit") {
        ++heard.limited;
        heard.told_when += message.rejected().retry_after_ms() > 0;
      } else if (message.has_rejected()) {
        ++heard.other;
      }
    }
    answered.Set();
  };
  events.on_end = [&](const absl::Status&) { answered.Set(); };
  auto stream = (*channel)->OpenStream(client::kSessionMethod, std::move(events));
  v1::TaskBatch batch;
  v1::Hello* hello = batch.add_messages()->mutable_hello();
  hello->set_protocol_version(client::kProtocolVersion);
  hello->set_build_id("nobody");
  hello->set_role(v1::ROLE_WORKER);
  hello->set_identity(name);
  hello->set_process_uid(random::EntropyFromOs() | 1);
  hello->set_pid(1);
  hello->set_host("nowhere");
  const bool sent = stream->Send(batch.SerializeAsString()).ok();
  const bool in_time = answered.WaitFor(kAnswerWithin);
  if (life.count() > 0) {
    runtime::WaitableEvent never;
    never.WaitFor(life);
  }
  stream->Close();
  stream.reset();
  return sent && in_time;
}

}  // namespace

int main(int argc, char** argv) {
  std::string coordinator, name = "f";
  int sessions = 150;
  milliseconds life{0};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--coordinator") {
      coordinator = argv[i + 1];
    } else if (flag == "--name") {
      name = argv[i + 1];
    } else if (flag == "--sessions") {
      sessions = std::atoi(argv[i + 1]);
    } else if (flag == "--life") {
      life = milliseconds(std::atoi(argv[i + 1]));
    } else {
      std::fprintf(stderr, "unknown flag: %s\n", flag.c_str());
      return 2;
    }
  }
  const auto transport = transport::MakeGrpcTransport(nullptr);
  Heard heard;
  int failed = 0;
  for (int i = 0; i < sessions; ++i)
    failed += !OneSession(*transport, coordinator, absl::StrCat(name, i), life, heard);
  MutexLock lock(&heard.mu);
  std::printf(
      "{\"registered\": %d, \"limited\": %d, \"told_when\": %d, \"refused_otherwise\": %d, "
      "\"grants\": %d, \"failed\": %d}\n",
      heard.registered, heard.limited, heard.told_when, heard.other, heard.grants, failed);
  return 0;
}
