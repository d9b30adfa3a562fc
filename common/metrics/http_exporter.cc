// The only file that includes cpp-httplib.
#include <httplib.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/metrics.h"
#include "common/runtime/bounded_queue.h"
#include "common/runtime/executor.h"

namespace evergrad::metrics {
namespace {

constexpr std::size_t kConnectionsWaitingMax = 32;
constexpr int kServingThreads = 2;

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

bool IsLoopback(absl::string_view host) { return host == "localhost" || host == "::1" || absl::StartsWith(host, "127."); }

}  // namespace

struct HttpExporter::Impl {
  httplib::Server server;
  std::string address;
  runtime::Event listening;
  std::unique_ptr<runtime::Thread> thread;
};

HttpExporter::HttpExporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpExporter>> HttpExporter::Start(absl::string_view listen, Registry* registry, bool allow_off_loopback) {
  const std::size_t colon = listen.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("metrics listener wants host:port: listen=", listen));
  }
  std::string host(listen.substr(0, colon));
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return absl::InvalidArgumentError(absl::StrCat("metrics listener wants host:port: listen=", listen));
  if (!allow_off_loopback && !IsLoopback(host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics are served on loopback only, for they need no credentials; open them with --insecure-listen: listen=", listen));
  }
  auto impl = std::make_unique<Impl>();
  httplib::Server& server = impl->server;
  // Not httplib's default, SO_REUSEPORT: with it two daemons share one port in silence.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  server.set_keep_alive_max_count(1);
  server.set_read_timeout(2);
  server.set_write_timeout(5);
  server.set_payload_max_length(1024);
  server.Get("/metrics", [registry](const httplib::Request&, httplib::Response& response) {
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
  impl_->server.stop();
  impl_->thread->Join();
}

std::string HttpExporter::address() const { return impl_->address; }

}  // namespace evergrad::metrics
