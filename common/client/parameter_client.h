// A client for the servers of one job, with one data stream per server. A request goes to one
// server, and its answer has one result per section, which is the part of the request for one
// shard. This class reports answers and never retries a request. The rules for retries depend on
// the attempt, so they are in worker/runner (LEDGER line 15). Thread-safe. Callbacks run on a
// transport thread, or on the caller's thread before Send returns if a call fails at once.
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
  // `transport` outlives the client. `host_id` is fs::HostId() of this process. A server's unix
  // socket is used only if the endpoint names the same host and options.use_unix is set.
  ParameterClient(transport::Transport* transport, transport::ChannelOptions options,
                  std::string client_name, std::string host_id = "");
  // Calls Retain({}), so outstanding calls end with kCancelled before the destructor returns. The
  // destructor must not run in a callback.
  ~ParameterClient();

  // The parsed answer to a request. The payload spans live as long as `frame`.
  struct Answer {
    transport::ReceivedFrame frame;
    wire::Packed<v1::ResponseHeader> header;
    std::vector<std::span<const std::byte>> payloads;
  };
  // Memory that was requested from a server ahead of a request. The destructor of an announcement
  // returns the memory if it is unused. An announcement may outlive the client.
  class Announcement;
  struct AnnouncementDeleter {
    void operator()(Announcement* announcement) const;
  };
  using Announced = std::unique_ptr<Announcement, AnnouncementDeleter>;

  // Sends one request to `endpoint`. The channel and the stream are created by the first request,
  // and kept for later requests to the same address and identity. With TLS the server's certificate
  // must be issued for endpoint.server().
  //
  // `payloads` has one entry per push. `ids` is empty, or has one list of int64 for each push and
  // then for each pull (wire::BuildRequest). The client fills in client_name and response_bytes_max
  // of `header` and does not keep the header. Build a request of hundreds of sections in a
  // wire::Packed, which needs fewer allocations.
  //
  // `done` is called exactly once with the parsed answer: one result per section, each for the
  // shard of its section. Unavailable means that the server is unreachable or has disconnected.
  // After Unavailable it is unknown whether the pushes were applied, and the caller must send them
  // again under the same identity. kInternal means that the answer does not match the request. An
  // error that the server reports for the whole frame keeps its origin and retryability.
  void Send(const v1::Endpoint& endpoint, v1::RequestHeader&& header,
            std::vector<tensor::SharedBytes> payloads, std::uint64_t response_bytes_max,
            std::chrono::milliseconds deadline, std::function<void(absl::StatusOr<Answer>)> done,
            Announced announced = nullptr, std::vector<tensor::SharedBytes> ids = {});
  // Asks `endpoint` for memory for a request of at most `request_bytes` (RequestBytesMax) while the
  // payload is still being computed. A later Send then already has its grant and saves a round
  // trip. Send uses the announcement if it is for the same stream and large enough, and otherwise
  // makes a new one. The server reserves the memory from the announcement on, so announce only a
  // request that follows soon. Returns null if the server cannot be dialed.
  Announced Announce(const v1::Endpoint& endpoint, std::uint64_t request_bytes,
                     std::uint64_t response_bytes_max, std::chrono::milliseconds deadline);
  // Returns an upper bound of the bytes of a request with `sections` sections. `payload_bytes` is
  // the sum of its payloads, each rounded up to a multiple of 64.
  static std::uint64_t RequestBytesMax(std::uint64_t sections, std::uint64_t payload_bytes) {
    return payload_bytes + sections * 192 + 1024;
  }
  // Closes the streams to all addresses that are not in `keep`. The calls of closed streams end
  // with kCancelled before Retain returns. Retain must not run in a callback.
  void Retain(const std::vector<std::string>& keep);
  struct Stats {
    std::uint64_t bytes_sent = 0, bytes_received = 0, calls = 0, failures = 0;
    std::uint64_t announced = 0;  // number of calls made with an announcement
  };
  Stats stats() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace evergrad::client
