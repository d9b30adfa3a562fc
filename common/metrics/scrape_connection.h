// One connection of the metrics listener, plain or TLS, as far as its peer lets it come without
// anybody waiting for it, with bounds on all that the peer decides: how long the handshake and the
// request may take together, how long the answer may take, and how many bytes a request has. Not
// thread-safe. Private to the room.
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
  // From the accepted connection to the last byte of its request, and from the whole request to the
  // last byte of the answer.
  std::chrono::milliseconds request_time_max{5'000}, answer_time_max{10'000};
  std::size_t request_bytes_max = 16u << 10;
};

class ScrapeConnection {
 public:
  enum class State {
    kAsking,     // The handshake, if there is one to make, then the request.
    kAsked,      // request() is whole: Answer is next.
    kAnswering,  // The answer leaves.
    kRefused,    // A peer that speaks plain HTTP has been told that this is HTTPS; the rest of what
                 // it sends is thrown away.
    kOver,       // To be destroyed.
  };

  // Owns `fd`, a connected socket. `tls`: null for plain HTTP. `clock` and `tls` outlive it.
  ScrapeConnection(int fd, const Clock* clock, ConnectionLimits limits, ssl_ctx_st* tls);
  ~ScrapeConnection();
  ScrapeConnection(const ScrapeConnection&) = delete;
  ScrapeConnection& operator=(const ScrapeConnection&) = delete;

  // Goes on as far as it can without waiting. To be called when one of events() has come, and at
  // deadline(): then it is over.
  State Proceed();
  State state() const { return state_; }
  int fd() const { return fd_; }
  short events() const { return events_; }  // of poll(2)
  MonoTime deadline() const { return deadline_; }
  // The request's line and headers, with whatever came behind them. In kAsked.
  const std::string& request() const { return request_; }
  // Null for plain HTTP.
  const ssl_st* session() const;
  // In kAsked, once. Goes on as Proceed does.
  State Answer(std::string answer);
  // Of the answer, what the peer has not taken.
  std::size_t unsent_bytes() const { return answer_.size() - sent_; }

 private:
  // Each goes as far as it can; state and events say what it waits for.
  void Ask();
  void Send();
  void Drain();
  bool Handshake();
  void RefusePlainHttp();
  // The result of one OpenSSL call; 0: it is in events() what that waits for, or it is over.
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
