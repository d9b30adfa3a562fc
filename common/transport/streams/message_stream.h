// Message streams over a Link. Client and server use the same class. Private to the room.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/fault/failpoints.h"
#include "common/transport/streams/link.h"
#include "common/transport/streams/loop.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

class MessageStreamCore final : public LinkEvents,
                                public std::enable_shared_from_this<MessageStreamCore> {
 public:
  struct Options {
    std::uint64_t message_bytes_max = 0;
    std::uint64_t unsent_bytes_max = 0;
    MonoTime progress_timeout{0};
    std::function<void()> on_gone;  // called on the loop, once, when the link is no longer used
    // A function that is called on the loop with the numbers of received and sent bytes. The
    // function may be empty.
    std::function<void(std::uint64_t received, std::uint64_t sent)> count;
  };
  // `failpoints` may be null.
  MessageStreamCore(std::shared_ptr<Loop> loop, fault::Failpoints* failpoints, Options options);

  // Starts the stream. Called once, on the loop, before or after the first Send.
  void Start(std::shared_ptr<Link> link, MessageStreamEvents events);
  // Calls on_end(status) now, unless the stream is closed. Called on the loop when a server shuts
  // down.
  void Abort(const absl::Status& status);

  // These methods may be called on any thread.
  absl::Status Send(std::string message);
  void Close();

  void OnOpen() override;
  void OnMessage(MessageView message) override;
  void OnSent() override;
  void OnEnd(absl::Status status) override;

  // Returns the public handle; its destructor closes the stream.
  std::unique_ptr<MessageStream> MakeHandle();

 private:
  class Handle;
  void Pump();
  void WatchProgress();
  void CloseOnLoop();
  // Releases the link and drops unsent messages. Returns false if the stream has already ended.
  bool End();
  // Returns whether the failpoint `session.cut` ends the stream here.
  bool Cut();

  const std::shared_ptr<Loop> loop_;
  fault::Failpoints* const failpoints_;
  const Options options_;

  Mutex mu_;
  std::deque<std::string> unsent_ ABSL_GUARDED_BY(mu_);
  std::uint64_t unsent_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // Ended or closed: no more messages are accepted.
  bool pump_posted_ ABSL_GUARDED_BY(mu_) = false;

  // The following members are accessed on the loop only.
  std::shared_ptr<Link> link_;
  // Shared with running callbacks, so that a callback may close its own stream.
  std::shared_ptr<MessageStreamEvents> events_;
  bool open_ = false;
  bool closing_ = false;
  bool flushing_ = false;  // closed by its owner while the link still exists
  bool finished_ = false;
  bool watching_ = false;
  std::uint64_t sending_bytes_ = 0;
  bool sending_ = false;
  MonoTime last_sent_{0};
};

}  // namespace evergrad::transport
