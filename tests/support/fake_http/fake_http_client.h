// An HTTP client that sends nothing. It answers requests from a script, and records them.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/http/client.h"

namespace evergrad::test {

struct SentRequest {
  std::string method, url;
  std::vector<http::Header> headers;
  std::string body;
  std::size_t response_bytes_max = 0;

  // Returns the value of the last header with this name in any case, or "".
  std::string Find(absl::string_view name) const {
    std::string value;
    for (const http::Header& header : headers)
      if (absl::EqualsIgnoreCase(header.name, name)) value = header.value;
    return value;
  }
  bool Has(absl::string_view name) const {
    for (const http::Header& header : headers)
      if (absl::EqualsIgnoreCase(header.name, name)) return true;
    return false;
  }
};

inline http::Response ResponseOf(int status, std::string body = "",
                                 std::vector<http::Header> headers = {}) {
  http::Response response;
  response.status = status;
  response.headers = std::move(headers);
  response.body = std::move(body);
  return response;
}

// Thread-safe. Answer and Fail append to a queue, and each request takes the first entry of the
// queue. A request that finds the queue empty is given to the handler. Without a handler it fails
// with Internal, which no real client returns, so that a test sees a request that it did not
// expect.
class FakeHttpClient final : public http::Client {
 public:
  // Several threads may call a handler at once. No lock is held during the call.
  using Handler = std::function<absl::StatusOr<http::Response>(const http::Request&)>;

  void Answer(http::Response response) {
    const MutexLock lock(&mu_);
    queue_.emplace_back(std::move(response));
  }
  void Answer(int status, std::string body = "", std::vector<http::Header> headers = {}) {
    Answer(ResponseOf(status, std::move(body), std::move(headers)));
  }
  void Fail(absl::Status status) {
    const MutexLock lock(&mu_);
    queue_.emplace_back(std::move(status));
  }
  void SetHandler(Handler handler) {
    const MutexLock lock(&mu_);
    handler_ = std::move(handler);
  }
  // Returns the requests in the order in which they arrived.
  std::vector<SentRequest> sent() const {
    const MutexLock lock(&mu_);
    return sent_;
  }
  // Returns the number of queued answers that no request has taken.
  std::size_t left() const {
    const MutexLock lock(&mu_);
    return queue_.size();
  }

  absl::StatusOr<http::Response> Send(const http::Request& request) override {
    absl::StatusOr<http::Response> answer = absl::InternalError(
        absl::StrCat("the test expects no such request: ", request.method, " ", request.url));
    Handler handler;
    {
      const MutexLock lock(&mu_);
      sent_.push_back({request.method, request.url, request.headers, std::string(request.body),
                       request.response_bytes_max});
      if (!queue_.empty()) {
        answer = std::move(queue_.front());
        queue_.pop_front();
      } else {
        handler = handler_;
      }
    }
    if (handler) answer = handler(request);
    if (answer.ok() && answer->body.size() > request.response_bytes_max)
      return absl::ResourceExhaustedError(
          absl::StrCat("the response is too large: limit_bytes=", request.response_bytes_max));
    return answer;
  }

 private:
  mutable Mutex mu_;
  std::deque<absl::StatusOr<http::Response>> queue_ ABSL_GUARDED_BY(mu_);
  Handler handler_ ABSL_GUARDED_BY(mu_);
  std::vector<SentRequest> sent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::test
