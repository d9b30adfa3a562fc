#include "common/metrics/scrape_tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/openssl_ptr.h"
#include "common/metrics/http_exporter.h"

namespace evergrad::metrics {
namespace {

using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

Bio Reader(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Returns the index under which a session stores the first error in the verification of its
// client's certificate.
int ErrorIndex() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// Lets every handshake continue and stores the first error, because OpenSSL's verify result has
// only the error of the last check.
int RememberError(int good, X509_STORE_CTX* context) {
  if (good == 1) return 1;
  auto* session =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  if (session == nullptr) return 0;
  if (SSL_get_ex_data(session, ErrorIndex()) != nullptr) return 1;
  const std::intptr_t error = X509_STORE_CTX_get_error(context);
  return SSL_set_ex_data(session, ErrorIndex(),
                         reinterpret_cast<void*>(error != 0 ? error : X509_V_ERR_UNSPECIFIED)) == 1
             ? 1
             : 0;
}

bool UseAuthorities(SSL_CTX* context, const std::string& pem) {
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);
  const Bio bio = Reader(pem);
  int added = 0;
  while (const auto authority =
             Certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr))) {
    if (X509_STORE_add_cert(store, authority.get()) != 1 ||
        SSL_CTX_add_client_CA(context, authority.get()) != 1)
      return false;
    ++added;
  }
  ERR_clear_error();  // removes the error that marks the end of the text
  return added > 0;
}

// Makes `context` use the leaf certificate and the intermediate certificates in `pem`.
bool UseCertificates(SSL_CTX* context, const std::string& pem) {
  const Bio bio = Reader(pem);
  const auto leaf = Certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (leaf == nullptr || SSL_CTX_use_certificate(context, leaf.get()) != 1) return false;
  while (const auto next = Certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr))) {
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) return false;
  }
  ERR_clear_error();
  return true;
}

absl::Status Refuse(absl::string_view what) {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat(what, reason == nullptr ? "" : ": ", reason == nullptr ? "" : reason));
  ERR_clear_error();
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ssl_ctx_st>> MakeServerContext(const TlsPems& pems) {
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr || ErrorIndex() < 0)
    return Refuse("metrics listener: cannot create an OpenSSL context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(),
                      SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, RememberError);
  if (!UseAuthorities(context.get(), pems.ca))
    return Refuse("metrics listener: the authority's file is not a PEM certificate");
  if (!UseCertificates(context.get(), pems.cert))
    return Refuse("metrics listener: the certificate's file is not a PEM certificate");
  const Bio bio = Reader(pems.key);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  if (key == nullptr || SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1)
    return Refuse("metrics listener: the key does not belong to the certificate");
  return std::shared_ptr<ssl_ctx_st>(context);
}

std::string ClientCertificateProblem(const ssl_st* session) {
  const auto remembered =
      static_cast<long>(reinterpret_cast<std::intptr_t>(SSL_get_ex_data(session, ErrorIndex())));
  const long error = remembered != 0 ? remembered : SSL_get_verify_result(session);
  if (SSL_get0_peer_certificate(session) == nullptr) return "no certificate was given";
  if (error != X509_V_OK)
    return absl::StrCat("certificate verify failed: ", X509_verify_cert_error_string(error));
  return "";
}

}  // namespace evergrad::metrics
