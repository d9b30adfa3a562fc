// Reads one HTTP/1.1 response. Pure.
//
// The bytes come from outside, so the reader accepts a bounded number of bytes, and only responses
// whose end is unambiguous: by Content-Length, by chunks, or by the end of the connection. No other
// transfer encoding, no content encoding and no continued header line is accepted. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/preemption/clouds/cloud_watch.h"

namespace evergrad::preemption {

// Limits of the whole response and of its header lines.
inline constexpr std::size_t kResponseBytesMax = 64 << 10, kResponseHeadersMax = 64;

class ResponseReader {
 public:
  enum class State { kIncomplete, kComplete, kRefused };

  // Adds the next bytes of the connection. Bytes after the end of the response are ignored.
  State Add(absl::string_view bytes);
  // Reports that the peer has closed its side of the connection.
  State End();
  // Returns the response. Call it only if the state is kComplete.
  Answer TakeAnswer();
  // Returns the reason for which the response is refused, or "".
  const std::string& reason() const { return reason_; }

 private:
  State Advance();
  State Refuse(absl::string_view reason);
  bool ReadHead(absl::string_view head);
  bool ReadHeader(absl::string_view line);
  // Reads the headers that determine the end of the body. Returns false, and refuses the response,
  // if these headers contradict each other or are not supported.
  bool ReadFraming();
  State ReadChunks();

  State state_ = State::kIncomplete;
  std::string bytes_;
  std::size_t body_ = 0;  // position in bytes_ of the body or of the next chunk; 0 before the body
  std::optional<std::size_t> length_;  // length of the body, if it is known
  bool chunked_ = false;
  Answer answer_;
  std::string reason_;
};

}  // namespace evergrad::preemption
