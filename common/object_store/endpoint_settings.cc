#include "common/object_store/endpoint_settings.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/escape.h"
#include "common/base/status.h"

namespace evergrad::object_store {
namespace {

constexpr std::size_t kHostBytesMax = 253, kRegionBytesMax = 63;
constexpr std::size_t kQuotedMax = 100;  // characters of a value in a message

// A setting and its place: a flag or an environment variable.
struct Setting {
  std::string origin, value;
};

std::optional<Setting> FirstOf(absl::string_view flag, const std::string& option,
                               std::initializer_list<const char*> names,
                               const Variables& variables) {
  if (!option.empty()) return Setting{std::string(flag), option};
  for (const char* name : names) {
    const std::optional<std::string> value = variables ? variables(name) : std::nullopt;
    if (value && !value->empty()) return Setting{name, *value};
  }
  return std::nullopt;
}

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool IsHost(const std::string& host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    in6_addr ignored;
    return ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &ignored) == 1;
  }
  return !host.empty() && host.size() <= kHostBytesMax && IsAlphanumeric(host.front()) &&
         std::all_of(host.begin(), host.end(),
                     [](char c) { return IsAlphanumeric(c) || c == '.' || c == '-' || c == '_'; });
}

bool IsPort(absl::string_view port) {
  std::uint32_t number = 0;
  return port.size() <= 5 &&
         std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         absl::SimpleAtoi(port, &number) && number >= 1 && number <= 65535;
}

bool IsLoopback(const std::string& host) {
  in_addr address;
  if (::inet_pton(AF_INET, host.c_str(), &address) == 1)
    return (ntohl(address.s_addr) >> 24) == 127;
  return host == "localhost" || host == "[::1]";
}

absl::StatusOr<Setting> CheckRegion(Setting region) {
  const bool ok = region.value.size() <= kRegionBytesMax &&
                  std::all_of(region.value.begin(), region.value.end(),
                              [](char c) { return IsAlphanumeric(c) || c == '-' || c == '_'; });
  if (ok) return region;
  return UserError(absl::InvalidArgumentError(
      absl::StrCat(region.origin, ": a region has at most ", kRegionBytesMax,
                   " characters a-z A-Z 0-9 - _: got=`", Quoted(region.value, kQuotedMax), "`")));
}

absl::StatusOr<Setting> RegionOf(const StoreOptions& options, const Variables& variables) {
  return CheckRegion(
      FirstOf("--s3-region", options.s3_region, {"AWS_REGION", "AWS_DEFAULT_REGION"}, variables)
          .value_or(Setting{"default", "us-east-1"}));
}

absl::StatusOr<Endpoint> S3EndpointOf(absl::string_view bucket, const StoreOptions& options,
                                      const Variables& variables) {
  EG_ASSIGN_OR_RETURN(const Setting region, RegionOf(options, variables));
  Endpoint endpoint;
  endpoint.region = region.value;
  const std::optional<Setting> own = FirstOf(
      "--s3-endpoint", options.s3_endpoint, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, variables);
  if (own) {
    EG_ASSIGN_OR_RETURN(endpoint.url, CheckEndpoint(own->origin, own->value));
  } else {
    // The regions of China have a domain of their own.
    endpoint.url = absl::StrCat("https://s3.", region.value, ".amazonaws.com",
                                absl::StartsWith(region.value, "cn-") ? ".cn" : "");
  }
  // The certificate of AWS (*.s3.REGION.amazonaws.com) does not cover names with dots.
  endpoint.bucket_in_path =
      options.s3_addressing == "path" ||
      (options.s3_addressing == "auto" && (own.has_value() || absl::StrContains(bucket, ".")));
  return endpoint;
}

}  // namespace

absl::StatusOr<std::string> CheckEndpoint(absl::string_view origin, absl::string_view url) {
  const auto bad = [&](absl::string_view why) {
    // The value is not quoted if it may have a password or a token.
    const bool secret = absl::StrContains(url, "@") || absl::StrContains(url, "?");
    return UserError(absl::InvalidArgumentError(
        absl::StrCat(origin, ": ", why, secret ? "" : ": got=`",
                     secret ? "" : Quoted(url, kQuotedMax), secret ? "" : "`")));
  };
  absl::string_view rest = url;
  const bool https = absl::ConsumePrefix(&rest, "https://");
  if (!https && !absl::ConsumePrefix(&rest, "http://"))
    return bad("expected a URL like https://HOST or https://HOST:PORT");
  absl::ConsumeSuffix(&rest, "/");
  if (rest.find_first_of("/?#@") != absl::string_view::npos)
    return bad("the URL of a store has no path, query or user");
  const std::size_t colon = rest.rfind(':');
  const std::size_t bracket = rest.rfind(']');
  const bool has_port =
      colon != absl::string_view::npos && (bracket == absl::string_view::npos || colon > bracket);
  const std::string host(rest.substr(0, has_port ? colon : rest.size()));
  if (!IsHost(host) || (has_port && !IsPort(rest.substr(colon + 1))))
    return bad("expected a URL like https://HOST or https://HOST:PORT");
  if (!https && !IsLoopback(host))
    return bad("http:// is allowed for 127.0.0.1, [::1] and localhost only; expected https://");
  return absl::StrCat(https ? "https://" : "http://", rest);
}

absl::StatusOr<Endpoint> EndpointOf(fs::StoreKind kind, absl::string_view bucket,
                                    const StoreOptions& options, const Variables& variables) {
  if (kind == fs::StoreKind::kS3) return S3EndpointOf(bucket, options, variables);
  Endpoint endpoint{"https://storage.googleapis.com", "auto", /*bucket_in_path=*/true};
  if (!options.gcs_endpoint.empty()) {
    EG_ASSIGN_OR_RETURN(endpoint.url, CheckEndpoint("--gcs-endpoint", options.gcs_endpoint));
  }
  return endpoint;
}

}  // namespace evergrad::object_store
