#include "tests/unit/common/http/server_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <utility>

namespace evergrad::http {
namespace {

int Listen(std::uint16_t* port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
  REQUIRE(::listen(listener, 64) == 0);
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  *port = ntohs(at.sin_port);
  return listener;
}

std::size_t BodyBytes(const std::string& headers) {
  static const std::string kName = "\r\nContent-Length: ";
  const std::size_t at = headers.find(kName);
  return at == std::string::npos
             ? 0
             : static_cast<std::size_t>(std::atoll(headers.c_str() + at + kName.size()));
}

}  // namespace

bool Peer::Read() {
  char bytes[16384];
  const ssize_t count = session_ != nullptr ? SSL_read(session_, bytes, sizeof(bytes))
                                            : ::recv(socket_, bytes, sizeof(bytes), 0);
  if (count > 0) unread_.append(bytes, static_cast<std::size_t>(count));
  return count > 0;
}

std::string Peer::ReadHeaders() {
  std::size_t end = 0;
  while ((end = unread_.find("\r\n\r\n")) == std::string::npos) {
    if (!Read()) return "";
  }
  std::string headers = unread_.substr(0, end + 4);
  unread_.erase(0, headers.size());
  return headers;
}

std::string Peer::ReadRequest() {
  std::string request = ReadHeaders();
  const std::size_t body = BodyBytes(request);
  while (unread_.size() < body) {
    if (!Read()) return "";
  }
  request += unread_.substr(0, body);
  unread_.erase(0, body);
  if (!request.empty()) {
    MutexLock lock(&server_->mu_);
    server_->requests_.push_back(request);
  }
  return request;
}

bool Peer::Send(const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count =
        session_ != nullptr
            ? SSL_write(session_, text.data() + sent, static_cast<int>(text.size() - sent))
            : ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<std::size_t>(count);
  }
  return true;
}

void Peer::Answer(const std::string& body) {
  Send("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

bool Peer::AwaitEnd(std::chrono::milliseconds timeout) {
  pollfd polled{socket_, POLLRDHUP, 0};
  return ::poll(&polled, 1, static_cast<int>(timeout.count())) > 0;
}

TestServer::TestServer(Serve serve) : serve_(std::move(serve)) {
  listener_ = Listen(&port_);
  acceptor_ = std::thread([this] { Accept(); });
}

TestServer::TestServer(Serve serve, const ServerPems& pems)
    : serve_(std::move(serve)), context_(SSL_CTX_new(TLS_server_method())) {
  ::signal(SIGPIPE, SIG_IGN);  // as in the daemons, because OpenSSL writes without MSG_NOSIGNAL
  const auto reader = [](const std::string& pem) {
    return std::unique_ptr<BIO, Freer<BIO_free>>(
        BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  };
  const std::unique_ptr<X509, Freer<X509_free>> certificate(
      PEM_read_bio_X509(reader(pems.cert).get(), nullptr, nullptr, nullptr));
  const std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>> key(
      PEM_read_bio_PrivateKey(reader(pems.key).get(), nullptr, nullptr, nullptr));
  REQUIRE(SSL_CTX_use_certificate(context_.get(), certificate.get()) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey(context_.get(), key.get()) == 1);
  listener_ = Listen(&port_);
  acceptor_ = std::thread([this] { Accept(); });
}

TestServer::~TestServer() {
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  {
    MutexLock lock(&mu_);
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
  MutexLock lock(&mu_);
  for (const int socket : sockets_) ::close(socket);
  ::close(listener_);
}

void TestServer::Accept() {
  for (int connection = 0;; ++connection) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    const timeval patience{20, 0};  // much longer than any request takes
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    {
      MutexLock lock(&mu_);
      sockets_.push_back(socket);
    }
    threads_.emplace_back([this, socket, connection] { ServeConnection(socket, connection); });
  }
}

void TestServer::ServeConnection(int socket, int connection) {
  std::unique_ptr<SSL, Freer<SSL_free>> session;
  if (context_ != nullptr) {
    session.reset(SSL_new(context_.get()));
    SSL_set_fd(session.get(), socket);
  }
  if (session == nullptr || SSL_accept(session.get()) == 1) {
    Peer peer(this, socket, session.get());
    serve_(peer, connection);
  }
  ::shutdown(socket, SHUT_RDWR);  // The destructor closes the socket, so its number stays taken.
}

std::string TestServer::host_port(const std::string& host) const {
  return host + ":" + std::to_string(port_);
}

std::string TestServer::Url(const std::string& path) const {
  return (context_ != nullptr ? "https://" : "http://") + host_port() + path;
}

std::vector<std::string> TestServer::requests() const {
  MutexLock lock(&mu_);
  return requests_;
}

int TestServer::connections() const {
  MutexLock lock(&mu_);
  return static_cast<int>(sockets_.size());
}

TestServer::Serve Always(std::string response) {
  return [response = std::move(response)](Peer& peer, int) {
    while (!peer.ReadRequest().empty()) peer.Send(response);
  };
}

std::string ClosedHostPort() {
  std::uint16_t port = 0;
  ::close(Listen(&port));
  return "127.0.0.1:" + std::to_string(port);
}

}  // namespace evergrad::http
