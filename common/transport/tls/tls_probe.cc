#include "common/transport/tls/tls_probe.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/openssl_ptr.h"

namespace evergrad::transport {
namespace {

constexpr int kStepMillis = 500;

using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, Freer<SSL_free>>;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }
  bool Wait(short events) const {
    pollfd p{fd_, events, 0};
    return poll(&p, 1, kStepMillis) == 1;
  }

 private:
  const int fd_;
};

int Connect(const std::string& host_port) {
  const std::size_t colon = host_port.rfind(':');
  if (colon == std::string::npos) return -1;
  std::string host = host_port.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), host_port.substr(colon + 1).c_str(), &hints, &found) != 0)
    return -1;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // The socket does not block, so connect() only starts the connection. The caller waits for it.
  if (fd >= 0) (void)connect(fd, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return fd;
}

// Repeats `step` (SSL_connect, SSL_read) until it ends, fails, or nothing arrives for a while.
// Returns the step's SSL_get_error.
template <class Step>
int Drive(const Socket& socket, SSL* session, Step step) {
  for (;;) {
    const int result = step();
    const int error = result > 0 ? SSL_ERROR_NONE : SSL_get_error(session, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return error;
    if (!socket.Wait(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT)) return error;
  }
}

std::string LastReason() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "" : reason;
}

}  // namespace

std::string ProbeTls(const std::string& host_port, const TlsPems* pems) {
  // A write by OpenSSL can raise SIGPIPE, because OpenSSL does not use MSG_NOSIGNAL. The signal may
  // stay blocked, because this thread runs only the probe and ends afterwards.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  const Socket socket(Connect(host_port));
  if (socket.fd() < 0 || !socket.Wait(POLLOUT)) return "";
  const Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return "";
  if (pems != nullptr && !UseTls(context.get(), *pems)) return "";
  SSL_CTX_set_verify(context.get(), pems == nullptr ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
  const Session session(SSL_new(context.get()));
  if (session == nullptr) return "";
  SSL_set_fd(session.get(), socket.fd());
  // gRPC over TLS supports only HTTP/2 (h2). Without this offer a server disconnects before it
  // reports an error.
  static constexpr unsigned char kProtocols[] = {2, 'h', '2'};
  SSL_set_alpn_protos(session.get(), kProtocols, sizeof kProtocols);
  ERR_clear_error();
  int error = Drive(socket, session.get(), [&] { return SSL_connect(session.get()); });
  const bool shook_hands = error == SSL_ERROR_NONE;
  // In TLS 1.3, SSL_connect succeeds before the server has checked the client's certificate. A
  // refusal is seen only by the next read.
  if (shook_hands) {
    char byte;
    error = Drive(socket, session.get(), [&] { return SSL_read(session.get(), &byte, 1); });
  }
  const std::string reason = LastReason();
  const long verified = SSL_get_verify_result(session.get());
  const bool peer_speaks_tls = shook_hands || SSL_version(session.get()) >= TLS1_2_VERSION;
  ERR_clear_error();
  if (pems == nullptr) {
    if (shook_hands)
      return "the peer uses TLS and requires a certificate: give tls {ca, cert, key}, or "
             "--tls-ca, --tls-cert and --tls-key";
    return peer_speaks_tls && !reason.empty() && reason != "wrong version number"
               ? absl::StrCat("the peer uses TLS: give tls {ca, cert, key}: reason=", reason)
               : "";
  }
  if (verified != X509_V_OK)
    return absl::StrCat("certificate verify failed for the peer's certificate: ",
                        X509_verify_cert_error_string(verified));
  if (reason == "wrong version number" || reason == "packet length too long")
    return "the peer does not use TLS";
  if (error == SSL_ERROR_SSL && !reason.empty())
    return absl::StrCat(
        "the peer refused this task's certificate: certificate verify failed at the peer: ",
        reason);
  return "";
}

}  // namespace evergrad::transport
