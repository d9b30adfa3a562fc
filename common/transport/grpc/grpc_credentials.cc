#include "common/transport/grpc/grpc_credentials.h"

#include <arpa/inet.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <netdb.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/transport/certificate_task.h"

namespace evergrad::transport {
namespace {

namespace tls = grpc::experimental;

// Checks that the peer is the one that the channel expects, after the chain has been verified.
class PeerVerifier final : public tls::ExternalCertificateVerifier {
 public:
  explicit PeerVerifier(ExpectedPeer expected) : expected_(std::move(expected)) {}
  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* verdict) override {
    const absl::Status status = Check(*request);
    if (!status.ok())
      *verdict = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(status.message()));
    return true;  // The decision was made synchronously.
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  absl::Status Check(const tls::TlsCustomVerificationCheckRequest& request) const {
    std::vector<std::string> uris;
    for (const auto& uri : request.uri_names()) uris.emplace_back(uri.data(), uri.size());
    const auto task = TaskOfUris(uris);
    if (!task.ok()) return task.status();
    if (absl::Status status = CheckTask(*task, expected_.task); !status.ok()) return status;
    if (expected_.host_port.empty()) return absl::OkStatus();
    return CheckHost(std::string(request.peer_cert().data(), request.peer_cert().size()),
                     expected_.host_port);
  }
  const ExpectedPeer expected_;
};

// Returns the addresses of a name, each as host:port. Returns `address` itself if it is a unix
// socket, or if its name has no address; gRPC then reports the failure.
std::vector<std::string> Resolved(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return {address};
  const auto parts = ParseHostPort(address);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  std::vector<std::string> addresses;
  if (parts && getaddrinfo(parts->host.c_str(), nullptr, &hints, &found) == 0) {
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      char host[NI_MAXHOST];
      if (getnameinfo(one->ai_addr, one->ai_addrlen, host, sizeof host, nullptr, 0,
                      NI_NUMERICHOST) != 0)
        continue;
      const bool v6 = one->ai_family == AF_INET6;
      addresses.push_back(absl::StrCat(v6 ? "[" : "", host, v6 ? "]" : "", ":", parts->port));
    }
    freeaddrinfo(found);
  }
  if (addresses.empty()) addresses.push_back(address);
  return addresses;
}

// The credentials of a listener. gRPC asks them for the certificates at each connection.
//
// The classes of gRPC's C++ interface do not suffice. Those over fixed contents never change.
// FileWatcherCertificateProvider reads the files one after another, so a key and a certificate of
// different generations can meet; it then drops the certificates in use before it has noticed, and
// an empty file makes it abort the process. The C interface (grpc_security.h) has a callback for
// this purpose, which gives all contents at once, and gRPC keeps the present ones until it has
// accepted the new ones.
class ListenerCredentials final : public grpc::ServerCredentials {
 public:
  explicit ListenerCredentials(std::shared_ptr<const TlsWatch> watch) : watch_(std::move(watch)) {}
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  // One listening socket. gRPC 1.51 can free the certificates of a port while another thread begins
  // a handshake with them. Each socket is therefore a port of its own: gRPC accepts the connections
  // of one socket one after another.
  struct Socket {
    const TlsWatch* watch;
    std::shared_ptr<const TlsPems> given = nullptr;  // the contents that gRPC uses
  };

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* of, grpc_ssl_server_certificate_config** config) {
    auto* socket = static_cast<Socket*>(of);
    const std::shared_ptr<const TlsPems> pems = socket->watch->pems();
    if (pems == socket->given) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{pems->key.c_str(), pems->cert.c_str()};
    *config = grpc_ssl_server_certificate_config_create(pems->ca.c_str(), &pair, 1);
    socket->given = pems;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  int AddSocket(const std::string& address, grpc_server* server) {
    sockets_.push_back(std::make_unique<Socket>(Socket{watch_.get()}));
    grpc_server_credentials* credentials = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, Fetch,
            sockets_.back().get()));
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  // The sockets of a name with several addresses all get the port of the first one.
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    int port = 0;
    for (const std::string& one : Resolved(address)) {
      const int bound = AddSocket(
          port == 0 ? one : absl::StrCat(one.substr(0, one.rfind(':')), ":", port), server);
      if (port == 0) port = bound;
    }
    return port;
  }

  const std::shared_ptr<const TlsWatch> watch_;
  std::vector<std::unique_ptr<Socket>> sockets_;
};

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const TlsPems* pems,
                                                            ExpectedPeer expected) {
  if (pems == nullptr) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
      pems->ca, std::vector<tls::IdentityKeyCertPair>{{pems->key, pems->cert}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<PeerVerifier>(std::move(expected)));
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ListenCredentials(std::shared_ptr<const TlsWatch> watch) {
  if (watch == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<ListenerCredentials>(std::move(watch));
}

}  // namespace evergrad::transport
