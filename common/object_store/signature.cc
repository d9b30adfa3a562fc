#include "common/object_store/signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/object_store/time_text.h"

namespace evergrad::object_store {
namespace {

// The words in which the two kinds of signatures differ.
struct Dialect {
  absl::string_view algorithm, key_prefix, scope_end, header_prefix;
};
constexpr Dialect kAmazon{"AWS4-HMAC-SHA256", "AWS4", "aws4_request", "x-amz-"};
constexpr Dialect kGoogle{"GOOG4-HMAC-SHA256", "GOOG4", "goog4_request", "x-goog-"};

using Digest = std::array<unsigned char, EVP_MAX_MD_SIZE>;

std::string TextOf(const Digest& digest, unsigned int bytes) {
  return std::string(reinterpret_cast<const char*>(digest.data()), bytes);
}

std::string Sha256Hex(absl::string_view text) {
  Digest digest{};
  unsigned int bytes = 0;
  EG_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &bytes, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(TextOf(digest, bytes));
}

std::string HmacSha256(absl::string_view key, absl::string_view text) {
  Digest digest{};
  unsigned int bytes = 0;
  EG_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
                &bytes) != nullptr);
  return TextOf(digest, bytes);
}

// Returns the canonical form of a header's value: no white space at its ends, and one space for
// each run of white space inside.
std::string CanonicalValue(absl::string_view value) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(value, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  return absl::StrJoin(words, " ");
}

// Headers by their names in lower case, which is the order of the canonical form. The values of
// one name are joined by commas.
using CanonicalHeaders = std::map<std::string, std::string>;

void AddHeader(const std::string& name, const std::string& value, CanonicalHeaders* headers) {
  const auto [entry, is_new] = headers->emplace(absl::AsciiStrToLower(name), CanonicalValue(value));
  if (!is_new) absl::StrAppend(&entry->second, ",", CanonicalValue(value));
}

}  // namespace

std::string EncodeQuery(std::vector<std::pair<std::string, std::string>> query) {
  for (auto& [name, value] : query) {
    name = PercentEncode(name, false);
    value = PercentEncode(value, false);
  }
  // The order is that of the encoded names. It differs from the order of the plain names ('é' is
  // after 'z', but "%C3%A9" is before "z") and from the order of the pairs as text ('-' is before
  // '=').
  std::sort(query.begin(), query.end());
  return absl::StrJoin(query, "&", absl::PairFormatter("="));
}

std::vector<http::Header> Sign(const RequestToSign& request, const SigningScope& scope,
                               const Credentials& credentials) {
  if (!credentials.bearer_token.empty())
    return {{"authorization", absl::StrCat("Bearer ", credentials.bearer_token)}};

  const bool is_gcs = scope.kind == fs::StoreKind::kGcs;
  const Dialect& dialect = is_gcs ? kGoogle : kAmazon;
  const std::string service = is_gcs ? "storage" : scope.service;
  const std::string time = BasicTime(scope.wall_ms), date = time.substr(0, 8);
  const std::string body_digest = Sha256Hex(request.body);

  std::vector<http::Header> added{{absl::StrCat(dialect.header_prefix, "date"), time}};
  if (is_gcs || service == "s3")
    added.push_back({absl::StrCat(dialect.header_prefix, "content-sha256"), body_digest});
  if (!is_gcs && !credentials.session_token.empty())
    added.push_back({"x-amz-security-token", credentials.session_token});

  CanonicalHeaders headers;
  AddHeader("host", request.host, &headers);
  for (const http::Header& header : request.headers) AddHeader(header.name, header.value, &headers);
  for (const http::Header& header : added) AddHeader(header.name, header.value, &headers);
  const std::string signed_names = absl::StrJoin(
      headers, ";", [](std::string* out, const auto& header) { out->append(header.first); });

  const std::string canonical = absl::StrCat(
      request.method, "\n", PercentEncode(request.path, true), "\n", EncodeQuery(request.query),
      "\n", absl::StrJoin(headers, "\n", absl::PairFormatter(":")), "\n\n", signed_names, "\n",
      body_digest);
  const std::string credential_scope =
      absl::StrJoin({absl::string_view(date), absl::string_view(scope.region),
                     absl::string_view(service), dialect.scope_end},
                    "/");
  const std::string to_sign = absl::StrCat(dialect.algorithm, "\n", time, "\n", credential_scope,
                                           "\n", Sha256Hex(canonical));

  std::string key = absl::StrCat(dialect.key_prefix, credentials.secret_access_key);
  for (const absl::string_view part : {absl::string_view(date), absl::string_view(scope.region),
                                       absl::string_view(service), dialect.scope_end})
    key = HmacSha256(key, part);
  const std::string signature = absl::BytesToHexString(HmacSha256(key, to_sign));

  added.push_back(
      {"authorization", absl::StrCat(dialect.algorithm, " Credential=", credentials.access_key_id,
                                     "/", credential_scope, ", SignedHeaders=", signed_names,
                                     ", Signature=", signature)});
  return added;
}

}  // namespace evergrad::object_store
