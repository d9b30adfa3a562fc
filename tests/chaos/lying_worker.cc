// A worker that reports Done for the first training closures that it is granted, without computing
// them.
//
//   evergrad-lying-worker --coordinator ADDR --lies N
//
// It ends after N such reports and prints their number. The exit code is 0 if N reports were sent.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/runtime/executor.h"
#include "common/transport/grpc/grpc_transport.h"
#include "tests/support/grant_holder.h"

int main(int argc, char** argv) {
  using namespace evergrad;
  std::string coordinator;
  int lies = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--coordinator") coordinator = value;
    if (flag == "--lies") lies = std::atoi(value.c_str());
  }
  const auto transport = transport::MakeGrpcTransport(nullptr);
  std::atomic<int> said{0};
  runtime::WaitableEvent enough;
  {
    test::GrantHolder worker(transport.get(), coordinator, "liar",
                             [&](const v1::Grant& grant, const v1::Stamp& version) {
                               v1::TaskMessage message;
                               if (grant.kind() != v1::TRAIN || said.load() >= lies) {
                                 v1::AttemptDropped& dropped = *message.mutable_dropped();
                                 dropped.set_job_uid(grant.job_uid());
                                 dropped.set_closure(grant.closure());
                                 *dropped.mutable_attempt() = grant.attempt();
                                 return std::optional(std::move(message));
                               }
                               v1::Done& done = *message.mutable_done();
                               done.set_job_uid(grant.job_uid());
                               done.set_closure(grant.closure());
                               *done.mutable_attempt() = grant.attempt();
                               done.set_kind(grant.kind());
                               done.set_all_targets(grant.all_targets());
                               *done.mutable_targets() = grant.targets();
                               *done.mutable_v0() = *done.mutable_v1() = version;
                               done.mutable_metrics()->set_examples(40);
                               done.mutable_metrics()->set_steps(4);
                               done.mutable_touched();
                               if (++said == lies) enough.Set();
                               return std::optional(std::move(message));
                             });
    enough.WaitFor(std::chrono::seconds(30));
  }
  std::printf("lies=%d\n", said.load());
  return said.load() == lies ? 0 : 1;
}
