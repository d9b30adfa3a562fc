// Tests the exporter over a real socket on loopback with port 0. The test has its own HTTP client
// of thirty lines, because httplib's header takes long to compile.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/openssl_ptr.h"
#include "common/metrics/http_exporter.h"
#include "tests/support/manual_executor.h"

namespace evergrad::metrics {
namespace {

int Dial(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + colon + 1)));
  REQUIRE(::inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) == 1);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  const timeval patience{20, 0};  // much longer than any answer takes
  REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
  ::close(fd);
  return -1;
}

std::string ReadAll(int fd) {
  std::string text;
  char piece[4096];
  for (ssize_t n; (n = ::recv(fd, piece, sizeof(piece), 0)) > 0;)
    text.append(piece, static_cast<std::size_t>(n));
  return text;
}

std::string Get(const std::string& address, const std::string& path) {
  const int fd = Dial(address);
  std::string answer;
  if (fd >= 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    REQUIRE(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(request.size()));
    answer = ReadAll(fd);
    ::close(fd);
  }
  return answer;
}

absl::StatusOr<std::unique_ptr<HttpExporter>> Start(ExporterOptions options, Registry* registry,
                                                    const health::Health* health = nullptr) {
  static RealClock clock;
  return HttpExporter::Start(std::move(options), registry, &clock, health);
}
absl::StatusOr<std::unique_ptr<HttpExporter>> Start(const std::string& listen, Registry* registry,
                                                    bool plain_off_loopback = false) {
  ExporterOptions options;
  options.listen = listen;
  options.plain_off_loopback = plain_off_loopback;
  return Start(std::move(options), registry);
}

// Connections that send nothing, or only the first bytes of a request.
struct Strangers {
  Strangers(const std::string& address, int count, const std::string& beginning) {
    for (int i = 0; i < count; ++i) {
      fds.push_back(Dial(address));
      REQUIRE(fds.back() >= 0);
      if (i % 2 == 0) continue;
      REQUIRE(::send(fds.back(), beginning.data(), beginning.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(beginning.size()));
    }
  }
  ~Strangers() {
    for (const int fd : fds) ::close(fd);
  }
  std::vector<int> fds;
};

// Returns whether the peer has closed this connection. The peer has sent nothing on it.
bool Ended(int fd) {
  char byte;
  const ssize_t n = ::recv(fd, &byte, 1, 0);
  return n == 0 || (n < 0 && errno == ECONNRESET);
}

// Returns options with timeouts as long as the test's own. No connection is then closed because it
// is slow.
ExporterOptions Patient() {
  ExporterOptions options;
  options.listen = "127.0.0.1:0";
  options.limits.request_time_max = options.limits.answer_time_max = std::chrono::hours(1);
  return options;
}

std::string PemOf(const std::function<int(BIO*)>& write) {
  const std::unique_ptr<BIO, Freer<BIO_free>> bio(BIO_new(BIO_s_mem()));
  REQUIRE(write(bio.get()) == 1);
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<std::size_t>(bytes));
}

// Returns a self-signed certificate, which is its own authority.
TlsPems SelfSigned() {
  const std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>> key(EVP_EC_gen("P-256"));
  const std::unique_ptr<X509, Freer<X509_free>> certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
  REQUIRE(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0);
  TlsPems pems;
  pems.ca = pems.cert = PemOf([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); });
  pems.key = PemOf([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return pems;
}

// Like Get, over TLS. It accepts any certificate of the server, and stores it in `shown`. Shows the
// certificate of `own`.
std::string GetOverTls(const std::string& address, const std::string& path,
                       const TlsPems* own = nullptr, std::string* shown = nullptr) {
  const std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
  if (own != nullptr) {
    const std::unique_ptr<BIO, Freer<BIO_free>> cert(
        BIO_new_mem_buf(own->cert.data(), static_cast<int>(own->cert.size()))),
        key(BIO_new_mem_buf(own->key.data(), static_cast<int>(own->key.size())));
    const std::unique_ptr<X509, Freer<X509_free>> parsed(
        PEM_read_bio_X509(cert.get(), nullptr, nullptr, nullptr));
    const std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>> parsed_key(
        PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr));
    REQUIRE(SSL_CTX_use_certificate(context.get(), parsed.get()) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey(context.get(), parsed_key.get()) == 1);
  }
  const int fd = Dial(address);
  REQUIRE(fd >= 0);
  std::string answer;
  {
    const std::unique_ptr<SSL, Freer<SSL_free>> session(SSL_new(context.get()));
    SSL_set_fd(session.get(), fd);
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    if (SSL_connect(session.get()) == 1 &&
        SSL_write(session.get(), request.data(), static_cast<int>(request.size())) > 0) {
      char piece[4096];
      for (int n; (n = SSL_read(session.get(), piece, sizeof piece)) > 0;)
        answer.append(piece, static_cast<std::size_t>(n));
    }
    if (shown != nullptr)
      *shown = PemOf([&](BIO* bio) {
        return PEM_write_bio_X509(bio, SSL_get0_peer_certificate(session.get()));
      });
  }
  ::close(fd);
  return answer;
}

