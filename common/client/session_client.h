// A task's side of the session: dials the coordinator, says Hello, keeps the stream, redials with backoff for ever (P4),
// and says what it waits for. Callbacks run on the given executor, in order. Not thread-safe: call from that executor.
#pragma once

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
    std::chrono::milliseconds backoff_min{50}, backoff_max{1000};
  };
  struct Events {
    std::function<v1::Hello()> make_hello;   // asked at every dial: identity, what is held now
    std::function<void(const v1::Registered&)> on_registered;
    std::function<void(const v1::CoordinatorMessage&)> on_message;   // everything but registered / rejected
    std::function<void(const v1::Rejected&)> on_rejected;            // exit == true: the daemon ends
    std::function<void(absl::string_view why)> on_lost;              // was registered, now is not
    std::function<v1::Heartbeat()> make_heartbeat;
  };
  // transport, executor and logger outlive the client.
  SessionClient(transport::Transport* transport, runtime::Executor* executor, log::Logger* logger, Options options, Events events);
  ~SessionClient();
  void Start();
  void Stop();                      // sends what is queued (bounded wait), closes, never calls back again
  bool registered() const;
  // Batched: leaves at the end of the executor's turn. False when there is no session: the caller resends on the next one
  // what must not be lost (Done), and forgets the rest.
  bool Send(v1::TaskMessage message);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace evergrad::client
