// Serves a registry and the health of the process, over HTTP or HTTPS, on its own thread.
//
//   GET /metrics   Prometheus text
//   GET /healthz   "ok", as long as the exporter runs
//   GET /livez, /readyz
//                  "ok", or status 503 and one line for each reason (common/health)
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/health/health.h"
#include "common/metrics/metrics.h"
#include "common/metrics/scrape_connection.h"

namespace evergrad::metrics {

// The contents of the daemon's TLS files.
struct TlsPems {
  std::string ca, cert, key;
};

struct ExporterOptions {
  std::string listen;  // host:port or [v6]:port; port 0 selects a free port
  // If set, the exporter serves HTTPS with this certificate. The three pages about health answer
  // every client. /metrics requires a client certificate signed by `ca`, and otherwise answers 403
  // with the reason.
  std::optional<TlsPems> tls;
  // Serves plain HTTP at an address that other machines can reach. Such an address is refused
  // (promise P10) if neither this flag nor `tls` is set.
  bool plain_off_loopback = false;
  ConnectionLimits limits;
  // The limit of open connections. If a new connection exceeds the limit, the oldest connection is
  // closed, preferably one without a complete request.
  std::size_t connections_max = 256;
};

class HttpExporter {
 public:
  // All pointers outlive the exporter, and so do objects that the registry's callbacks read.
  // Without `health` there are no pages /livez and /readyz. Returns InvalidArgument for an address
  // that is not host:port, for files that OpenSSL rejects, and for an address other than loopback
  // if neither `tls` nor plain_off_loopback is set. Returns Unavailable if the address cannot be
  // bound.
  static absl::StatusOr<std::unique_ptr<HttpExporter>> Start(
      ExporterOptions options, Registry* registry, const Clock* clock,
      const health::Health* health = nullptr);
  // Closes open connections, so that a slow client does not delay the daemon's end.
  ~HttpExporter();
  std::string address() const;  // the bound host:port
  bool tls() const;
  // Makes connections that are accepted from now on use these files. Connections that are open keep
  // theirs. Returns InvalidArgument for files that OpenSSL rejects, and then changes nothing. May
  // be called only if tls(). Thread-safe.
  absl::Status ReplaceCertificate(const TlsPems& pems);

 private:
  struct Impl;
  explicit HttpExporter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::metrics