TEST_CASE("a scrape over HTTP returns the registry's text, and the port is free afterwards") {
  Registry registry;
  registry.GetCounter("evergrad_worker_steps_total", "Steps.").Add(7);
  std::string address;
  {
    auto exporter = Start("127.0.0.1:0", &registry);
    REQUIRE(exporter.ok());
    address = (*exporter)->address();
    CHECK(address != "127.0.0.1:0");
    const std::string metrics = Get(address, "/metrics");
    CHECK_THAT(metrics, Catch::StartsWith("HTTP/1.1 200"));
    CHECK_THAT(metrics, Catch::Contains("text/plain; version=0.0.4"));
    CHECK_THAT(metrics, Catch::EndsWith("evergrad_worker_steps_total 7\n"));
    CHECK_THAT(Get(address, "/healthz"), Catch::EndsWith("ok\n"));
    CHECK_THAT(Get(address, "/nothing"), Catch::StartsWith("HTTP/1.1 404"));
    // A port that is in use must be refused, so that two daemons never listen on one port.
    CHECK(Start(address, &registry).status().code() == absl::StatusCode::kUnavailable);
  }
  CHECK(Get(address, "/metrics").empty());
  CHECK(Start(address, &registry).ok());
}

TEST_CASE("/livez and /readyz give the reasons with 503, and /healthz stays ok") {
  Registry registry;
  ManualClock clock;  // only the test's thread moves it, between the requests
  health::Health health(&clock);
  ExporterOptions options;
  options.listen = "127.0.0.1:0";
  auto exporter = Start(options, &registry, &health);
  REQUIRE(exporter.ok());
  const std::string address = (*exporter)->address();
  for (const char* page : {"/livez", "/readyz"}) {
    CHECK_THAT(Get(address, page), Catch::StartsWith("HTTP/1.1 200"));
    CHECK_THAT(Get(address, page), Catch::EndsWith("\r\n\r\nok\n"));
  }
  const health::Condition session = health.readiness().Add("session", "connection refused");
  health.readiness().Add("fit", "the device has failed");
  CHECK_THAT(Get(address, "/readyz"), Catch::StartsWith("HTTP/1.1 503"));
  CHECK_THAT(Get(address, "/readyz"),
             Catch::EndsWith("\r\n\r\nnot ready: session: connection refused\n"
                             "not ready: fit: the device has failed\n"));
  CHECK_THAT(Get(address, "/livez"), Catch::EndsWith("\r\n\r\nok\n"));
  session.Meet();
  CHECK_THAT(Get(address, "/readyz"),
             Catch::EndsWith("\r\n\r\nnot ready: fit: the device has failed\n"));

  runtime::ManualExecutor control(&clock);
  health.liveness().Watch("control", &control);
  for (int i = 0; i < 3; ++i) {
    clock.Advance(std::chrono::seconds(10));
    (void)health.liveness().Stuck();
  }
  CHECK_THAT(Get(address, "/livez"), Catch::StartsWith("HTTP/1.1 503"));
  CHECK_THAT(Get(address, "/livez"),
             Catch::EndsWith("\r\n\r\nnot live: control: this thread has run no task for 30 s\n"));
  control.RunReady();
  CHECK_THAT(Get(address, "/livez"), Catch::EndsWith("\r\n\r\nok\n"));
  CHECK_THAT(Get(address, "/healthz"), Catch::EndsWith("\r\n\r\nok\n"));
}

