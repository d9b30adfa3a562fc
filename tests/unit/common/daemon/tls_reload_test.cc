// Tests that a daemon uses renewed TLS files, logs and counts this, and shows the expiry.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "common/base/openssl_ptr.h"
#include "common/daemon/daemon.h"
#include "common/transport/tls/tls_watch.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace evergrad::daemon {
namespace {

using namespace evergrad::test;

// Returns the certificate that the TLS listener at the port of `address` shows, as PEM.
std::string CertificateAt(const std::string& address) {
  const std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + address.rfind(':') + 1)));
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  std::string pem;
  {
    const std::unique_ptr<SSL, Freer<SSL_free>> session(SSL_new(context.get()));
    SSL_set_fd(session.get(), fd);
    REQUIRE(SSL_connect(session.get()) == 1);
    const Certificate shown(SSL_get1_peer_certificate(session.get()));
    REQUIRE(shown != nullptr);
    pem = PemOf(shown.get());
  }
  ::close(fd);
  return pem;
}

// Starts a coordinator's process with these files, and with metrics over HTTPS.
std::optional<int> Start(Daemon& daemon, const transport::TlsFiles& files) {
  const std::vector<const char*> arguments{
      "evergrad-coordinator", "--tls-ca",         files.ca.c_str(),
      "--tls-cert",           files.cert.c_str(), "--tls-key",
      files.key.c_str(),      "--metrics-listen", "0.0.0.0:0",
      "--log-file",           "/dev/null"};
  return daemon.Start(static_cast<int>(arguments.size()), arguments.data());
}

// Returns the value of evergrad_coordinator_tls_METRIC, or -1 if it has no sample.
double Value(Daemon& daemon, const std::string& metric) {
  const std::string text = daemon.registry().PrometheusText();
  const std::string name = "\nevergrad_coordinator_tls_" + metric + " ";
  const std::size_t at = text.find(name);
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + name.size());
}

std::string LogOf(Daemon& daemon) {
  std::string text;
  for (const log::Line& line : daemon.logger().Read(0, 0, "", 1000))
    text += std::string(log::LevelName(line.level)) + ": " + line.text + "\n";
  return text;
}

TEST_CASE("a daemon uses renewed TLS files, also for its metrics, and logs and counts this") {
  TempFolder folder;
  const Authority ca;
  const transport::TlsFiles files = Issue(folder, "coordinator", ca, ca);
  Daemon daemon(Role::kCoordinator, "test");
  REQUIRE(Start(daemon, files) == std::nullopt);
  const auto watch = daemon.common().tls.watch;
  REQUIRE(watch != nullptr);
  // The listeners and channels of the role share the watch.
  CHECK(daemon.server_options().tls.watch == watch);
  CHECK(daemon.channel_options().tls.watch == watch);
  const auto expiry = [&] { return static_cast<double>(watch->stats().expiry_seconds); };
  CHECK(Value(daemon, "reloads_total") == 0);
  CHECK(Value(daemon, "reload_failures_total") == 0);
  CHECK(Value(daemon, "certificate_expiry_timestamp_seconds") == expiry());
  CHECK(CertificateAt(daemon.metrics_address()) == watch->pems()->cert);

  const double first_expiry = expiry();
  const transport::TlsPems next = IssuePems("coordinator", ca, {&ca}, {.end_seconds = 86400});
  ReplaceFile(files.cert, next.cert);
  watch->Check();
  CHECK(Value(daemon, "reload_failures_total") > 0);
  CHECK_THAT(LogOf(daemon),
             Catch::Contains("warning: cannot reload the certificates, the old ones stay in use: "
                             "tls key does not belong to the certificate: key=" +
                             files.key));
  CHECK(CertificateAt(daemon.metrics_address()) != next.cert);

  ReplaceFile(files.key, next.key);
  watch->Check();
  CHECK(Value(daemon, "reloads_total") == 1);
  CHECK_THAT(LogOf(daemon),
             Catch::Contains("info: reloaded the certificates, new connections use them: cert=" +
                             files.cert + " expires=20"));
  CHECK(CertificateAt(daemon.metrics_address()) == next.cert);
  CHECK(expiry() != first_expiry);
  CHECK(Value(daemon, "certificate_expiry_timestamp_seconds") == expiry());
}

TEST_CASE("a daemon does not start with TLS files that cannot be used") {
  TempFolder folder;
  const Authority ca;
  Daemon daemon(Role::kCoordinator, "test");
  CHECK(Start(daemon, Issue(folder, "worker-0", ca, ca)) == std::optional<int>(kExitUsage));
  CHECK_THAT(LogOf(daemon), Catch::Contains("certificate is for worker/0, expected coordinator"));
}

TEST_CASE("a daemon without TLS has the counters of TLS files, but no expiry") {
  Daemon daemon(Role::kCoordinator, "test");
  const char* const arguments[] = {"evergrad-coordinator", "--log-file", "/dev/null"};
  REQUIRE(daemon.Start(3, arguments) == std::nullopt);
  CHECK(Value(daemon, "reloads_total") == 0);
  CHECK(Value(daemon, "certificate_expiry_timestamp_seconds") == -1);
  CHECK_THAT(daemon.registry().PrometheusText(),
             Catch::Contains("TYPE evergrad_coordinator_tls_certificate_expiry_timestamp_seconds "
                             "gauge"));
}

}  // namespace
}  // namespace evergrad::daemon
