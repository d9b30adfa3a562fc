#include "common/transport/grpc/grpc_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>

#include "common/transport/certificate_task.h"

namespace evergrad::transport {
namespace {

namespace tls = grpc::experimental;

std::shared_ptr<tls::CertificateProviderInterface> Provider(const TlsPems& pems) {
  return std::make_shared<tls::StaticDataCertificateProvider>(
      pems.ca, std::vector<tls::IdentityKeyCertPair>{{pems.key, pems.cert}});
}

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

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const std::optional<TlsPems>& pems,
                                                            ExpectedPeer expected) {
  if (!pems) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Provider(*pems));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<PeerVerifier>(std::move(expected)));
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ListenCredentials(const std::optional<TlsPems>& pems) {
  if (!pems) return grpc::InsecureServerCredentials();
  tls::TlsServerCredentialsOptions options(Provider(*pems));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

}  // namespace evergrad::transport
