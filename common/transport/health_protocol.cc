#include "common/transport/health_protocol.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace evergrad::transport {
namespace {

constexpr char kServiceTag = '\x0a';  // field 1, with a length
constexpr char kStatusTag = '\x08';   // field 1, a varint
constexpr char kServing = 1, kNotServing = 2;

}  // namespace

std::string HealthRequest(absl::string_view service) {
  EG_CHECK_MSG(service.size() <= kHealthServiceBytesMax,
               "the name of a health service is too long");
  if (service.empty()) return "";
  return absl::StrCat(std::string{kServiceTag, static_cast<char>(service.size())}, service);
}

absl::StatusOr<std::string> ParseHealthRequest(absl::string_view bytes) {
  if (bytes.empty()) return "";
  if (bytes.size() < 2 || bytes.size() - 2 > kHealthServiceBytesMax || bytes[0] != kServiceTag ||
      static_cast<unsigned char>(bytes[1]) != bytes.size() - 2)
    return absl::InvalidArgumentError("malformed HealthCheckRequest");
  return std::string(bytes.substr(2));
}

std::string HealthResponse(bool serving) { return {kStatusTag, serving ? kServing : kNotServing}; }

absl::StatusOr<bool> ParseHealthResponse(absl::string_view bytes) {
  if (bytes.empty()) return false;  // the status UNKNOWN
  if (bytes.size() != 2 || bytes[0] != kStatusTag)
    return absl::InternalError(absl::StrCat("malformed HealthCheckResponse: bytes=", bytes.size()));
  return bytes[1] == kServing;
}

}  // namespace evergrad::transport
