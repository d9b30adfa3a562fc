#include "tests/unit/common/http/certificate_fixture.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <catch2/catch.hpp>
#include <functional>

namespace evergrad::http {
namespace {

std::string PemOf(const std::function<int(BIO*)>& write) {
  const std::unique_ptr<BIO, Freer<BIO_free>> bio(BIO_new(BIO_s_mem()));
  REQUIRE(write(bio.get()) == 1);
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<std::size_t>(bytes));
}

std::string PemOf(X509* certificate) {
  return PemOf([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

}  // namespace

TestAuthority::TestAuthority(const std::string& name) : key_(EVP_EC_gen("P-256")) {
  certificate_ = Make(name, key_.get(), 3600, NID_basic_constraints, "critical,CA:TRUE");
  pem_ = PemOf(certificate_.get());
}

TestAuthority::Certificate TestAuthority::Make(const std::string& subject, EVP_PKEY* key,
                                               long valid_seconds, int extension,
                                               const std::string& value) const {
  Certificate made(X509_new());
  X509_set_version(made.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), certificate_ == nullptr ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), valid_seconds);
  X509_set_pubkey(made.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1, 0);
  X509* const issuer = certificate_ == nullptr ? made.get() : certificate_.get();
  X509_set_issuer_name(made.get(), X509_get_subject_name(issuer));
  const std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>> extended(
      X509V3_EXT_conf_nid(nullptr, nullptr, extension, value.c_str()));
  REQUIRE(extended != nullptr);
  REQUIRE(X509_add_ext(made.get(), extended.get(), -1) == 1);
  REQUIRE(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0);
  return made;
}

ServerPems TestAuthority::Issue(const std::string& name, long valid_seconds) const {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate made =
      Make("server of a test", key.get(), valid_seconds, NID_subject_alt_name, name);
  ServerPems pems;
  pems.cert = PemOf(made.get());
  pems.key = PemOf([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return pems;
}

}  // namespace evergrad::http
