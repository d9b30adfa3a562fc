// Sends HTTP requests with libcurl. The peer is not trusted.
//
// A request ends in bounded time and memory: a connection must be made within `connect_timeout`, a
// transfer must move bytes within each `stall_timeout` and end within `total_timeout`, and a body
// above `response_bytes_max` is refused. HTTPS certificates are always verified. Redirects are not
// followed, because a signed request must not be sent to another host. The path of a URL is sent
// exactly as it is given, and a body is returned exactly as it is stored (no compression).
//
// A client reuses its connections. If the server has closed an idle connection, the client sends
// the request again, on a new connection, so a server may receive a request twice. Requests use the
// proxy that the environment names (http_proxy, https_proxy, no_proxy), except those to this
// machine and to the metadata services of clouds (local_host.h).
//
// A client is thread-safe: each call of Send takes an idle handle or makes one. Calls block, so
// only I/O threads may make them.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
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
  std::string method;  // "GET", "HEAD", "PUT", "POST", "PATCH" or "DELETE"
  std::string url;     // percent-encoded: "https://host:9000/bucket/key?list-type=2"
  // The client itself writes Content-Length, Transfer-Encoding, Expect and Connection. It adds
  // Host, User-Agent and Accept if they are absent.
  std::vector<Header> headers;
  absl::string_view body;                     // of PUT, POST and PATCH only; outlives the call
  std::size_t response_bytes_max = 1u << 20;  // limit of the body, also of an error's body
  // If it is set, it receives the body of a response with status 200 in pieces, while they arrive,
  // and Response::body stays empty. `response_bytes_max` does not limit such a body, unless its
  // length is announced. Send calls the function on the thread of its caller. If the function
  // returns false, the transfer ends, and Send returns Cancelled.
  std::function<bool(absl::string_view)> receive_body = nullptr;
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
  // connection that ended within the response, a malformed response, a timeout), Unauthenticated
  // (the peer's certificate cannot be verified or is not valid for the host), ResourceExhausted
  // (the body is larger than `response_bytes_max`, or there are more than 200 headers or 64 KiB of
  // them), InvalidArgument (the URL, the method or a header of the request) and Cancelled (the
  // interruption, or `receive_body` returned false). Each error names the method and the URL
  // without its query. A refused URL is not repeated, because it may have a password, and no error
  // contains a header.
  virtual absl::StatusOr<Response> Send(const Request& request) = 0;
};

struct ClientOptions {
  std::string ca_file;  // PEM file of authorities; "" for those of the system
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds stall_timeout{30'000};
  std::chrono::milliseconds total_timeout{300'000};
  // Ends waiting transfers, within about a second; may be null; outlives the client.
  Interruption* interruption = nullptr;
};
// Returns InvalidArgument if `ca_file` cannot be read or has no certificate. The file is read again
// for new connections.
absl::StatusOr<std::unique_ptr<Client>> MakeCurlClient(ClientOptions options);

}  // namespace evergrad::http
