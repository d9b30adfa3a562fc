#include "common/transport/tls/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/openssl_ptr.h"
#include "common/base/status.h"
#include "common/transport/certificate_task.h"

namespace evergrad::transport {
namespace {

constexpr std::size_t kFileBytesMax = 1u << 20;

using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Store = std::unique_ptr<X509_STORE, Freer<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>>;

absl::StatusOr<std::string> ReadPem(absl::string_view what, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", what, ": file=", path, " error=", std::strerror(errno)));
  std::stringstream text;
  text << in.rdbuf();
  std::string pem = text.str();
  if (pem.empty() || pem.size() > kFileBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has an invalid size: file=", path, " bytes=", pem.size()));
  return pem;
}

Bio Reader(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

absl::StatusOr<Certificate> ParseCertificate(absl::string_view what, const std::string& pem,
                                             const std::string& path) {
  const Bio bio = Reader(pem);
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(what, " is not a PEM certificate: file=", path));
  return certificate;
}

// Verifies this task's certificate against its authorities, as the peer will do. The file has
// several authorities while an old authority is being replaced.
absl::Status Verify(const std::string& ca_pem, X509* certificate, const TlsFiles& files) {
  const Store store(X509_STORE_new());
  const StoreContext context(X509_STORE_CTX_new());
  if (AddAuthorities(ca_pem, store.get()) == 0)
    return absl::InvalidArgumentError(
        absl::StrCat("tls ca is not a PEM certificate: file=", files.ca));
  X509_STORE_set_flags(store.get(), X509_V_FLAG_PARTIAL_CHAIN);
  X509_STORE_CTX_init(context.get(), store.get(), certificate, nullptr);
  const bool good = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  const bool of_ca = X509_STORE_CTX_get_error_depth(context.get()) > 0;
  ERR_clear_error();
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("certificate verify failed: ", X509_verify_cert_error_string(error),
                   ": file=", of_ca ? files.ca : files.cert, " ca=", files.ca));
}

std::vector<std::string> UriNames(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, Freer<GENERAL_NAMES_free>> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<std::size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

// Returns an error unless every PEM block of `pem` is complete, and every certificate in it can be
// read.
absl::Status CheckBlocks(absl::string_view what, const std::string& pem, const std::string& path) {
  constexpr absl::string_view kBegin = "-----BEGIN ";
  int begun = 0, complete = 0;
  for (std::size_t at = pem.find(kBegin.data()); at != std::string::npos;
       at = pem.find(kBegin.data(), at + kBegin.size()))
    ++begun;
  const Bio bio = Reader(pem);
  bool readable = pem.find('\0') == std::string::npos;
  for (;;) {
    char *name = nullptr, *header = nullptr;
    unsigned char* data = nullptr;
    long bytes = 0;
    if (PEM_read_bio(bio.get(), &name, &header, &data, &bytes) != 1) break;
    ++complete;
    if (std::strcmp(name, PEM_STRING_X509) == 0) {
      const unsigned char* from = data;
      readable = Certificate(d2i_X509(nullptr, &from, bytes)) != nullptr && readable;
    }
    OPENSSL_free(name);
    OPENSSL_free(header);
    OPENSSL_free(data);
  }
  ERR_clear_error();
  if (readable && begun == complete) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is incomplete: file=", path));
}

}  // namespace

int AddAuthorities(const std::string& pem, X509_STORE* store) {
  const Bio bio = Reader(pem);
  int added = 0;
  while (const auto ca = Certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)))
    added += X509_STORE_add_cert(store, ca.get()) == 1 ? 1 : 0;
  ERR_clear_error();
  return added;
}

bool UseTls(SSL_CTX* context, const TlsPems& pems) {
  const Bio cert_bio = Reader(pems.cert), key_bio = Reader(pems.key);
  const Certificate cert(PEM_read_bio_X509(cert_bio.get(), nullptr, nullptr, nullptr));
  const Key key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr));
  return cert && key && AddAuthorities(pems.ca, SSL_CTX_get_cert_store(context)) > 0 &&
         SSL_CTX_use_certificate(context, cert.get()) == 1 &&
         SSL_CTX_use_PrivateKey(context, key.get()) == 1;
}

std::int64_t ExpirySeconds(const std::string& cert_pem) {
  const auto certificate = ParseCertificate("tls cert", cert_pem, "");
  std::tm expiry{};
  if (!certificate.ok() || ASN1_TIME_to_tm(X509_get0_notAfter(certificate->get()), &expiry) != 1)
    return 0;
  return timegm(&expiry);
}

absl::StatusOr<TlsPems> ReadTls(const TlsFiles& files) {
  TlsPems pems;
  EG_ASSIGN_OR_RETURN(pems.ca, ReadPem("tls ca", files.ca));
  EG_ASSIGN_OR_RETURN(pems.cert, ReadPem("tls cert", files.cert));
  EG_ASSIGN_OR_RETURN(pems.key, ReadPem("tls key", files.key));
  return pems;
}

absl::Status CheckTls(const TlsPems& pems, const TlsFiles& files) {
  EG_ASSIGN_OR_RETURN(const Certificate certificate,
                      ParseCertificate("tls cert", pems.cert, files.cert));
  const Bio bio = Reader(pems.key);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (key == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat("tls key is not a PEM private key: file=", files.key));
  const bool matches = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (!matches)
    return absl::InvalidArgumentError(absl::StrCat(
        "tls key does not belong to the certificate: key=", files.key, " cert=", files.cert));
  EG_RETURN_IF_ERROR(Verify(pems.ca, certificate.get(), files));
  // Every peer will also check the name of the task, so it is checked here.
  auto task = TaskOfUris(UriNames(certificate.get()));
  absl::Status named = task.ok() ? CheckTask(*task, files.task) : task.status();
  if (!named.ok())
    return absl::InvalidArgumentError(absl::StrCat(named.message(), ": file=", files.cert));
  return absl::OkStatus();
}

absl::StatusOr<std::string> TaskOfCertificateFile(const std::string& path) {
  EG_ASSIGN_OR_RETURN(const std::string pem, ReadPem("tls cert", path));
  EG_ASSIGN_OR_RETURN(const Certificate certificate, ParseCertificate("tls cert", pem, path));
  return TaskOfUris(UriNames(certificate.get()));
}

absl::Status CheckReload(const TlsPems& pems, const TlsFiles& files) {
  EG_RETURN_IF_ERROR(CheckTls(pems, files));
  EG_RETURN_IF_ERROR(CheckBlocks("tls ca", pems.ca, files.ca));
  EG_RETURN_IF_ERROR(CheckBlocks("tls cert", pems.cert, files.cert));
  const Context context(SSL_CTX_new(TLS_method()));
  const bool usable = context != nullptr && UseTls(context.get(), pems);
  const unsigned long code = ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  absl::Status status;
  if (!usable)
    status = absl::InvalidArgumentError(
        absl::StrCat("OpenSSL refuses the certificate: file=", files.cert,
                     " reason=", reason == nullptr ? "unknown" : reason));
  ERR_clear_error();
  return status;
}

absl::StatusOr<std::optional<TlsPems>> LoadTls(const TlsFiles& files) {
  if (files.empty()) return std::nullopt;
  if (files.ca.empty() || files.cert.empty() || files.key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tls needs all three of ca, cert and key: ca=", files.ca, " cert=", files.cert,
                     " key=", files.key));
  }
  EG_ASSIGN_OR_RETURN(TlsPems pems, ReadTls(files));
  EG_RETURN_IF_ERROR(CheckTls(pems, files));
  return pems;
}

}  // namespace evergrad::transport
