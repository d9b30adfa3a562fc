// The parts that tests of credentials share: variables, a clock, a client and a folder for files.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "common/base/openssl_ptr.h"
#include "common/object_store/credentials.h"
#include "common/time/clock.h"
#include "tests/support/fake_http/fake_http_client.h"
#include "tests/support/temp_folder.h"

namespace evergrad::object_store {

// Advances only when a test advances it. Thread-safe.
class TestClock final : public Clock {
 public:
  MonoTime Now() const override { return std::chrono::milliseconds(passed_ms_); }
  std::int64_t WallMillis() const override { return kBeginMs + passed_ms_; }
  void Advance(std::chrono::milliseconds by) { passed_ms_ += by.count(); }

  static constexpr std::int64_t kBeginMs = 1'767'225'600'000;  // 2026-01-01T00:00:00Z

 private:
  std::atomic<std::int64_t> passed_ms_ = 0;
};

struct CredentialSetting {
  std::map<std::string, std::string> variables;
  bool from_metadata = false;
  test::FakeHttpClient client;
  TestClock clock;
  test::TempFolder folder;

  CredentialSetting() { variables["HOME"] = folder / "home"; }

  CredentialOptions Options() {
    CredentialOptions options;
    options.variables = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end()) return std::nullopt;
      return found->second;
    };
    options.from_metadata = from_metadata;
    options.metadata_url = "http://127.0.0.1:1";
    options.client = &client;
    options.clock = &clock;
    return options;
  }
  std::unique_ptr<CredentialSource> S3() { return MakeS3Credentials(Options()); }
  std::unique_ptr<CredentialSource> Gcs() { return MakeGcsCredentials(Options()); }

  // Writes a file below the folder, and returns its path.
  std::string Write(const std::string& name, const std::string& contents) {
    const std::filesystem::path path = folder / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << contents;
    return path.string();
  }
};

// Returns the fields of a form or query, decoded.
inline std::map<std::string, std::string> FieldsOf(const std::string& form) {
  std::map<std::string, std::string> fields;
  for (const absl::string_view pair : absl::StrSplit(form, '&')) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    std::string value;
    for (std::size_t i = 0; i < field.second.size(); ++i) {
      if (field.second[i] != '%') {
        value.push_back(field.second[i]);
        continue;
      }
      value += absl::HexStringToBytes(field.second.substr(i + 1, 2));
      i += 2;
    }
    fields[std::string(field.first)] = value;
  }
  return fields;
}

inline std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>> NewRsaKey() {
  return std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>(EVP_RSA_gen(2048));
}

inline std::string PemOf(EVP_PKEY* key) {
  const std::unique_ptr<BIO, Freer<BIO_free>> bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return "";
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &bytes);
  return std::string(bytes, static_cast<std::size_t>(size));
}

inline std::string StsXml(const std::string& key, const std::string& expiration) {
  return "<AssumeRoleWithWebIdentityResponse "
         "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\n"
         " <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>" +
         key +
         "</AccessKeyId><SecretAccessKey>sts/secret+1</SecretAccessKey>"
         "<SessionToken>sts//token==</SessionToken><Expiration>" +
         expiration +
         "</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\n"
         "</AssumeRoleWithWebIdentityResponse>";
}

}  // namespace evergrad::object_store
