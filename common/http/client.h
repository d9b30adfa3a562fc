// Sends HTTP requests with libcurl. The peer is not trusted.
//
// A request ends in bounded time and memory: a connection must be made within `connect_timeout`, a
// transfer must move bytes within each `stall_timeout` and end within `total_timeout`, and a body
// above `response_bytes_max` is refused. HTTPS certificates are always verified. Redirects are not
// followed, because a signed request must not be sent to another host. The path of a URL is sent
// exactly as it is given.
//
// A client reuses its connections. It is thread-safe: each call of Send takes an idle handle or
// makes one. Calls block, so only I/O threads may make them.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http/interruption.h"

namespace evergrad::http {

struct Header {
  std::string name, value;
  friend bool operator==(const Header&, const Header&) = default;
};

struct Request {
  std::string method;  // "GET", "HEAD", "PUT", "POST" or "DELETE"
  std::string url;     // percent-encoded: "https://host:9000/bucket/key?list-type=2"
  std::vector<Header> headers;
  absl::string_view body;  // outlives the call
  std::size_t response_bytes_max = 1u << 20;
};

struct Response {
  int status = 0;
  std::vector<Header> headers;  // names in lower case, in the order of arrival
  std::string body;
  // Returns the value of the last header with this lower-case name, or "".
  absl::string_view Find(absl::string_view name) const;
};

class Client {
 public:
  virtual ~Client() = default;
  // Returns the response, whatever its status is. The errors are Unavailable (no connection, a
  // connection that ended within the response, a timeout), Unauthenticated (the peer's certificate
  // is not valid for the host), ResourceExhausted (the response is larger than
  // `response_bytes_max`), InvalidArgument (the URL) and Cancelled (the interruption). Each error
  // names the method and the URL without its query; no error contains a header.
  virtual absl::StatusOr<Response> Send(const Request& request) = 0;
};

struct ClientOptions {
  std::string ca_file;  // PEM file of authorities; "" for those of the system
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds stall_timeout{30'000};
  std::chrono::milliseconds total_timeout{300'000};
  // Ends waiting transfers; may be null; outlives the client.
  Interruption* interruption = nullptr;
};
// Returns InvalidArgument if `ca_file` cannot be read.
absl::StatusOr<std::unique_ptr<Client>> MakeCurlClient(ClientOptions options);

}  // namespace evergrad::http
