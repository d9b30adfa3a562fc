// A worker's session that a tool controls. The session registers, accepts grants and keeps them.
// Tools use it to push to a real cluster, whose servers accept only pushes of granted closures, or
// to send wrong messages. The destructor leaves the cluster like a worker that was told to leave,
// so that its closures are granted to other workers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/client/session_client.h"
#include "common/log/log.h"
#include "common/random/philox.h"
#include "common/runtime/executor.h"
#include "common/transport/transport.h"
#include "evergrad/v1/data.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::test {

class GrantHolder {
 public:
  // Called for each grant, on the executor of the session. The session sends the message that the
  // function returns. If there is no function, the session keeps the grants.
  using Answer =
      std::function<std::optional<v1::TaskMessage>(const v1::Grant&, const v1::Stamp& map_version)>;
  GrantHolder(transport::Transport* transport, const std::string& coordinator, std::string name,
              Answer answer = {})
      : name_(std::move(name)), answer_(std::move(answer)), logger_([] {
          log::Options options;
          options.level = log::Level::kError;
          return options;
        }()) {
    client::SessionClient::Options options;
    options.coordinator_address = coordinator;
    options.jitter_seed = random::EntropyFromOs();
    client::SessionClient::Events events;
    events.make_hello = [this, uid = options.jitter_seed] {
      v1::Hello hello;
      hello.set_role(v1::ROLE_WORKER);
      hello.set_identity(name_);
      hello.set_process_uid(uid);
      hello.set_host("by hand");
      return hello;
    };
    events.make_heartbeat = [] {
      v1::Heartbeat heartbeat;
      heartbeat.mutable_worker()->set_state("idle");
      return heartbeat;
    };
    events.on_registered = [this](const v1::Registered& registered) {
      if (registered.has_map()) version_ = registered.map().version();
    };
    events.on_message = [this](const v1::CoordinatorMessage& message) { OnMessage(message); };
    executor_.Post(
        [this, transport, options = std::move(options), events = std::move(events)]() mutable {
          session_ = std::make_unique<client::SessionClient>(transport, &executor_, &logger_,
                                                             std::move(options), std::move(events));
          session_->Start();
        });
  }
  ~GrantHolder() {
    runtime::WaitableEvent left;
    executor_.Post([&] {
      v1::TaskMessage message;
      message.mutable_leaving()->set_reason("the tool ends");
      session_->Send(std::move(message));
      session_->Stop();
      left.Set();
    });
    left.Wait();
    executor_.Shutdown();
    session_.reset();
  }

  // Returns the first training grant of `job`, or nullopt if none arrives in time.
  std::optional<v1::Grant> WaitGrant(std::uint64_t job, std::chrono::milliseconds timeout) {
    MutexLock lock(&mu_);
    const auto end = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      for (const v1::Grant& grant : granted_) {
        if (grant.job_uid() == job) return grant;
      }
      const auto now = std::chrono::steady_clock::now();
      if (now >= end) return std::nullopt;
      changed_.WaitFor(&mu_, std::chrono::duration_cast<std::chrono::milliseconds>(end - now) +
                                 std::chrono::milliseconds(1));
    }
  }
  // Adds the name of the worker and the proof of this grant to the header. A push needs both.
  void Prove(const v1::Grant& grant, v1::RequestHeader* header) const {
    header->set_client_name("worker/" + name_);
    v1::GrantProof& proof = *header->add_grants();
    proof.set_closure(grant.closure());
    *proof.mutable_attempt() = grant.attempt();
    proof.set_mac(grant.proof());
  }

 private:
  void OnMessage(const v1::CoordinatorMessage& message) {
    if (message.has_map()) version_ = message.map().version();
    if (!message.has_grant()) return;
    if (answer_) {
      if (auto answer = answer_(message.grant(), version_)) session_->Send(*std::move(answer));
      return;
    }
    if (message.grant().kind() != v1::TRAIN) return;
    MutexLock lock(&mu_);
    granted_.push_back(message.grant());
    changed_.NotifyAll();
  }

  const std::string name_;
  const Answer answer_;
  log::Logger logger_;
  runtime::ThreadExecutor executor_{runtime::ThreadExecutor::Options{"by-hand"}};
  std::unique_ptr<client::SessionClient> session_;  // used only on the executor
  v1::Stamp version_;                               // used only on the executor
  Mutex mu_;
  CondVar changed_;
  std::vector<v1::Grant> granted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::test
