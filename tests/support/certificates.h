// Certificates for tests, right and wrong ones. A test program that includes this header links
// OpenSSL::Crypto.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/openssl_ptr.h"
#include "common/transport/tls/tls_files.h"
#include "tests/support/temp_folder.h"

namespace evergrad::test {

using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;

inline void AddExtension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// Returns a certificate for `key`, valid from and until the given seconds from now. Without an
// issuer, it is the certificate of an authority. `names` has the form of openssl's
// subjectAltName.
inline Certificate MakeCertificate(EVP_PKEY* key, const std::string& name, EVP_PKEY* signer,
                                   X509* issuer, long begin_seconds, long end_seconds,
                                   const char* names = nullptr) {
  Certificate certificate(X509_new());
  X509* const c = certificate.get();
  X509_set_version(c, 2);
  static long serial = 1;
  ASN1_INTEGER_set(X509_get_serialNumber(c), serial++);
  X509_gmtime_adj(X509_getm_notBefore(c), begin_seconds);
  X509_gmtime_adj(X509_getm_notAfter(c), end_seconds);
  X509_set_pubkey(c, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(c), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(c, X509_get_subject_name(issuer == nullptr ? c : issuer));
  if (issuer == nullptr) {
    AddExtension(c, c, NID_basic_constraints, "critical,CA:TRUE");
    AddExtension(c, c, NID_subject_key_identifier, "hash");
  } else {
    // Tells apart two authorities of the same name, as `psctl cert` makes them.
    AddExtension(c, issuer, NID_authority_key_identifier, "keyid");
  }
  if (names != nullptr) AddExtension(c, issuer, NID_subject_alt_name, names);
  X509_sign(c, signer, EVP_sha256());
  return certificate;
}

struct Authority {
  explicit Authority(const std::string& name = "evergrad test CA")
      : certificate(MakeCertificate(key.get(), name, key.get(), nullptr, -3600, 3600)) {}
  const Key key{EVP_EC_gen("P-256")};
  const Certificate certificate;
};

inline std::string TextOf(BIO* bio) {
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(bio, &text);
  return std::string(text, static_cast<std::size_t>(bytes));
}
inline std::string PemOf(X509* certificate) {
  const std::unique_ptr<BIO, Freer<BIO_free>> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return TextOf(bio.get());
}
inline std::string PemOf(EVP_PKEY* key) {
  const std::unique_ptr<BIO, Freer<BIO_free>> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return TextOf(bio.get());
}

// Returns the names of a certificate on this host whose task is derived from `name`: "ps_server-0"
// gives ps_server/0, "coordinator" the coordinator, and any other name gives user/NAME.
inline std::string NamesOf(const std::string& name) {
  const std::size_t dash = name.find('-');
  return "URI:evergrad://" +
         (name == "coordinator"       ? name
          : dash == std::string::npos ? "user/" + name
                                      : name.substr(0, dash) + "/" + name.substr(dash + 1)) +
         ",IP:127.0.0.1";
}

struct Issued {
  // The names of the certificate; "" for NamesOf, and "none" for no names.
  std::string names = "";
  long begin_seconds = -3600, end_seconds = 3600;
  Key key = Key(EVP_EC_gen("P-256"));
};
// Returns the contents of three files: a certificate that `signer` has signed, its key, and the
// certificates of the authorities in `trusted`.
inline transport::TlsPems IssuePems(const std::string& name, const Authority& signer,
                                    const std::vector<const Authority*>& trusted,
                                    const Issued& issued = {}) {
  const std::string names = issued.names.empty() ? NamesOf(name) : issued.names;
  transport::TlsPems pems;
  for (const Authority* authority : trusted) pems.ca += PemOf(authority->certificate.get());
  pems.cert = PemOf(MakeCertificate(issued.key.get(), name, signer.key.get(),
                                    signer.certificate.get(), issued.begin_seconds,
                                    issued.end_seconds, names == "none" ? nullptr : names.c_str())
                        .get());
  pems.key = PemOf(issued.key.get());
  return pems;
}

// Replaces a file by a rename.
inline void ReplaceFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new", std::ios::binary) << text;
  std::rename((path + ".new").c_str(), path.c_str());
}
inline void ReplaceFiles(const transport::TlsFiles& files, const transport::TlsPems& pems) {
  ReplaceFile(files.ca, pems.ca);
  ReplaceFile(files.cert, pems.cert);
  ReplaceFile(files.key, pems.key);
}

// Returns the paths NAME.ca.pem, NAME.pem and NAME.key in `folder`.
inline transport::TlsFiles FilesOf(const TempFolder& folder, const std::string& name) {
  return {folder / (name + ".ca.pem"), folder / (name + ".pem"), folder / (name + ".key")};
}
// Writes the files of a certificate.
inline transport::TlsFiles Issue(const TempFolder& folder, const std::string& name,
                                 const Authority& signer, const Authority& trusted,
                                 const Issued& issued = {}) {
  transport::TlsFiles files = FilesOf(folder, name);
  ReplaceFiles(files, IssuePems(name, signer, {&trusted}, issued));
  return files;
}

}  // namespace evergrad::test
