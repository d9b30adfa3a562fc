#include "common/metrics/scrape_connection.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/openssl_ptr.h"

namespace evergrad::metrics {
namespace {

constexpr std::size_t kReadBytes = 4096;
constexpr std::size_t kWriteBytesMax = 1u << 20;  // largest write of one OpenSSL call

bool WouldWait() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// Like recv(2), but retries after signals.
ssize_t Receive(int fd, char* to, std::size_t bytes_max) {
  ssize_t n;
  do {
    n = recv(fd, to, bytes_max, 0);
  } while (n < 0 && errno == EINTR);
  return n;
}

}  // namespace

struct ScrapeConnection::Session {
  std::unique_ptr<SSL, Freer<SSL_free>> ssl;
  bool shook_hands = false;
  bool failed = false;  // After a fatal error nothing may be sent, not even a close_notify.
};

ScrapeConnection::ScrapeConnection(int fd, const Clock* clock, ConnectionLimits limits,
                                   ssl_ctx_st* tls)
    : fd_(fd),
      clock_(clock),
      limits_(limits),
      events_(POLLIN),
      deadline_(clock->Now() + limits.request_time_max) {
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  if (tls == nullptr) return;
  session_ = std::make_unique<Session>();
  session_->ssl.reset(SSL_new(tls));
  if (session_->ssl == nullptr || SSL_set_fd(session_->ssl.get(), fd_) != 1) state_ = State::kOver;
}

ScrapeConnection::~ScrapeConnection() {
  if (session_ != nullptr && session_->shook_hands && !session_->failed)
    SSL_shutdown(session_->ssl.get());
  session_.reset();
  ERR_clear_error();
  shutdown(fd_, SHUT_RDWR);
  close(fd_);
}

const ssl_st* ScrapeConnection::session() const {
  return session_ == nullptr ? nullptr : session_->ssl.get();
}

ScrapeConnection::State ScrapeConnection::Proceed() {
  if (state_ != State::kAsked && clock_->Now() >= deadline_) state_ = State::kOver;
  switch (state_) {
    case State::kAsking: Ask(); break;
    case State::kAnswering: Send(); break;
    case State::kRefused: Drain(); break;
    case State::kAsked:
    case State::kOver: break;
  }
  return state_;
}

int ScrapeConnection::Step(int result) {
  if (result > 0) return result;
  switch (SSL_get_error(session_->ssl.get(), result)) {
    case SSL_ERROR_WANT_READ: events_ = POLLIN; break;
    case SSL_ERROR_WANT_WRITE: events_ = POLLOUT; break;
    case SSL_ERROR_ZERO_RETURN: state_ = State::kOver; break;
    default: session_->failed = true, state_ = State::kOver;
  }
  return 0;
}

bool ScrapeConnection::Handshake() {
  if (session_ == nullptr || session_->shook_hands) return true;
  ERR_clear_error();
  session_->shook_hands = Step(SSL_accept(session_->ssl.get())) > 0;
  if (state_ == State::kOver && ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST)
    RefusePlainHttp();
  return session_->shook_hands;
}

void ScrapeConnection::Ask() {
  if (!Handshake()) return;
  char piece[kReadBytes];
  while (state_ == State::kAsking) {
    ssize_t n;
    if (session_ != nullptr) {
      ERR_clear_error();
      n = Step(SSL_read(session_->ssl.get(), piece, sizeof piece));
      if (n == 0) return;
    } else {
      n = Receive(fd_, piece, sizeof piece);
      if (n < 0 && WouldWait()) return;
      if (n <= 0) {
        state_ = State::kOver;
        return;
      }
    }
    // The search begins two bytes before the new piece, because an empty line may have begun in the
    // previous piece.
    const std::size_t from = request_.size() - std::min<std::size_t>(request_.size(), 2);
    request_.append(piece, static_cast<std::size_t>(n));
    if (request_.find("\n\r\n", from) != std::string::npos) {
      state_ = State::kAsked;
    } else if (request_.size() >= limits_.request_bytes_max) {
      state_ = State::kOver;
    }
  }
}

ScrapeConnection::State ScrapeConnection::Answer(std::string answer) {
  EG_CHECK(state_ == State::kAsked);
  state_ = State::kAnswering;
  events_ = POLLOUT;
  deadline_ = clock_->Now() + limits_.answer_time_max;
  answer_ = std::move(answer);
  Send();
  return state_;
}

void ScrapeConnection::Send() {
  while (sent_ < answer_.size()) {
    const std::size_t bytes = std::min(answer_.size() - sent_, kWriteBytesMax);
    ssize_t n;
    if (session_ != nullptr) {
      ERR_clear_error();
      n = Step(SSL_write(session_->ssl.get(), answer_.data() + sent_, static_cast<int>(bytes)));
      if (n == 0) return;
    } else {
      n = send(fd_, answer_.data() + sent_, bytes, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && WouldWait()) return;
      if (n < 0) {
        state_ = State::kOver;
        return;
      }
    }
    sent_ += static_cast<std::size_t>(n);
  }
  state_ = State::kOver;
}

void ScrapeConnection::RefusePlainHttp() {
  constexpr absl::string_view kAnswer =
      "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nthis "
      "listener speaks HTTPS, but the request was plain HTTP\n";
  // One attempt is enough, because these few bytes always fit into the empty buffer of the socket.
  (void)send(fd_, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // The rest of the request is read before the close. A close with unread data would reset the
  // connection and lose the answer.
  shutdown(fd_, SHUT_WR);
  state_ = State::kRefused;
  events_ = POLLIN;
  Drain();
}

void ScrapeConnection::Drain() {
  char piece[kReadBytes];
  while (drained_bytes_ < limits_.request_bytes_max) {
    const ssize_t n = Receive(fd_, piece, sizeof piece);
    if (n < 0 && WouldWait()) return;
    if (n <= 0) break;
    drained_bytes_ += static_cast<std::size_t>(n);
  }
  state_ = State::kOver;
}

}  // namespace evergrad::metrics
