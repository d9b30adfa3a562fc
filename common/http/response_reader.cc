#include "common/http/response_reader.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/http/header_rules.h"

namespace evergrad::http {

bool ResponseReader::AddHeaderLine(absl::string_view line) {
  if (!refusal_.ok()) return false;
  header_bytes_ += line.size();
  if (header_bytes_ > kHeaderBytesMax)
    return Refuse(absl::ResourceExhaustedError(
        absl::StrCat("the headers of the response exceed ", kHeaderBytesMax, " bytes")));
  absl::ConsumeSuffix(&line, "\n");
  absl::ConsumeSuffix(&line, "\r");
  if (in_headers_) return line.empty() ? EndHeaders() : AddHeader(line);
  // Headers that follow a body (trailers) must not replace those before the body.
  return !absl::StartsWith(line, "HTTP/") || BeginResponse(line);
}

bool ResponseReader::BeginResponse(absl::string_view status_line) {
  const std::size_t space = status_line.find(' ');
  int status = 0;
  if (space == absl::string_view::npos ||
      !absl::SimpleAtoi(status_line.substr(space + 1, 3), &status) || status < 100 || status > 999)
    return Refuse(absl::UnavailableError("the response has a malformed status line"));
  response_.status = status;
  response_.headers.clear();
  in_headers_ = true;
  return true;
}

bool ResponseReader::AddHeader(absl::string_view line) {
  if (++headers_ > kHeadersMax)
    return Refuse(absl::ResourceExhaustedError(
        absl::StrCat("the response has more than ", kHeadersMax, " headers")));
  const std::size_t colon = line.find(':');
  const absl::string_view name = line.substr(0, colon);
  if (colon == absl::string_view::npos || !IsHeaderName(name) ||
      !IsHeaderValue(line.substr(colon + 1)))
    return Refuse(absl::UnavailableError("the response has a malformed header"));
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  response_.headers.push_back({absl::AsciiStrToLower(name), std::string(value)});
  return true;
}

bool ResponseReader::EndHeaders() {
  in_headers_ = false;
  const int status = response_.status;
  if (to_head_ || status < 200 || status == 204 || status == 304) return true;
  for (const Header& header : response_.headers) {
    std::uint64_t bytes = 0;
    if (header.name != "content-length" || !absl::SimpleAtoi(header.value, &bytes)) continue;
    if (bytes > body_bytes_max_)
      return Refuse(absl::ResourceExhaustedError(absl::StrCat(
          "the response has ", bytes, " bytes, and the limit is ", body_bytes_max_, " bytes")));
    response_.body.reserve(bytes);
  }
  return true;
}

bool ResponseReader::AddBody(absl::string_view bytes) {
  if (!refusal_.ok()) return false;
  if (bytes.size() > body_bytes_max_ - response_.body.size())
    return Refuse(absl::ResourceExhaustedError(
        absl::StrCat("the response exceeds its limit of ", body_bytes_max_, " bytes")));
  response_.body.append(bytes.data(), bytes.size());
  return true;
}

bool ResponseReader::Refuse(absl::Status reason) {
  refusal_ = std::move(reason);
  return false;
}

}  // namespace evergrad::http
