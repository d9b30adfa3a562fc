// Collects one response, line by line and piece by piece as libcurl delivers it, within limits.
// Pure.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/http/client.h"

namespace evergrad::http {

class ResponseReader {
 public:
  // Limits of the headers of all responses to one request. A server may send any number of
  // responses with a status below 200 before the final one.
  static constexpr std::size_t kHeaderBytesMax = 64u << 10;
  static constexpr std::size_t kHeadersMax = 200;

  // `to_head` is true for a response to HEAD: its Content-Length is the length of a body that is
  // not sent.
  ResponseReader(bool to_head, std::size_t body_bytes_max)
      : to_head_(to_head), body_bytes_max_(body_bytes_max) {}

  // Adds the next line of the headers, with its line end. Headers of a response below 200 are
  // forgotten, and headers after the body are ignored. Returns false if the response is refused.
  bool AddHeaderLine(absl::string_view line);
  // Adds the next bytes of the body. Returns false if the response is refused.
  bool AddBody(absl::string_view bytes);

  // The reason of a refusal: ResourceExhausted above a limit, and Unavailable for a malformed
  // header. OK if the response is not refused.
  const absl::Status& refusal() const { return refusal_; }
  // Returns whether all headers of the final response have arrived.
  bool has_headers() const { return !in_headers_ && response_.status >= 200; }
  std::size_t header_bytes() const { return header_bytes_; }
  int status() const { return response_.status; }
  Response Take() { return std::move(response_); }

 private:
  bool BeginResponse(absl::string_view status_line);
  bool AddHeader(absl::string_view line);
  bool EndHeaders();
  bool Refuse(absl::Status reason);

  const bool to_head_;
  const std::size_t body_bytes_max_;
  Response response_;
  bool in_headers_ = false;
  std::size_t header_bytes_ = 0;
  std::size_t headers_ = 0;
  absl::Status refusal_;
};

}  // namespace evergrad::http
