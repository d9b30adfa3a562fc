#include "common/object_store/rsa_signature.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "common/base/openssl_ptr.h"

namespace evergrad::object_store {
namespace {

using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Context = std::unique_ptr<EVP_MD_CTX, Freer<EVP_MD_CTX_free>>;

// An encrypted key has no passphrase here. Without this function OpenSSL would ask for it on the
// terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

// Returns null if the text is no private key.
Key ReadKey(absl::string_view pem) {
  if (pem.size() > (1 << 20)) return nullptr;
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  if (bio == nullptr) return nullptr;
  return Key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
}

}  // namespace

absl::StatusOr<std::string> SignRs256(absl::string_view text, absl::string_view key_pem) {
  const Key key = ReadKey(key_pem);
  ERR_clear_error();
  if (key == nullptr || EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_RSA)
    return absl::InvalidArgumentError("the private key is not an unencrypted RSA key in PEM");
  const Context context(EVP_MD_CTX_new());
  std::string signature(static_cast<std::size_t>(EVP_PKEY_get_size(key.get())), '\0');
  std::size_t bytes = signature.size();
  const bool done =
      context != nullptr &&
      EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()) == 1 &&
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &bytes,
                     reinterpret_cast<const unsigned char*>(text.data()), text.size()) == 1;
  ERR_clear_error();
  if (!done) return absl::InvalidArgumentError("the private key cannot sign with RS256");
  signature.resize(bytes);
  return signature;
}

}  // namespace evergrad::object_store
