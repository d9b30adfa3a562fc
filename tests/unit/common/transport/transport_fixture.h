// The shared parts of the transport tests: the list of types for the implementations, frames with a
// pattern, and collectors for which a test can wait.
#pragma once

#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/transport/grpc/grpc_transport.h"
#include "common/transport/transport.h"
#include "tests/support/inproc/inproc_transport.h"

namespace evergrad::transport::test {

using namespace std::chrono_literals;

struct Inproc {
  static std::unique_ptr<Transport> Make(fault::Failpoints* failpoints, health::Health* health) {
    return MakeInprocTransport(failpoints, health);
  }
};
struct Grpc {
  static std::unique_ptr<Transport> Make(fault::Failpoints* failpoints, health::Health* health) {
    return MakeGrpcTransport(failpoints, health);
  }
};
// The same transport, but payload travels through memory that both ends map (a lane). The ring in
// this memory is small, so that it is sometimes full.
template <class Kind>
struct Laned : Kind {
  static constexpr std::uint64_t kRingBytes = 128u << 10;
  static constexpr std::uint64_t kLaneBytesMax = 64u << 20;
};
template <class Kind>
concept HasLane = requires {
  Kind::kRingBytes;
};
// Debian's gRPC is not instrumented for ThreadSanitizer. Under this sanitizer only the in-process
// transport is tested.
#if defined(__SANITIZE_THREAD__)
#define EG_TRANSPORTS Inproc, Laned<Inproc>
#else
#define EG_TRANSPORTS Inproc, Grpc, Laned<Inproc>, Laned<Grpc>
#endif

// Collects values that callbacks add, so that a test can wait for them. Thread-safe. A collector is
// shared with the callbacks, so that it still exists when one of them comes late.
template <class T>
class Collector {
 public:
  void Put(T value) {
    MutexLock lock(&mu_);
    values_.push_back(std::move(value));
    ++total_;
    changed_.NotifyAll();
  }
  // Returns the next value, or nullopt if none arrived in time.
  std::optional<T> Next(std::chrono::milliseconds patience = 20000ms) {
    const auto until = std::chrono::steady_clock::now() + patience;
    MutexLock lock(&mu_);
    while (values_.empty()) {
      const auto left = until - std::chrono::steady_clock::now();
      if (left <= 0ns) return std::nullopt;
      changed_.WaitFor(&mu_, left);
    }
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    return value;
  }
  bool WaitForTotal(std::size_t n, std::chrono::milliseconds patience = 30000ms) {
    const auto until = std::chrono::steady_clock::now() + patience;
    MutexLock lock(&mu_);
    while (total_ < n) {
      const auto left = until - std::chrono::steady_clock::now();
      if (left <= 0ns) return false;
      changed_.WaitFor(&mu_, left);
    }
    return true;
  }
  std::size_t total() const {
    MutexLock lock(&mu_);
    return total_;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<T> values_ ABSL_GUARDED_BY(mu_);
  std::size_t total_ ABSL_GUARDED_BY(mu_) = 0;
};
template <class T>
std::shared_ptr<Collector<T>> Collect() {
  return std::make_shared<Collector<T>>();
}

// Returns a frame of `bytes` bytes in pieces of different sizes. Each byte depends on `seed` and on
// its position.
inline Frame Patterned(std::size_t bytes, unsigned seed) {
  auto owner = std::make_shared<std::vector<std::byte>>(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t value = (i + seed) * 0x9E3779B97F4A7C15ull;
    std::memcpy(owner->data() + i, &value, std::min<std::size_t>(8, bytes - i));
  }
  Frame frame;
  const std::span<const std::byte> all(owner->data(), bytes);
  const std::size_t first = bytes / 3, second = bytes / 2;
  for (auto part : {all.subspan(0, first), all.subspan(first, second - first), all.subspan(second)})
    frame.pieces.push_back({owner, part});
  return frame;
}
inline bool IsPatterned(std::span<const std::byte> got, std::size_t bytes, unsigned seed) {
  if (got.size() != bytes) return false;
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t value = (i + seed) * 0x9E3779B97F4A7C15ull;
    if (std::memcmp(got.data() + i, &value, std::min<std::size_t>(8, bytes - i)) != 0) return false;
  }
  return true;
}
inline std::span<const std::byte> View(const tensor::AlignedBuffer& bytes) {
  return {bytes.data(), bytes.size()};
}
inline Frame TextFrame(const std::string& text) {
  auto owner = std::make_shared<const std::string>(text);
  return {{{owner, std::as_bytes(std::span(owner->data(), owner->size()))}}};
}
inline std::string TextOf(const tensor::AlignedBuffer& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A request that has arrived at a handler, and that the test keeps.
struct Arrived {
  ReceivedFrame frame;
  std::unique_ptr<DataResponder> responder;
};

using DataResult = absl::StatusOr<ReceivedFrame>;
using Results = Collector<DataResult>;
inline DataDone Into(std::shared_ptr<Results> results) {
  return [results](DataResult result) { results->Put(std::move(result)); };
}

// One transport with one server and one channel.
template <class Kind>
struct World {
  explicit World(Handlers handlers, ServerOptions server_options = {},
                 ChannelOptions channel_options = {}, fault::Failpoints* failpoints = nullptr,
                 health::Health* health = nullptr)
      : transport(Kind::Make(failpoints, health)) {
    if constexpr (HasLane<Kind>) {
      if (server_options.lane_bytes_max == 0) server_options.lane_bytes_max = Kind::kLaneBytesMax;
      if (channel_options.lane_ring_bytes == 0) channel_options.lane_ring_bytes = Kind::kRingBytes;
    }
    auto listening = transport->Listen(server_options, std::move(handlers));
    if (!listening.ok()) throw std::runtime_error(listening.status().ToString());
    server = *std::move(listening);
    auto dialled = transport->Dial({.host_port = server->address()}, channel_options);
    if (!dialled.ok()) throw std::runtime_error(dialled.status().ToString());
    channel = *std::move(dialled);
  }
  absl::StatusOr<std::string> Unary(absl::string_view method, std::string request,
                                    std::chrono::milliseconds deadline = 10000ms) {
    return UnaryAndWait(*channel, method, std::move(request), deadline);
  }
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Server> server;
  std::unique_ptr<Channel> channel;
};

// Returns handlers whose data handler adds each request to `arrived` and does not answer it.
inline Handlers Keeping(std::shared_ptr<Collector<Arrived>> arrived) {
  Handlers handlers;
  handlers.data = [arrived](const PeerInfo&, ReceivedFrame frame,
                            std::unique_ptr<DataResponder> responder) {
    arrived->Put({std::move(frame), std::move(responder)});
  };
  return handlers;
}
// Returns handlers whose data handler answers each request with its own bytes, without copying
// them.
inline Handlers Echoing() {
  Handlers handlers;
  handlers.data = [](const PeerInfo&, ReceivedFrame frame,
                     std::unique_ptr<DataResponder> responder) {
    auto owner = std::make_shared<ReceivedFrame>(std::move(frame));
    responder->Answer({{{owner, View(owner->bytes)}}});
  };
  return handlers;
}

}  // namespace evergrad::transport::test