TEST_CASE("over TLS the pages about health need no client certificate, and /metrics needs one") {
  Registry registry;
  RealClock clock;
  health::Health health(&clock);
  health.readiness().Add("journal", "not open");
  ExporterOptions options;
  options.listen = "127.0.0.1:0";
  options.tls = SelfSigned();
  auto exporter = Start(options, &registry, &health);
  REQUIRE(exporter.ok());
  const std::string address = (*exporter)->address();
  CHECK_THAT(GetOverTls(address, "/livez"), Catch::EndsWith("\r\n\r\nok\n"));
  CHECK_THAT(GetOverTls(address, "/readyz"),
             Catch::StartsWith("HTTP/1.1 503") &&
                 Catch::EndsWith("\r\n\r\nnot ready: journal: not open\n"));
  CHECK_THAT(GetOverTls(address, "/metrics"), Catch::StartsWith("HTTP/1.1 403"));
}

TEST_CASE("new connections use a replaced certificate and authority, and open ones live on") {
  Registry registry;
  ExporterOptions options = Patient();
  const TlsPems first = SelfSigned(), second = SelfSigned();
  options.tls = first;
  auto exporter = Start(std::move(options), &registry);
  REQUIRE(exporter.ok());
  const std::string address = (*exporter)->address();
  const auto metrics_for = [&](const TlsPems& client, const TlsPems& server) {
    std::string shown;
    const std::string answer = GetOverTls(address, "/metrics", &client, &shown);
    CHECK(shown == server.cert);
    return answer.substr(0, 12);
  };
  CHECK(metrics_for(first, first) == "HTTP/1.1 200");
  CHECK(metrics_for(second, first) == "HTTP/1.1 403");

  // This connection begins before the certificate is replaced, and asks afterwards.
  const std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
  const int fd = Dial(address);
  REQUIRE(fd >= 0);
  {
    const std::unique_ptr<SSL, Freer<SSL_free>> open(SSL_new(context.get()));
    SSL_set_fd(open.get(), fd);
    REQUIRE(SSL_connect(open.get()) == 1);

    // Both authorities are trusted in between.
    TlsPems between = first;
    between.ca += second.ca;
    REQUIRE((*exporter)->ReplaceCertificate(between).ok());
    CHECK(metrics_for(first, first) == "HTTP/1.1 200");
    CHECK(metrics_for(second, first) == "HTTP/1.1 200");
    REQUIRE((*exporter)->ReplaceCertificate(second).ok());
    CHECK(metrics_for(first, second) == "HTTP/1.1 403");
    CHECK(metrics_for(second, second) == "HTTP/1.1 200");

    const std::string request = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    REQUIRE(SSL_write(open.get(), request.data(), static_cast<int>(request.size())) > 0);
    char answer[12];
    REQUIRE(SSL_read(open.get(), answer, sizeof answer) == sizeof answer);
    CHECK(std::string(answer, sizeof answer) == "HTTP/1.1 200");
  }
  ::close(fd);

  // Files that OpenSSL refuses change nothing.
  TlsPems mixed = first;
  mixed.key = second.key;
  CHECK((*exporter)->ReplaceCertificate(mixed).code() == absl::StatusCode::kInvalidArgument);
  CHECK(metrics_for(second, second) == "HTTP/1.1 200");
}

TEST_CASE("an exporter without requests ends at once") {
  Registry registry;
  for (int i = 0; i < 5; ++i) CHECK(Start("127.0.0.1:0", &registry).ok());
}

