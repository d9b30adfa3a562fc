// Only this file includes cpp-httplib.
#include "common/metrics/http_exporter.h"

#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/metrics/scrape_tls.h"
#include "common/runtime/executor.h"

namespace evergrad::metrics {
namespace {

constexpr std::size_t kBodyBytesMax = 1024;  // The pages accept no body.
// Limit of the unsent bytes of all answers together, without the newest answer.
constexpr std::uint64_t kUnsentBytesMax = 16ull << 20;
constexpr int kBacklog = 256;
constexpr int kAcceptedAtOnceMax = 32;
constexpr MonoTime kAcceptAgain = std::chrono::milliseconds(100);

// Passes a complete request to httplib and collects the answer, which ScrapeConnection sends.
class Stream final : public httplib::Stream {
 public:
  explicit Stream(const std::string& request) : request_(request) {}
  std::string TakeAnswer() { return std::move(answer_); }
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t bytes_max) override {
    const std::size_t n = std::min(bytes_max, request_.size() - read_);
    std::memcpy(to, request_.data() + read_, n);
    read_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, size_t bytes) override {
    answer_.append(from, bytes);
    return static_cast<ssize_t>(bytes);
  }
  // httplib calls the following functions only for its log.
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  const std::string& request_;
  std::size_t read_ = 0;
  std::string answer_;
};

// Serves httplib's pages over connections of the class ScrapeConnection, with one request per
// connection. One thread polls all connections and answers complete requests, so no number of peers
// that send or read nothing can block another peer. httplib's own server uses a thread per
// connection, and a few silent peers would occupy all threads. (It also waits with select(), which
// does not support file descriptors above 1023.)
class ScrapeServer final : public httplib::Server {
 public:
  ScrapeServer(const Clock* clock, std::size_t connections_max, ConnectionLimits limits,
               std::shared_ptr<ssl_ctx_st> tls)
      : clock_(clock),
        connections_max_(connections_max),
        limits_(limits),
        stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    UseForNewConnections(std::move(tls));
    EG_CHECK_MSG(stop_ >= 0, "cannot create an eventfd for the metrics listener");
  }
  ~ScrapeServer() override {
    if (svr_sock_ != INVALID_SOCKET) close(svr_sock_);
    close(stop_);
  }

  // Called once the listener is bound. Returns after Stop, which any thread may call, and closes
  // the open connections.
  void Serve() {
    ::listen(svr_sock_, kBacklog);  // httplib's backlog is five.
    fcntl(svr_sock_, F_SETFL, fcntl(svr_sock_, F_GETFL) | O_NONBLOCK);
    while (Wait()) {
      const MonoTime now = clock_->Now();
      for (std::size_t i = 0; i < open_.size(); ++i) {
        ScrapeConnection& connection = *open_[i];
        if (polled_[kFirstConnection + i].revents == 0 && now < connection.deadline()) continue;
        if (connection.Proceed() == State::kAsked) connection.Answer(AnswerTo(connection));
      }
      DropOver();
      BoundUnsent();
      Accept();
    }
    open_.clear();
  }
  // May be called on any thread. Null means plain HTTP.
  void UseForNewConnections(std::shared_ptr<ssl_ctx_st> tls) {
    MutexLock lock(&mu_);
    tls_ = std::move(tls);
  }
  void Stop() {
    const std::uint64_t one = 1;
    EG_CHECK(write(stop_, &one, sizeof one) == sizeof one);
  }

 private:
  using State = ScrapeConnection::State;
  // Index of the first connection in polled_, after the stop event and the listener.
  static constexpr std::size_t kFirstConnection = 2;

  // Waits until a connection can continue or has ended, or a new one arrives. Returns false after
  // Stop.
  bool Wait() {
    const MonoTime now = clock_->Now();
    const bool accepts = now >= accept_at_;
    polled_.assign({{stop_, POLLIN, 0}, {accepts ? static_cast<int>(svr_sock_) : -1, POLLIN, 0}});
    MonoTime until = accepts ? MonoTime::max() : accept_at_;
    for (const auto& connection : open_) {
      polled_.push_back({connection->fd(), connection->events(), 0});
      until = std::min(until, connection->deadline());
    }
    int timeout_ms = -1;
    if (until != MonoTime::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
    }
    poll(polled_.data(), polled_.size(), timeout_ms);
    return (polled_.front().revents & POLLIN) == 0;
  }

  std::string AnswerTo(const ScrapeConnection& connection) {
    Stream stream(connection.request());
    bool closed = false;
    process_request(stream, true, closed,
                    [&](httplib::Request& request) { request.ssl = connection.session(); });
    return stream.TakeAnswer();
  }

  // Accepts a bounded number of connections in one pass, so that earlier connections are served in
  // between. Otherwise many new connections at once would displace each other before they are
  // served.
  void Accept() {
    for (int i = 0; i < kAcceptedAtOnceMax && clock_->Now() >= accept_at_; ++i) {
      const int fd = accept4(svr_sock_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        // If descriptors or memory are exhausted, the oldest connection is dropped. If no
        // connection is open, the listener tries again later.
        if (errno != EAGAIN && errno != EWOULDBLOCK && !DropOldest())
          accept_at_ = clock_->Now() + kAcceptAgain;
        return;
      }
      if (open_.size() >= connections_max_) DropOldest();
      open_.push_back(std::make_unique<ScrapeConnection>(fd, clock_, limits_, Tls().get()));
    }
  }

