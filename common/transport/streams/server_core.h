// The part of a server above its links: streams, data streams, unary calls, the budget, failpoints,
// health. Both transports use this class. Private to the room. Everything except stats() happens on
// the loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/fault/failpoints.h"
#include "common/health/health.h"
#include "common/transport/frames/buffer_pool.h"
#include "common/transport/lane/lane.h"
#include "common/transport/session/budget.h"
#include "common/transport/streams/link.h"
#include "common/transport/streams/loop.h"
#include "common/transport/streams/message_stream.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

class ServerCore : public std::enable_shared_from_this<ServerCore> {
 public:
  // Answers a unary call. The function is called once, on any thread. If the handler dropped its
  // responder, the answer is an error.
  using UnaryAnswer = std::function<void(absl::StatusOr<std::string>)>;

  // `failpoints` and `health` outlive the core; both may be null.
  static std::shared_ptr<ServerCore> Make(const ServerOptions& options, Handlers handlers,
                                          std::shared_ptr<Loop> loop, fault::Failpoints* failpoints,
                                          const health::Health* health);

  // Returns whether another call is allowed. An allowed call is counted until CallEnded.
  bool AdmitCall();
  void CallEnded() { open_calls_.fetch_sub(1, std::memory_order_relaxed); }

  // Both methods take an admitted call, and start `link`.
  void AcceptData(std::shared_ptr<Link> link, const PeerInfo& peer);
  void AcceptStream(std::shared_ptr<Link> link, const PeerInfo& peer, absl::string_view method);
  // `answer` runs on the loop.
  void Unary(const PeerInfo& peer, absl::string_view method, std::string request,
             UnaryAnswer answer);

  void Shutdown();  // Ends all streams; no function of Handlers is called afterwards.
  Server::Stats stats() const;
  const ServerOptions& options() const { return options_; }

 private:
  class DataPeer;
  class Responder;
  ServerCore(const ServerOptions& options, Handlers handlers, std::shared_ptr<Loop> loop,
             fault::Failpoints* failpoints, const health::Health* health);
  void DispatchAdmitted();
  // Reports that unused grants of `peer` were taken back: their number and their bytes. `ended`
  // states whether a stream was ended for this reason; if so, the peer gets no other stream for a
  // while.
  void TakenBack(const std::string& peer, std::uint64_t grants, std::uint64_t bytes, bool ended);
  absl::Status CheckNotKeptOut(const std::string& peer);
  absl::StatusOr<std::unique_ptr<Lane>> TakeLaneOf(const std::string& address,
                                                   const wire::LaneOffer& offer);

  const ServerOptions options_;
  // The handlers are released after Shutdown, because they may hold responders, which in turn hold
  // the server.
  Handlers handlers_;
  const std::shared_ptr<Loop> loop_;
  fault::Failpoints* const failpoints_;
  const health::Health* const health_;
  std::shared_ptr<Budget> budget_;          // Shared with the tokens.
  const std::shared_ptr<BufferPool> pool_;  // Shared with the frames in use.
  struct Lanes {
    std::atomic<std::uint64_t> count{0}, bytes{0}, refused{0};
  };
  // Shared with the lanes, which update the numbers when they end.
  const std::shared_ptr<Lanes> lanes_ = std::make_shared<Lanes>();
  bool shut_ = false;
  std::uint64_t next_peer_ = 1;
  std::map<std::uint64_t, std::shared_ptr<DataPeer>> data_peers_;
  // Peers that left grants unused, each with the time until which its new data streams are refused.
  std::map<std::string, MonoTime> kept_out_;
  std::map<std::uint64_t, std::shared_ptr<MessageStreamCore>> streams_;
  std::atomic<std::uint64_t> taken_back_{0}, open_calls_{0}, refused_{0}, granted_{0},
      malformed_{0}, received_{0}, sent_{0};
  std::atomic<std::uint64_t> budget_refused_{0}, small_refused_{0}, peer_small_refused_{0},
      frame_refused_{0}, streams_refused_{0};
};

}  // namespace evergrad::transport
