// Serves a registry: GET /metrics (Prometheus text) and GET /healthz ("ok"), over HTTP or HTTPS, on
// a thread of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "common/metrics/scrape_connection.h"

namespace evergrad::metrics {

// The texts of the daemon's own files.
struct TlsPems {
  std::string ca, cert, key;
};

struct ExporterOptions {
  std::string listen;  // host:port or [v6]:port; port 0 is any free one
  // HTTPS with this certificate. /healthz answers every client; /metrics wants a client certificate
  // that `ca` signed (403 with the reason).
  std::optional<TlsPems> tls;
  // Plain HTTP at an address that other machines reach. Without it and without `tls` such an
  // address is refused (P10).
  bool plain_off_loopback = false;
  ConnectionLimits limits;
  std::size_t connections_max =
      256;  // One more cuts the oldest one that has not said what it wants.
};

class HttpExporter {
 public:
  // `registry` outlives the exporter and what its callbacks read; `clock` outlives it.
  // InvalidArgument: not host:port, an address off loopback that nothing opens, or files that
  // OpenSSL does not take. Unavailable: it cannot bind.
  static absl::StatusOr<std::unique_ptr<HttpExporter>> Start(ExporterOptions options,
                                                             Registry* registry,
                                                             const Clock* clock);
  // Connections under way are cut: a slow client does not delay the daemon's end.
  ~HttpExporter();
  std::string address() const;  // host:port as bound
  bool tls() const;

 private:
  struct Impl;
  explicit HttpExporter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::metrics