TEST_CASE("metrics outside of loopback need permission, and malformed addresses are refused") {
  Registry registry;
  const auto open = Start("0.0.0.0:0", &registry);
  CHECK(open.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(open.status().message()), Catch::Contains("--insecure-metrics"));
  CHECK(Start("0.0.0.0:0", &registry, true).ok());
  for (const char* bad :
       {"", "localhost", ":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1"}) {
    CAPTURE(bad);
    CHECK(Start(bad, &registry).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("a client that sends its request slowly does not delay the end of the exporter") {
  Registry registry;
  auto exporter = Start(Patient(), &registry);
  REQUIRE(exporter.ok());
  std::vector<int> slow;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(Dial((*exporter)->address()));
    REQUIRE(slow.back() >= 0);
    CHECK(::send(slow.back(), "GET /metr", 9, MSG_NOSIGNAL) == 9);
  }
  exporter->reset();  // If it waited for the clients, it would take an hour.
  for (const int fd : slow) {
    CHECK_THAT(ReadAll(fd), !Catch::Contains("200"));
    ::close(fd);
  }
}

TEST_CASE("a request above its limit is not read to its end") {
  Registry registry;
  auto exporter = Start("127.0.0.1:0", &registry);
  REQUIRE(exporter.ok());
  const int fd = Dial((*exporter)->address());
  REQUIRE(fd >= 0);
  const std::string header = "GET /metrics HTTP/1.1\r\n";
  CHECK(::send(fd, header.data(), header.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(header.size()));
  // The header has many short lines. None of them is too long, but all together are.
  std::string more;
  for (int i = 0; i < 4000; ++i) more += "a: b\r\n";
  (void)::send(fd, more.data(), more.size(), MSG_NOSIGNAL);
  CHECK_THAT(ReadAll(fd), !Catch::Contains("200 OK"));
  ::close(fd);
  CHECK_THAT(Get((*exporter)->address(), "/healthz"), Catch::EndsWith("ok\n"));
}

// A bug: eight such connections occupied both threads and the queue. A process manager that probes
// /healthz would then have killed a healthy daemon.
TEST_CASE("silent and slow connections do not delay the answer to a probe") {
  Registry registry;
  auto exporter = Start(Patient(), &registry);
  REQUIRE(exporter.ok());
  const std::string address = (*exporter)->address();
  const Strangers strangers(address, 128, "GET /healthz HT");
  for (int i = 0; i < 5; ++i) {
    REQUIRE_THAT(Get(address, "/healthz"), Catch::EndsWith("ok\n"));
    // The slow connections send one more byte now and then.
    for (std::size_t k = 1; k < strangers.fds.size(); k += 2)
      REQUIRE(::send(strangers.fds[k], "x", 1, MSG_NOSIGNAL) == 1);
  }
  CHECK_THAT(Get(address, "/metrics"), Catch::StartsWith("HTTP/1.1 200"));
}

TEST_CASE(
    "connections without a TLS handshake, or with a slow one, do not delay a probe over HTTPS") {
  ::signal(SIGPIPE, SIG_IGN);  // as in the daemons, because OpenSSL writes without MSG_NOSIGNAL
  Registry registry;
  ExporterOptions options = Patient();
  options.tls = SelfSigned();
  auto exporter = Start(std::move(options), &registry);
  REQUIRE(exporter.ok());
  const std::string address = (*exporter)->address();
  const Strangers strangers(address, 128, "\x16\x03\x01");  // the beginning of a TLS handshake
  for (int i = 0; i < 5; ++i)
    REQUIRE_THAT(GetOverTls(address, "/healthz"), Catch::EndsWith("ok\n"));
  CHECK_THAT(GetOverTls(address, "/metrics"),
             Catch::StartsWith("HTTP/1.1 403") && Catch::Contains("no certificate was given"));
  CHECK_THAT(Get(address, "/healthz"),
             Catch::StartsWith("HTTP/1.1 400") && Catch::Contains("speaks HTTPS"));
}

TEST_CASE("clients that do not read their answers do not delay the answer to a probe") {
  Registry registry;
  // The answer is larger than the buffers of a socket.
  registry.GetCounter("evergrad_worker_steps_total", std::string(16u << 20, 'h')).Add(7);
  auto exporter = Start(Patient(), &registry);
  REQUIRE(exporter.ok());
  const std::string address = (*exporter)->address();
  Strangers readers(address, 4, "");
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const int fd : readers.fds)
    REQUIRE(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(request.size()));
  for (int i = 0; i < 5; ++i) REQUIRE_THAT(Get(address, "/healthz"), Catch::EndsWith("ok\n"));
}

TEST_CASE(
    "a silent connection is closed after its timeout, and the oldest one when the limit is "
    "reached") {
  Registry registry;
  ExporterOptions options = Patient();
  SECTION("after the timeout") {
    options.limits.request_time_max = std::chrono::milliseconds(50);
    auto exporter = Start(std::move(options), &registry);
    REQUIRE(exporter.ok());
    const Strangers strangers((*exporter)->address(), 4, "GET");
    for (const int fd : strangers.fds) CHECK(Ended(fd));
  }
  SECTION("above the limit") {
    options.connections_max = 8;
    auto exporter = Start(std::move(options), &registry);
    REQUIRE(exporter.ok());
    const std::string address = (*exporter)->address();
    const Strangers strangers(address, 9, "GET");
    CHECK(Ended(strangers.fds[0]));
    CHECK_THAT(Get(address, "/healthz"), Catch::EndsWith("ok\n"));
    CHECK(Ended(strangers.fds[1]));
    for (std::size_t i = 2; i < strangers.fds.size(); ++i) {
      CAPTURE(i);
      char byte;
      CHECK((::recv(strangers.fds[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN));
    }
  }
}

}  // namespace
}  // namespace evergrad::metrics
