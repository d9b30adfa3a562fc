// A task's side of the session. The client dials the coordinator, sends Hello, keeps the stream
// open, and redials with backoff until the coordinator is back (promise P4 of ARCHITECTURE). While
// it waits, the client logs the reason, and logs again only when the reason changes. Callbacks run
// on the given executor, in order. Not thread-safe: construct, call and destroy the client on that
// executor, or while the executor runs nothing (before its first task, after its shutdown).
//
//   dial -> Hello -> Registered -> messages both ways, with a heartbeat every
//   Registered.heartbeat_ms -> lost -> backoff -> dial
//
// Messages from the coordinator are not trusted. A message that is unreadable, or out of the order
// above, ends the session.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "common/transport/transport.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::client {

class SessionClient {
 public:
  struct Options {
    std::string coordinator_address;
    transport::ChannelOptions channel;
    // The backoff doubles from min to max. Each wait is random, from half of the backoff to the
    // whole, so that a thousand tasks do not redial at the same time.
    std::chrono::milliseconds backoff_min{50}, backoff_max{1000};
    std::uint64_t jitter_seed = 0;  // the process uid
    // Longest time from dialing to Registered. After this time the dial is abandoned and repeated.
    std::chrono::milliseconds registered_within{5000};
    // Called for each heartbeat. Returns the cloud's latest recommendation that the task leave its
    // machine, or "". If the function itself is empty, heartbeats carry no recommendation.
    std::function<std::string()> recommendation;
  };
  struct Events {
    // Called at every dial. Returns the Hello with the identity of the task, and with the shards or
    // attempts that the task holds. The client fills in protocol_version, build_id and cordoned.
    std::function<v1::Hello()> make_hello;
    std::function<void(const v1::Registered&)> on_registered;
    // Receives every message except Registered, Rejected and Cordon. The client keeps the state of
    // Cordon for the Hello.
    std::function<void(const v1::CoordinatorMessage&)> on_message;
    // Called when the coordinator has refused the session. If `exit` is true, the daemon must end,
    // and the client does not dial again.
    std::function<void(const v1::Rejected&)> on_rejected;
    // Called when a registered session has ended. If the coordinator has rejected the session,
    // on_lost is called before on_rejected.
    std::function<void(absl::string_view why)> on_lost;
    // Called when a dial has failed, if the reason differs from that of the previous dial.
    std::function<void(absl::string_view why)> on_waiting;
    // The client fills in `sequence` and `recommendation`.
    std::function<v1::Heartbeat()> make_heartbeat;
  };
  // `transport`, `executor` and `logger` outlive the client. Each function of `events` may be
  // empty.
  SessionClient(transport::Transport* transport, runtime::Executor* executor, log::Logger* logger,
                Options options, Events events);
  ~SessionClient();  // Calls Stop().
  SessionClient(const SessionClient&) = delete;
  SessionClient& operator=(const SessionClient&) = delete;
  void Start();  // called at most once
  // Sends the queued messages (the transport bounds the wait) and closes. No callback runs after
  // Stop. Idempotent.
  void Stop();
  bool registered() const;
  // Queues `message` for a batch, which a task on the executor sends. Returns false if there is no
  // session; the caller must send Done and other important messages again in the next session. True
  // does not guarantee delivery, because a session may end before the bytes are sent. A message
  // larger than the channel's message_bytes_max is refused and logged. If the coordinator does not
  // read, the session ends once unsent_bytes_max is reached.
  bool Send(v1::TaskMessage message);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // posted tasks hold weak references to it
};

}  // namespace evergrad::client
