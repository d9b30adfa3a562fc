#include "common/preemption/metadata_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/host_port.h"
#include "common/preemption/http_response.h"

namespace evergrad::preemption {
namespace {

using std::chrono::milliseconds;

std::string ErrorText(int error) { return std::generic_category().message(error); }

Answer Failed(std::string failure) {
  Answer answer;
  answer.failure = std::move(failure);
  return answer;
}

// Begins to connect a new socket. Returns 0 or an error number; EINPROGRESS if the connection is
// under way.
int Connect(const MetadataAddress& address, fs::Descriptor* connection) {
  *connection = fs::Descriptor(
      ::socket(address.v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (connection->get() < 0) return errno;
  int result = 0;
  if (address.v6) {
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(address.port);
    ::inet_pton(AF_INET6, address.host.c_str(), &to.sin6_addr);
    result = ::connect(connection->get(), reinterpret_cast<sockaddr*>(&to), sizeof(to));
  } else {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address.port);
    ::inet_pton(AF_INET, address.host.c_str(), &to.sin_addr);
    result = ::connect(connection->get(), reinterpret_cast<sockaddr*>(&to), sizeof(to));
  }
  return result == 0 ? 0 : errno;
}

int PendingError(int descriptor) {
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

std::string RequestText(const Request& request, const MetadataAddress& address) {
  const std::string host = address.v6 ? absl::StrCat("[", address.host, "]") : address.host;
  std::string text = absl::StrCat(request.method, " ", request.path, " HTTP/1.1\r\nHost: ", host,
                                  address.port == 80 ? "" : absl::StrCat(":", address.port),
                                  "\r\nUser-Agent: evergrad\r\nConnection: close\r\n");
  for (const auto& [name, value] : request.headers)
    absl::StrAppend(&text, name, ": ", value, "\r\n");
  if (request.method != "GET")
    absl::StrAppend(&text, "Content-Length: ", request.body.size(), "\r\n");
  absl::StrAppend(&text, "\r\n", request.body);
  return text;
}

}  // namespace

std::optional<MetadataAddress> ParseMetadataUrl(absl::string_view url) {
  if (!absl::ConsumePrefix(&url, "http://")) return std::nullopt;
  absl::ConsumeSuffix(&url, "/");
  MetadataAddress address;
  const bool has_port =
      absl::StartsWith(url, "[") ? !absl::EndsWith(url, "]") : absl::StrContains(url, ':');
  const auto parsed = ParseHostPort(has_port ? std::string(url) : absl::StrCat(url, ":80"));
  if (!parsed || parsed->port == 0) return std::nullopt;
  address.host = parsed->host == "localhost" ? "127.0.0.1" : parsed->host;
  address.port = parsed->port;
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, address.host.c_str(), &v4) == 1) return address;
  address.v6 = true;
  if (::inet_pton(AF_INET6, address.host.c_str(), &v6) == 1) return address;
  return std::nullopt;
}

MetadataClient::MetadataClient(MetadataAddress address, const Clock* clock)
    : address_(std::move(address)), clock_(clock), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  EG_CHECK_MSG(wake_.get() >= 0, ErrorText(errno));
}

void MetadataClient::Wake() {
  const std::uint64_t one = 1;
  // The write can fail only if the counter of the eventfd is full. In that case a wake-up is
  // pending already.
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

MetadataClient::Ready MetadataClient::WaitFor(int descriptor, short events,
                                              std::optional<MonoTime> end) {
  for (;;) {
    int timeout = -1;
    if (end) {
      const auto left = std::chrono::ceil<milliseconds>(*end - clock_->Now()).count();
      if (left <= 0 && descriptor >= 0) return Ready::kTimeout;
      timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 600'000));
    }
    pollfd polled[2] = {{wake_.get(), POLLIN, 0}, {descriptor, events, 0}};
    const int ready = ::poll(polled, descriptor < 0 ? 1 : 2, timeout);
    if (ready < 0) EG_CHECK_MSG(errno == EINTR || errno == EAGAIN, ErrorText(errno));
    if (ready <= 0) {
      if (end && clock_->Now() >= *end) return Ready::kTimeout;
      continue;
    }
    if (polled[0].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto read = ::read(wake_.get(), &count, sizeof(count));
      return Ready::kWoken;
    }
    return Ready::kYes;
  }
}

bool MetadataClient::Wait(std::optional<milliseconds> time) {
  std::optional<MonoTime> end;
  if (time) end = clock_->Now() + *time;
  return WaitFor(-1, 0, end) != Ready::kWoken;
}

std::optional<Answer> MetadataClient::Send(const Request& request) {
  const MonoTime begin = clock_->Now();
  std::optional<Answer> answer = Exchange(request, begin + request.timeout);
  if (answer) answer->took = std::chrono::duration_cast<milliseconds>(clock_->Now() - begin);
  return answer;
}

std::optional<Answer> MetadataClient::Exchange(const Request& request, MonoTime end) {
  fs::Descriptor connection;
  int error = Connect(address_, &connection);
  std::string text = RequestText(request, address_);
  const auto late = [&] {
    return Failed(absl::StrCat("no answer within ", request.timeout.count(), " ms"));
  };
  if (error == EINPROGRESS) {
    const Ready ready = WaitFor(connection.get(), POLLOUT, end);
    if (ready == Ready::kWoken) return std::nullopt;
    if (ready == Ready::kTimeout) return late();
    error = PendingError(connection.get());
  }
  if (error != 0) return Failed(absl::StrCat("cannot connect: reason=", ErrorText(error)));
  ResponseReader reader;
  for (;;) {
    const Ready ready = WaitFor(connection.get(), text.empty() ? POLLIN : POLLOUT, end);
    if (ready == Ready::kWoken) return std::nullopt;
    if (ready == Ready::kTimeout) return late();
    char bytes[4096];
    const ssize_t count = text.empty()
                              ? ::recv(connection.get(), bytes, sizeof(bytes), 0)
                              : ::send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) continue;
      return Failed(absl::StrCat("the connection failed: reason=", ErrorText(errno)));
    }
    if (!text.empty()) {
      text.erase(0, static_cast<std::size_t>(count));
      continue;
    }
    const ResponseReader::State state =
        count == 0 ? reader.End()
                   : reader.Add(absl::string_view(bytes, static_cast<std::size_t>(count)));
    if (state == ResponseReader::State::kComplete) return reader.TakeAnswer();
    if (state == ResponseReader::State::kRefused) return Failed(reader.reason());
  }
}

}  // namespace evergrad::preemption
