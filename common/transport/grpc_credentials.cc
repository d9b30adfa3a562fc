#include "common/transport/grpc_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

namespace evergrad::transport {
namespace {

namespace tls = grpc::experimental;

std::shared_ptr<tls::CertificateProviderInterface> Provider(const TlsPems& pems) {
  return std::make_shared<tls::StaticDataCertificateProvider>(pems.ca, std::vector<tls::IdentityKeyCertPair>{{pems.key, pems.cert}});
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const std::optional<TlsPems>& pems) {
  if (!pems) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Provider(*pems));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());  // The chain is verified all the same.
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
