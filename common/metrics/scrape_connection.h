// One connection of the metrics listener, plain or TLS, as a state machine that never blocks. The
// connection bounds everything that the peer controls: the duration of handshake and request
// together, the duration of the answer, and the size of a request. Not thread-safe. Private to the
// room.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "common/time/clock.h"

struct ssl_ctx_st;
struct ssl_st;

namespace evergrad::metrics {

struct ConnectionLimits {
  // Limits of two phases: from the accepted connection to the last byte of the request, and from
  // then on to the last byte of the answer.
  std::chrono::milliseconds request_time_max{5'000}, answer_time_max{10'000};
  std::size_t request_bytes_max = 16u << 10;
};

class ScrapeConnection {
 public:
  enum class State {
    kAsking,     // performs the TLS handshake (with TLS), and reads the request
    kAsked,      // request() is complete; the owner calls Answer next.
    kAnswering,  // Sends the answer.
    // The peer used plain HTTP and was told to use HTTPS. The rest of its data is discarded.
    kRefused,
    kOver,  // the owner must destroy the connection
  };

  // Owns `fd`, a connected socket. `tls` is null for plain HTTP. The connection shares the
  // ownership of `tls`. `clock` outlives the connection.
  ScrapeConnection(int fd, const Clock* clock, ConnectionLimits limits, ssl_ctx_st* tls);
  ~ScrapeConnection();
  ScrapeConnection(const ScrapeConnection&) = delete;
  ScrapeConnection& operator=(const ScrapeConnection&) = delete;

  // Continues as far as possible without blocking. The owner calls it when one of events() occurs,
  // and at deadline(), which ends the connection.
  State Proceed();
  State state() const { return state_; }
  int fd() const { return fd_; }
  short events() const { return events_; }  // for poll(2)
  MonoTime deadline() const { return deadline_; }
  // The line and headers of the request, with any bytes that followed. Valid in kAsked.
  const std::string& request() const { return request_; }
  // Returns the TLS session, or nullptr for plain HTTP.
  const ssl_st* session() const;
  // Sends the answer; called once, in kAsked. Continues like Proceed.
  State Answer(std::string answer);
  // Returns the number of bytes of the answer that the peer has not accepted yet.
  std::size_t unsent_bytes() const { return answer_.size() - sent_; }

 private:
  // Both methods do as much as is possible without blocking. Afterwards state_ and events_ describe
  // the next wait.
  void Ask();
  void Send();
  void Drain();
  bool Handshake();
  void RefusePlainHttp();
  // Handles the result of one OpenSSL call. Returns 0 if the call waits for events() or the
  // connection has ended.
  int Step(int result);

  struct Session;
  const int fd_;
  const Clock* const clock_;
  const ConnectionLimits limits_;
  State state_ = State::kAsking;
  short events_;
  MonoTime deadline_;
  std::unique_ptr<Session> session_;
  std::string request_, answer_;
  std::size_t sent_ = 0, drained_bytes_ = 0;
};

}  // namespace evergrad::metrics
