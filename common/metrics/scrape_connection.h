// One connection of the metrics listener, plain or TLS, with bounds on all that its peer decides: how long the handshake and the request may
// take together, how long the answer may take, and how many bytes a request has. Not thread-safe, but for Abort. Private to the room.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <memory>

#include "common/time/clock.h"

struct ssl_ctx_st;
struct ssl_st;

namespace evergrad::metrics {

struct ConnectionLimits {
  // From the accepted connection to the last byte of its request, and from the first byte of the answer to its last.
  std::chrono::milliseconds request_time_max{5'000}, answer_time_max{10'000};
  std::size_t request_bytes_max = 16u << 10;
};

class ScrapeConnection {
 public:
  // Owns `fd`, a connected socket. `tls`: null for plain HTTP. `clock` and `tls` outlive it.
  ScrapeConnection(int fd, const Clock* clock, ConnectionLimits limits, ssl_ctx_st* tls);
  ~ScrapeConnection();
  ScrapeConnection(const ScrapeConnection&) = delete;
  ScrapeConnection& operator=(const ScrapeConnection&) = delete;

  // First: the TLS handshake, if there is one to make. False: close the connection; a peer that speaks plain HTTP has been told so.
  bool Handshake();
  // As read(2): how many bytes, 0 at the end, -1 for an error, a passed deadline, or a request above its bound.
  ssize_t Read(char* to, std::size_t bytes_max);
  ssize_t Write(const char* from, std::size_t bytes);
  // Null for plain HTTP.
  const ssl_st* session() const;
  int fd() const { return fd_; }
  // Ends whatever Handshake, Read or Write waits for. From any thread, while the connection lives.
  void Abort();

 private:
  enum class Wait { kReadable, kWritable };
  bool WaitFor(Wait what, MonoTime deadline) const;
  // Repeats one OpenSSL call until it is through: its positive result, 0 for the peer's orderly end, -1.
  template <class Call>
  int Drive(Call call, MonoTime deadline);
  ssize_t Fill(MonoTime deadline);
  void SayThatThisIsHttps();

  struct Session;
  const int fd_;
  const Clock* const clock_;
  const ConnectionLimits limits_;
  const MonoTime request_deadline_;
  MonoTime answer_deadline_{0};  // 0: nothing has been answered yet
  std::unique_ptr<Session> session_;
  std::size_t request_bytes_ = 0;
  // What has arrived and was not asked for yet: callers read a byte at a time.
  char buffer_[4096];
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace evergrad::metrics
