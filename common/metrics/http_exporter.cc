// The only file that includes cpp-httplib.
#include "common/metrics/http_exporter.h"

#include <httplib.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/metrics/scrape_tls.h"
#include "common/runtime/bounded_queue.h"
#include "common/runtime/executor.h"

namespace evergrad::metrics {
namespace {

constexpr std::size_t kConnectionsWaitingMax = 32;
constexpr int kServingThreads = 2;
constexpr std::size_t kBodyBytesMax = 1024;  // No page takes a body.

// httplib would start a pool of its own, as large as the machine; ours has two named threads and a bounded queue. When it
// is full the accepting thread waits, and the kernel's backlog bounds the rest.
class NamedThreads final : public httplib::TaskQueue {
 public:
  NamedThreads() : queue_(kConnectionsWaitingMax) {
    for (int i = 0; i < kServingThreads; ++i) {
      threads_.emplace_back(absl::StrCat("metrics-", i), [this] {
        while (auto task = queue_.Pop()) (*task)();
      });
    }
  }
  void enqueue(std::function<void()> task) override { queue_.Push(std::move(task)); }
  void shutdown() override {
    queue_.Close();
    for (auto& thread : threads_) thread.Join();
  }

 private:
  runtime::BoundedQueue<std::function<void()>> queue_;
  std::vector<runtime::Thread> threads_;
};

// httplib's view of a connection. It reads a request line without a bound of its own; the connection has one.
class Stream final : public httplib::Stream {
 public:
  explicit Stream(ScrapeConnection* connection) : connection_(connection) {}
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t bytes_max) override { return connection_->Read(to, bytes_max); }
  ssize_t write(const char* from, size_t bytes) override { return connection_->Write(from, bytes); }
  // Nothing asks for them.
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  socket_t socket() const override { return connection_->fd(); }

 private:
  ScrapeConnection* const connection_;
};

// httplib's server over connections of ours, one request each: its own wait with select(), which knows no file descriptor above
// 1023, and bound each wait of a connection but not their sum.
class ScrapeServer final : public httplib::Server {
 public:
  ScrapeServer(const Clock* clock, ConnectionLimits limits, std::shared_ptr<ssl_ctx_st> tls) : clock_(clock), limits_(limits), tls_(std::move(tls)) {}

  // Ends the connections that are open and those that still wait for a thread.
  void Cut() {
    MutexLock lock(&mu_);
    cut_ = true;
    for (ScrapeConnection* connection : open_) connection->Abort();
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    ScrapeConnection connection(socket, clock_, limits_, tls_.get());
    {
      MutexLock lock(&mu_);
      if (cut_) return false;
      open_.insert(&connection);
    }
    bool served = false;
    if (connection.Handshake()) {
      Stream stream(&connection);
      bool closed = false;
      served = process_request(stream, true, closed, [&](httplib::Request& request) { request.ssl = connection.session(); });
    }
    MutexLock lock(&mu_);
    open_.erase(&connection);
    return served;
  }

  const Clock* const clock_;
  const ConnectionLimits limits_;
  const std::shared_ptr<ssl_ctx_st> tls_;
  Mutex mu_;
  bool cut_ ABSL_GUARDED_BY(mu_) = false;
  std::set<ScrapeConnection*> open_ ABSL_GUARDED_BY(mu_);
};

bool IsLoopback(absl::string_view host) { return host == "localhost" || host == "::1" || absl::StartsWith(host, "127."); }

}  // namespace

struct HttpExporter::Impl {
  Impl(const Clock* clock, ConnectionLimits limits, std::shared_ptr<ssl_ctx_st> context)
      : tls(context != nullptr), server(clock, limits, std::move(context)) {}
  const bool tls;
  ScrapeServer server;
  std::string address;
  runtime::Event listening;
  std::unique_ptr<runtime::Thread> thread;
};

HttpExporter::HttpExporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpExporter>> HttpExporter::Start(ExporterOptions options, Registry* registry, const Clock* clock) {
  const std::string& listen = options.listen;
  const std::size_t colon = listen.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("metrics listener wants host:port: listen=", listen));
  }
  std::string host(listen.substr(0, colon));
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return absl::InvalidArgumentError(absl::StrCat("metrics listener wants host:port: listen=", listen));
  if (!options.tls && !options.plain_off_loopback && !IsLoopback(host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("plain HTTP is served on loopback only; give TLS, or allow it with --insecure-metrics: listen=", listen));
  }
  std::shared_ptr<ssl_ctx_st> context;
  if (options.tls) {
    EG_ASSIGN_OR_RETURN(context, MakeServerContext(*options.tls));
  }
  auto impl = std::make_unique<Impl>(clock, options.limits, std::move(context));
  httplib::Server& server = impl->server;
  // Not httplib's default, SO_REUSEPORT: with it two daemons share one port in silence.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  server.set_payload_max_length(kBodyBytesMax);
  server.Get("/metrics", [registry](const httplib::Request& request, httplib::Response& response) {
    const std::string problem = request.ssl == nullptr ? "" : ClientCertificateProblem(request.ssl);
    if (!problem.empty()) {
      response.status = 403;
      response.set_content(absl::StrCat("/metrics wants a client certificate that this cluster's authority signed: ", problem, "\n"), "text/plain");
      return;
    }
    response.set_content(registry->PrometheusText(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/healthz", [](const httplib::Request&, httplib::Response& response) { response.set_content("ok\n", "text/plain"); });
  server.new_task_queue = [raw = impl.get()] {
    raw->listening.Set();  // From here on stop() is heard.
    return new NamedThreads;
  };
  const int bound = port == 0 ? server.bind_to_any_port(host) : server.bind_to_port(host, port) ? port : -1;
  if (bound <= 0) return absl::UnavailableError(absl::StrCat("cannot bind metrics listener: listen=", listen));
  impl->address = absl::StrCat(bracketed ? absl::StrCat("[", host, "]") : host, ":", bound);
  impl->thread = std::make_unique<runtime::Thread>("metrics-accept", [raw = impl.get()] { raw->server.listen_after_bind(); });
  impl->listening.Wait();
  return std::unique_ptr<HttpExporter>(new HttpExporter(std::move(impl)));
}

HttpExporter::~HttpExporter() {
  impl_->server.Cut();
  impl_->server.stop();
  impl_->thread->Join();
}

std::string HttpExporter::address() const { return impl_->address; }
bool HttpExporter::tls() const { return impl_->tls; }

}  // namespace evergrad::metrics
