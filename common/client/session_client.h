// A task's side of the session: dials the coordinator, says Hello, keeps the stream, redials with
// backoff for ever (P4), and says what it waits for (once per change). Callbacks run on the given
// executor, in order. Not thread-safe: construct, call and destroy it on that executor, or while
// the executor runs nothing (before its first task, after its shutdown).
//
//   dial -> Hello -> Registered -> messages both ways, a heartbeat every Registered.heartbeat_ms ->
//   lost -> backoff -> dial
//
// What the coordinator sends is not trusted: a message that cannot be read or does not fit this
// order ends the session.
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
    // Doubles from min to max; each wait is drawn from its upper half, so that a thousand tasks do
    // not come back at once.
    std::chrono::milliseconds backoff_min{50}, backoff_max{1000};
    std::uint64_t jitter_seed = 0;  // the process uid
    std::chrono::milliseconds registered_within{
        5000};  // from dialing to Registered, else the dial is given up and repeated
  };
  struct Events {
    std::function<v1::Hello()> make_hello;  // asked at every dial: identity, what is held now.
                                            // protocol_version and build_id are filled in.
    std::function<void(const v1::Registered&)> on_registered;
    std::function<void(const v1::CoordinatorMessage&)>
        on_message;  // everything but registered / rejected
    std::function<void(const v1::Rejected&)>
        on_rejected;  // exit == true: the daemon ends, nothing is dialed again
    std::function<void(absl::string_view why)>
        on_lost;  // was registered, now is not; before on_rejected if that is why
    std::function<v1::Heartbeat()> make_heartbeat;  // sequence is filled in
  };
  // transport, executor and logger outlive the client. An event left empty is not called.
  SessionClient(transport::Transport* transport, runtime::Executor* executor, log::Logger* logger,
                Options options, Events events);
  ~SessionClient();  // Stop().
  SessionClient(const SessionClient&) = delete;
  SessionClient& operator=(const SessionClient&) = delete;
  void Start();  // Once.
  void Stop();   // sends what is queued (the transport bounds the wait), closes, never calls back
                 // again. Idempotent.
  bool registered() const;
  // Batched: leaves at the end of the executor's turn. False when there is no session: the caller
  // resends on the next one what must not be lost (Done), and forgets the rest. True is no promise:
  // a session may end before the bytes have left. A message larger than the channel's
  // message_bytes_max is refused with a log line. A coordinator that does not read ends the session
  // once unsent_bytes_max is reached.
  bool Send(v1::TaskMessage message);

 private:
  struct Impl;
  std::shared_ptr<Impl>
      impl_;  // Shared with what is posted to the executor, which holds it weakly.
};

}  // namespace evergrad::client
