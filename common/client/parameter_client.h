// Talks to the servers of one job: one data stream per server, requests split by owner, one answer
// per shard section. The retry table lives in worker/runner (LEDGER line 15) because it depends on
// the attempt; this class reports answers. Thread-safe; callbacks run on a transport thread, or on
// the caller's before Send returns when a call fails at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/transport/transport.h"
#include "common/wire/data_frame.h"
#include "evergrad/v1/data.pb.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::client {

class ParameterClient {
 public:
  // `transport` outlives the client. `host_id` is fs::HostId() of this process: a server's unix
  // socket is used only if the endpoint names the same host and options.use_unix is set.
  ParameterClient(transport::Transport* transport, transport::ChannelOptions options,
                  std::string client_name, std::string host_id = "");
  ~ParameterClient();  // Retain({}): calls outstanding end with kCancelled before it returns. Not
                       // from a callback.

  // Sends one request to `endpoint` (a channel and stream are made on first use and kept per
  // address and identity; with TLS the server's certificate must be for endpoint.server()).
  // payloads: one per push. ids: none, or one list of int64 for each push and then for each pull
  // (wire::BuildRequest). client_name and response_bytes_max of the header are filled in; it is not
  // kept (hundreds of sections are better made in a wire::Packed). `done` is called exactly once
  // and gets the parsed answer, whose payload spans live as long as `frame`: one result per
  // section, each for the shard that was asked for. Unavailable: the server cannot be reached or
  // went away; whether the pushes were applied is not known: resend under the same identity.
  // kInternal: the answer does not fit the request. What the server said about the frame as a whole
  // comes with its origin and retryability.
  struct Answer {
    transport::ReceivedFrame frame;
    wire::Packed<v1::ResponseHeader> header;
    std::vector<std::span<const std::byte>> payloads;
  };
  // Room that was asked for ahead of a request; whoever lets go of it unused gives it back.
  // Outlives the client safely.
  class Announcement;
  struct AnnouncementDeleter {
    void operator()(Announcement* announcement) const;
  };
  using Announced = std::unique_ptr<Announcement, AnnouncementDeleter>;
  void Send(const v1::Endpoint& endpoint, v1::RequestHeader&& header,
            std::vector<tensor::SharedBytes> payloads, std::uint64_t response_bytes_max,
            std::chrono::milliseconds deadline, std::function<void(absl::StatusOr<Answer>)> done,
            Announced announced = nullptr, std::vector<tensor::SharedBytes> ids = {});
  // Asks `endpoint` for room for a request of at most `request_bytes` (RequestBytesMax) while what
  // it will carry is still being computed: its Send then finds the grant waiting and saves a round
  // trip. Send uses it if it is for the same stream and large enough, else asks anew. The room is
  // held at the server meanwhile, so announce a request that is about to come. Null when the server
  // cannot be dialed.
  Announced Announce(const v1::Endpoint& endpoint, std::uint64_t request_bytes,
                     std::uint64_t response_bytes_max, std::chrono::milliseconds deadline);
  // No request of so many sections with payloads of so many bytes, each rounded up to 64, is
  // larger.
  static std::uint64_t RequestBytesMax(std::uint64_t sections, std::uint64_t payload_bytes) {
    return payload_bytes + sections * 192 + 1024;
  }
  // Closes streams to addresses not in `keep`; their calls end with kCancelled before it returns.
  // Not from a callback.
  void Retain(const std::vector<std::string>& keep);
  struct Stats {
    std::uint64_t bytes_sent = 0, bytes_received = 0, calls = 0, failures = 0;
    std::uint64_t announced = 0;  // calls made with an announcement
  };
  Stats stats() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace evergrad::client
