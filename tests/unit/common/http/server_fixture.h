// A server of raw sockets for one test: on loopback, on a port that the system chooses, plain or
// with TLS. A function of the test plays the server's part of each connection.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/openssl_ptr.h"
#include "tests/unit/common/http/certificate_fixture.h"

namespace evergrad::http {

class TestServer;

// One accepted connection. It ends when the function that serves it returns.
class Peer {
 public:
  Peer(TestServer* server, int socket, SSL* session)
      : server_(server), socket_(socket), session_(session) {}
  // Reads one request with its body, and records it. Returns "" if the client has disconnected.
  std::string ReadRequest();
  // Reads only the next request's line and headers, and does not record them.
  std::string ReadHeaders();
  // Returns false if the client has disconnected.
  bool Send(const std::string& text);
  // Sends a response with status 200, and with this body.
  void Answer(const std::string& body);
  // Waits until the client disconnects or the server is destroyed. Returns false if `timeout`
  // passed first.
  bool AwaitEnd(std::chrono::milliseconds timeout = std::chrono::seconds(20));

 private:
  bool Read();

  TestServer* const server_;
  const int socket_;
  SSL* const session_;  // null without TLS
  std::string unread_;
};

class TestServer {
 public:
  // Called on a thread of each connection; connections are counted from 0.
  using Serve = std::function<void(Peer& peer, int connection)>;
  explicit TestServer(Serve serve);
  TestServer(Serve serve, const ServerPems& pems);
  ~TestServer();

  std::string host_port(const std::string& host = "127.0.0.1") const;
  std::string Url(const std::string& path) const;
  std::vector<std::string> requests() const;
  int connections() const;

 private:
  friend class Peer;
  void Accept();
  void ServeConnection(int socket, int connection);

  const Serve serve_;
  std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>> context_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  mutable Mutex mu_;
  std::vector<int> sockets_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;  // used only by Accept and, after it, by the destructor
  std::thread acceptor_;
};

// Returns a server that answers each request with `response`.
TestServer::Serve Always(std::string response);

// Returns a port of loopback on which nobody listens.
std::string ClosedHostPort();

}  // namespace evergrad::http
