#include "common/metrics/scrape_connection.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/string_view.h"
#include "common/base/openssl_ptr.h"

namespace evergrad::metrics {

struct ScrapeConnection::Session {
  std::unique_ptr<SSL, Freer<SSL_free>> ssl;
  bool shook_hands = false;
  bool failed = false;  // Nothing may be sent after a fatal error, a farewell neither.
};

ScrapeConnection::ScrapeConnection(int fd, const Clock* clock, ConnectionLimits limits, ssl_ctx_st* tls)
    : fd_(fd), clock_(clock), limits_(limits), request_deadline_(clock->Now() + limits.request_time_max) {
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  if (tls == nullptr) return;
  session_ = std::make_unique<Session>();
  session_->ssl.reset(SSL_new(tls));
  if (session_->ssl != nullptr) SSL_set_fd(session_->ssl.get(), fd_);
}

ScrapeConnection::~ScrapeConnection() {
  if (session_ != nullptr && session_->shook_hands && !session_->failed) SSL_shutdown(session_->ssl.get());
  session_.reset();
  ERR_clear_error();
  shutdown(fd_, SHUT_RDWR);
  close(fd_);
}

const ssl_st* ScrapeConnection::session() const { return session_ == nullptr ? nullptr : session_->ssl.get(); }

void ScrapeConnection::Abort() { shutdown(fd_, SHUT_RDWR); }

bool ScrapeConnection::WaitFor(Wait what, MonoTime deadline) const {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock_->Now()).count();
    if (left <= 0) return false;
    pollfd p{fd_, static_cast<short>(what == Wait::kReadable ? POLLIN : POLLOUT), 0};
    const int ready = poll(&p, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

template <class Call>
int ScrapeConnection::Drive(Call call, MonoTime deadline) {
  for (;;) {
    ERR_clear_error();
    const int result = call();
    if (result > 0) return result;
    switch (SSL_get_error(session_->ssl.get(), result)) {
      case SSL_ERROR_WANT_READ:
        if (!WaitFor(Wait::kReadable, deadline)) return -1;
        break;
      case SSL_ERROR_WANT_WRITE:
        if (!WaitFor(Wait::kWritable, deadline)) return -1;
        break;
      case SSL_ERROR_ZERO_RETURN: return 0;
      default: session_->failed = true; return -1;
    }
  }
}

bool ScrapeConnection::Handshake() {
  if (session_ == nullptr) return true;
  if (session_->ssl == nullptr) return false;
  session_->shook_hands = Drive([&] { return SSL_accept(session_->ssl.get()); }, request_deadline_) == 1;
  if (!session_->shook_hands && ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST) SayThatThisIsHttps();
  return session_->shook_hands;
}

void ScrapeConnection::SayThatThisIsHttps() {
  constexpr absl::string_view kAnswer =
      "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nthis listener speaks HTTPS, the request was plain HTTP\n";
  // One try: so few bytes always fit into the buffer of a socket that has sent nothing yet.
  (void)send(fd_, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // The rest of the request is read first, or closing would reset the connection and take the answer with it.
  shutdown(fd_, SHUT_WR);
  for (std::size_t read_bytes = 0; read_bytes < limits_.request_bytes_max;) {
    const ssize_t n = recv(fd_, buffer_, sizeof buffer_, 0);
    if (n > 0) read_bytes += static_cast<std::size_t>(n);
    if (n == 0 || (n < 0 && !(errno == EAGAIN && WaitFor(Wait::kReadable, request_deadline_)))) return;
  }
}

ssize_t ScrapeConnection::Fill(MonoTime deadline) {
  if (session_ != nullptr) return Drive([&] { return SSL_read(session_->ssl.get(), buffer_, sizeof buffer_); }, deadline);
  for (;;) {
    const ssize_t n = recv(fd_, buffer_, sizeof buffer_, 0);
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || !WaitFor(Wait::kReadable, deadline)) return -1;
  }
}

ssize_t ScrapeConnection::Read(char* to, std::size_t bytes_max) {
  if (begin_ == end_) {
    if (request_bytes_ >= limits_.request_bytes_max || clock_->Now() >= request_deadline_) return -1;
    const ssize_t n = Fill(request_deadline_);
    if (n <= 0) return n;
    begin_ = 0;
    end_ = static_cast<std::size_t>(n);
    request_bytes_ += end_;
  }
  const std::size_t n = std::min(bytes_max, end_ - begin_);
  std::memcpy(to, buffer_ + begin_, n);
  begin_ += n;
  return static_cast<ssize_t>(n);
}

ssize_t ScrapeConnection::Write(const char* from, std::size_t bytes) {
  if (answer_deadline_ == MonoTime(0)) answer_deadline_ = clock_->Now() + limits_.answer_time_max;
  if (session_ != nullptr) {
    const int piece = static_cast<int>(std::min<std::size_t>(bytes, 1u << 20));
    return Drive([&] { return SSL_write(session_->ssl.get(), from, piece); }, answer_deadline_);
  }
  for (;;) {
    const ssize_t n = send(fd_, from, bytes, MSG_NOSIGNAL);
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || !WaitFor(Wait::kWritable, answer_deadline_)) return -1;
  }
}

}  // namespace evergrad::metrics
