// Certificates of a test: an authority, and servers' certificates that it has signed.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "common/base/openssl_ptr.h"

namespace evergrad::http {

struct ServerPems {
  std::string cert, key;
};

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "authority of a test");
  // The authority's own certificate.
  const std::string& pem() const { return pem_; }
  // Returns a certificate for `name` ("IP:127.0.0.1" or "DNS:localhost") that is valid from an hour
  // ago until `valid_seconds` from now.
  ServerPems Issue(const std::string& name, long valid_seconds = 3600) const;

 private:
  using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
  using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
  Certificate Make(const std::string& subject, EVP_PKEY* key, long valid_seconds, int extension,
                   const std::string& value) const;

  Key key_;
  Certificate certificate_;  // null while Make makes it
  std::string pem_;
};

}  // namespace evergrad::http