  std::shared_ptr<ssl_ctx_st> Tls() {
    MutexLock lock(&mu_);
    return tls_;
  }

  void DropOver() {
    std::erase_if(open_,
                  [](const auto& connection) { return connection->state() == State::kOver; });
  }
  // Drops the oldest connection, preferably one without a complete request. Returns false if no
  // connection is open.
  bool DropOldest() {
    if (open_.empty()) return false;
    const auto it = std::find_if(open_.begin(), open_.end(), [](const auto& connection) {
      return connection->state() != State::kAnswering;
    });
    open_.erase(it == open_.end() ? open_.begin() : it);
    return true;
  }
  void BoundUnsent() {
    std::uint64_t unsent = 0;
    for (auto it = open_.rbegin(); it != open_.rend(); ++it) {
      const std::uint64_t bytes = (*it)->unsent_bytes();
      if (bytes > 0 && unsent > 0 && unsent + bytes > kUnsentBytesMax) {
        it->reset();
      } else {
        unsent += bytes;
      }
    }
    std::erase(open_, nullptr);
  }

  const Clock* const clock_;
  const std::size_t connections_max_;
  const ConnectionLimits limits_;
  const int stop_;
  Mutex mu_;
  // The ownership is shared with the thread that accepts a connection. Each TLS session keeps its
  // context alive.
  std::shared_ptr<ssl_ctx_st> tls_ ABSL_GUARDED_BY(mu_);
  MonoTime accept_at_ = MonoTime::min();
  std::vector<std::unique_ptr<ScrapeConnection>> open_;  // the oldest first
  std::vector<pollfd> polled_;
};

// Serves the answer to `question` at `path`.
void ServeHealth(httplib::Server& server, const char* path, const health::Health* health,
                 health::Question question) {
  server.Get(path, [health, question](const httplib::Request&, httplib::Response& response) {
    const health::Health::Answer answer = health->Ask(question);
    response.status = answer.ok ? 200 : 503;
    response.set_content(answer.text, "text/plain; charset=utf-8");
  });
}

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

}  // namespace

struct HttpExporter::Impl {
  Impl(const Clock* clock, const ExporterOptions& options, std::shared_ptr<ssl_ctx_st> context)
      : tls(context != nullptr),
        server(clock, options.connections_max, options.limits, std::move(context)) {}
  const bool tls;
  ScrapeServer server;
  std::string address;
  std::unique_ptr<runtime::Thread> thread;
};

HttpExporter::HttpExporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpExporter>> HttpExporter::Start(ExporterOptions options,
                                                                  Registry* registry,
                                                                  const Clock* clock,
                                                                  const health::Health* health) {
  const std::string& listen = options.listen;
  const std::size_t colon = listen.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(listen.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address of the metrics listener is not host:port: listen=", listen));
  }
  std::string host(listen.substr(0, colon));
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("address of the metrics listener is not host:port: listen=", listen));
  if (!options.tls && !options.plain_off_loopback && !IsLoopback(host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("plain HTTP is served on loopback only; give TLS files, or allow plain HTTP "
                     "elsewhere with --insecure-metrics: listen=",
                     listen));
  }
  std::shared_ptr<ssl_ctx_st> context;
  if (options.tls) {
    EG_ASSIGN_OR_RETURN(context, MakeServerContext(*options.tls));
  }
  auto impl = std::make_unique<Impl>(clock, options, std::move(context));
  httplib::Server& server = impl->server;
  // httplib's default is SO_REUSEPORT, with which two daemons would share one port without an
  // error.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  server.set_payload_max_length(kBodyBytesMax);
  server.Get("/metrics", [registry](const httplib::Request& request, httplib::Response& response) {
    const std::string problem = request.ssl == nullptr ? "" : ClientCertificateProblem(request.ssl);
    if (!problem.empty()) {
      response.status = 403;
      response.set_content(
          absl::StrCat(
              "/metrics requires a client certificate signed by this cluster's authority: ",
              problem, "\n"),
          "text/plain");
      return;
    }
    response.set_content(registry->PrometheusText(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("ok\n", "text/plain");
  });
  if (health != nullptr) {
    ServeHealth(server, "/livez", health, health::Question::kLive);
    ServeHealth(server, "/readyz", health, health::Question::kReady);
  }
  const int bound = port == 0                         ? server.bind_to_any_port(host)
                    : server.bind_to_port(host, port) ? port
                                                      : -1;
  if (bound <= 0)
    return absl::UnavailableError(absl::StrCat("cannot bind metrics listener: listen=", listen));
  impl->address = absl::StrCat(bracketed ? absl::StrCat("[", host, "]") : host, ":", bound);
  impl->thread =
      std::make_unique<runtime::Thread>("metrics", [raw = impl.get()] { raw->server.Serve(); });
  return std::unique_ptr<HttpExporter>(new HttpExporter(std::move(impl)));
}

HttpExporter::~HttpExporter() {
  impl_->server.Stop();
  impl_->thread->Join();
}

std::string HttpExporter::address() const { return impl_->address; }
bool HttpExporter::tls() const { return impl_->tls; }

absl::Status HttpExporter::ReplaceCertificate(const TlsPems& pems) {
  EG_CHECK(impl_->tls);
  EG_ASSIGN_OR_RETURN(std::shared_ptr<ssl_ctx_st> context, MakeServerContext(pems));
  impl_->server.UseForNewConnections(std::move(context));
  return absl::OkStatus();
}

}  // namespace evergrad::metrics
