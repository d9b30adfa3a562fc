// Only this file includes libcurl.
#include <curl/curl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/escape.h"
#include "common/base/openssl_ptr.h"
#include "common/base/status.h"
#include "common/http/client.h"
#include "common/http/header_rules.h"
#include "common/http/local_host.h"
#include "common/http/response_reader.h"

namespace evergrad::http {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kUrlBytesMax = 16u << 10;
// Limit of the handles that wait for a request. Each one keeps at most kConnectionsPerHandle
// connections open.
constexpr std::size_t kIdleHandlesMax = 16;
constexpr long kConnectionsPerHandle = 2;
// libcurl's buffers, each of which a handle has during a transfer.
constexpr long kReceiveBufferBytes = 128 << 10;
constexpr long kSendBufferBytes = 256 << 10;
// The system probes a silent connection after these times.
constexpr long kKeepaliveIdleSeconds = 30;
constexpr long kKeepaliveIntervalSeconds = 10;

struct CurlFreer {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
  void operator()(char* text) const { curl_free(text); }
};
using Handle = std::unique_ptr<CURL, CurlFreer>;
using HeaderList = std::unique_ptr<curl_slist, CurlFreer>;

// Sets an option. libcurl reads a value of another type than the option's from the wrong bytes, so
// the type is checked here. A setting must not fail: a transfer without it could be unsafe.
template <CURLoption option, class T>
void Set(CURL* handle, T value) {
  constexpr int kKind = static_cast<int>(option) / 10'000 * 10'000;
  static_assert(kKind == CURLOPTTYPE_LONG    ? std::is_same_v<T, long>
                : kKind == CURLOPTTYPE_OFF_T ? std::is_same_v<T, curl_off_t>
                                             : std::is_pointer_v<T>);
  const CURLcode code = curl_easy_setopt(handle, option, value);
  EG_CHECK_MSG(code == CURLE_OK, curl_easy_strerror(code));
}

struct Target {
  std::string shown;  // the URL without its query
  bool is_local = false;
};

// Parses a URL as libcurl does for the transfer. An error does not repeat the URL, which may have a
// password.
absl::StatusOr<Target> ParseUrl(const std::string& url) {
  if (url.size() > kUrlBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("the URL has more than ", kUrlBytesMax, " bytes"));
  if (!std::all_of(url.begin(), url.end(),
                   [](char c) { return c > ' ' && c < '\x7f' && c != '#'; }))
    return absl::InvalidArgumentError(
        "the URL has a space, a control character, a byte above 0x7f or a #, which must be "
        "percent-encoded");
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, "http://") && !absl::ConsumePrefix(&rest, "https://"))
    return absl::InvalidArgumentError("the URL is not http:// or https://");
  const absl::string_view authority = rest.substr(0, rest.find_first_of("/?"));
  if (authority.empty()) return absl::InvalidArgumentError("the URL has no host");
  if (absl::StrContains(authority, '@'))
    return absl::InvalidArgumentError("the URL has a user name or a password");
  const std::unique_ptr<CURLU, CurlFreer> parsed(curl_url());
  EG_CHECK_MSG(parsed != nullptr, "out of memory");
  const CURLUcode code = curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(),
                                      CURLU_PATH_AS_IS | CURLU_DISALLOW_USER);
  if (code != CURLUE_OK)
    return absl::InvalidArgumentError(
        absl::StrCat("the URL is malformed: ", curl_url_strerror(code)));
  char* host = nullptr;
  const CURLUcode found = curl_url_get(parsed.get(), CURLUPART_HOST, &host, 0);
  const std::unique_ptr<char, CurlFreer> owner(host);
  if (found != CURLUE_OK) return absl::InvalidArgumentError("the URL has no host");
  return Target{url.substr(0, url.find('?')), IsLocalHost(host)};
}

bool Has(const Request& request, absl::string_view name) {
  return std::any_of(request.headers.begin(), request.headers.end(), [&](const Header& header) {
    return absl::EqualsIgnoreCase(header.name, name);
  });
}

bool HasBody(const Request& request) {
  return request.method == "PUT" || request.method == "POST" || request.method == "PATCH";
}

// An error does not repeat a header, which may have a secret.
absl::Status CheckRequest(const Request& request) {
  if (!HasBody(request)) {
    if (request.method != "GET" && request.method != "HEAD" && request.method != "DELETE")
      return absl::InvalidArgumentError("unknown method");
    if (!request.body.empty())
      return absl::InvalidArgumentError("a request with this method has no body");
  }
  for (const Header& header : request.headers) {
    if (!IsHeaderName(header.name) || !IsHeaderValue(header.value))
      return absl::InvalidArgumentError("a header of the request is malformed");
  }
  for (const char* name : {"Content-Length", "Transfer-Encoding", "Expect", "Connection"}) {
    if (Has(request, name))
      return absl::InvalidArgumentError(
          absl::StrCat("only the client writes this header: header=", name));
  }
  return absl::OkStatus();
}

HeaderList HeadersOf(const Request& request) {
  HeaderList list;
  const auto append = [&](const std::string& line) {
    curl_slist* const longer = curl_slist_append(list.get(), line.c_str());
    EG_CHECK_MSG(longer != nullptr, "out of memory");
    (void)list.release();  // `longer` begins with the list.
    list.reset(longer);
  };
  for (const Header& header : request.headers) {
    const absl::string_view value = absl::StripAsciiWhitespace(header.value);
    // libcurl sends "Name:" for "Name;", and nothing for "Name:".
    append(value.empty() ? absl::StrCat(header.name, ";") : absl::StrCat(header.name, ": ", value));
  }
  append("Expect:");
  // Otherwise libcurl calls each body a form.
  if (HasBody(request) && !Has(request, "Content-Type")) append("Content-Type:");
  return list;
}

// One request in flight. libcurl calls the functions below on the thread of Send.
struct Transfer {
  Transfer(CURL* with, const Request& request, const ClientOptions& options)
      : handle(with),
        reader(request.method == "HEAD", request.response_bytes_max),
        interruption(options.interruption),
        stall_timeout(options.stall_timeout),
        receive_body(request.receive_body) {}

  CURL* const handle;
  ResponseReader reader;
  const Interruption* const interruption;  // may be null
  const milliseconds stall_timeout;
  const std::function<bool(absl::string_view)>& receive_body;  // may be empty
  char error[CURL_ERROR_SIZE] = "";
  bool interrupted = false;
  bool refused = false;  // by receive_body
  bool stalled = false;
  // The bytes that have moved so far, and the time from the beginning of the transfer until this
  // number last changed.
  curl_off_t moved_bytes = -1;
  curl_off_t moved_us = 0;
};

std::size_t OnHeader(char* line, std::size_t size, std::size_t count, void* user) {
  const absl::string_view text(line, size * count);
  return static_cast<Transfer*>(user)->reader.AddHeaderLine(text) ? text.size() : 0;
}

std::size_t OnBody(char* bytes, std::size_t size, std::size_t count, void* user) {
  const absl::string_view text(bytes, size * count);
  Transfer& transfer = *static_cast<Transfer*>(user);
  if (transfer.receive_body && transfer.reader.status() == 200) {
    transfer.refused = !transfer.receive_body(text);
    return transfer.refused ? 0 : text.size();
  }
  return transfer.reader.AddBody(text) ? text.size() : 0;
}

// Called whenever bytes move, and once a second otherwise. Another result than 0 ends the transfer.
int OnProgress(void* user, curl_off_t, curl_off_t down, curl_off_t, curl_off_t up) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  if (transfer.interruption != nullptr && transfer.interruption->interrupted()) {
    transfer.interrupted = true;
    return 1;
  }
  curl_off_t now_us = 0;
  curl_off_t connected_us = 0;
  curl_easy_getinfo(transfer.handle, CURLINFO_TOTAL_TIME_T, &now_us);
  curl_easy_getinfo(transfer.handle, CURLINFO_PRETRANSFER_TIME_T, &connected_us);
  if (connected_us == 0) return 0;  // connect_timeout limits the time until then.
  const curl_off_t bytes = down + up + static_cast<curl_off_t>(transfer.reader.header_bytes());
  if (bytes != transfer.moved_bytes) {
    transfer.moved_bytes = bytes;
    transfer.moved_us = now_us;
    return 0;
  }
  const std::chrono::microseconds pause(now_us - transfer.moved_us);
  transfer.stalled = pause >= transfer.stall_timeout;
  return transfer.stalled ? 1 : 0;
}

// The error of the last failed verification of a certificate on this thread, or X509_V_OK. libcurl
// verifies on the thread of Send. Its own code does not distinguish a wrong signature from a failed
// handshake. A wrong signature is the error after an authority was made again under its old name.
thread_local int verify_error = X509_V_OK;

int RememberVerifyError(int is_valid, X509_STORE_CTX* store) {
  if (is_valid == 0) verify_error = X509_STORE_CTX_get_error(store);
  return is_valid;
}

CURLcode OnTlsContext(CURL*, void* context, void*) {
  SSL_CTX* const tls = static_cast<SSL_CTX*>(context);
  SSL_CTX_set_verify(tls, SSL_CTX_get_verify_mode(tls), &RememberVerifyError);
  return CURLE_OK;
}

// Child processes must not inherit connections.
curl_socket_t OpenSocket(void*, curlsocktype, curl_sockaddr* address) {
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

void SetConnection(CURL* handle, const ClientOptions& options, const Target& target) {
  Set<CURLOPT_PROTOCOLS_STR>(handle, "http,https");
  Set<CURLOPT_HTTP_VERSION>(handle, long{CURL_HTTP_VERSION_1_1});
  Set<CURLOPT_FOLLOWLOCATION>(handle, 0L);
  Set<CURLOPT_DISALLOW_USERNAME_IN_URL>(handle, 1L);
  Set<CURLOPT_NETRC>(handle, long{CURL_NETRC_IGNORED});
  Set<CURLOPT_NOSIGNAL>(handle, 1L);
  // libcurl asks the name server on a thread of its own, and by default waits for that thread even
  // after a timeout. With this option the thread ends by itself.
  Set<CURLOPT_QUICK_EXIT>(handle, 1L);
  Set<CURLOPT_SSLVERSION>(handle, long{CURL_SSLVERSION_TLSv1_2});
  Set<CURLOPT_PROXY_SSLVERSION>(handle, long{CURL_SSLVERSION_TLSv1_2});
  Set<CURLOPT_SSL_VERIFYPEER>(handle, 1L);
  Set<CURLOPT_SSL_VERIFYHOST>(handle, 2L);
  Set<CURLOPT_SSL_CTX_FUNCTION>(handle, &OnTlsContext);
  if (!options.ca_file.empty()) {
    Set<CURLOPT_CAINFO>(handle, options.ca_file.c_str());
    // Debian's libcurl would otherwise trust the authorities of the system, too.
    Set<CURLOPT_CAPATH>(handle, static_cast<const char*>(nullptr));
  }
  // Without this option libcurl uses the proxy that the environment names.
  if (target.is_local) Set<CURLOPT_PROXY>(handle, "");
  Set<CURLOPT_SUPPRESS_CONNECT_HEADERS>(handle, 1L);
  Set<CURLOPT_OPENSOCKETFUNCTION>(handle, &OpenSocket);
  Set<CURLOPT_TCP_KEEPALIVE>(handle, 1L);
  Set<CURLOPT_TCP_KEEPIDLE>(handle, kKeepaliveIdleSeconds);
  Set<CURLOPT_TCP_KEEPINTVL>(handle, kKeepaliveIntervalSeconds);
  Set<CURLOPT_MAXCONNECTS>(handle, kConnectionsPerHandle);
  Set<CURLOPT_BUFFERSIZE>(handle, kReceiveBufferBytes);
  Set<CURLOPT_UPLOAD_BUFFERSIZE>(handle, kSendBufferBytes);
  // libcurl takes 0 for no limit.
  const auto limit = [](milliseconds time) {
    return static_cast<long>(std::clamp<std::int64_t>(time.count(), 1, INT32_MAX));
  };
  Set<CURLOPT_CONNECTTIMEOUT_MS>(handle, limit(options.connect_timeout));
  Set<CURLOPT_TIMEOUT_MS>(handle, limit(options.total_timeout));
}

void SetRequest(CURL* handle, const Request& request, curl_slist* headers) {
  Set<CURLOPT_URL>(handle, request.url.c_str());
  Set<CURLOPT_PATH_AS_IS>(handle, 1L);
  Set<CURLOPT_USERAGENT>(handle, "evergrad");
  Set<CURLOPT_HTTPHEADER>(handle, headers);
  // Checksums and ranges count the bytes as they are stored.
  Set<CURLOPT_HTTP_CONTENT_DECODING>(handle, 0L);
  if (request.method == "HEAD") {
    Set<CURLOPT_NOBODY>(handle, 1L);
    return;
  }
  if (HasBody(request)) {
    // libcurl reads these bytes again if it must send them again, on a new connection, because the
    // server has closed an idle one.
    Set<CURLOPT_POST>(handle, 1L);
    Set<CURLOPT_POSTFIELDS>(handle, request.body.empty() ? "" : request.body.data());
    Set<CURLOPT_POSTFIELDSIZE_LARGE>(handle, static_cast<curl_off_t>(request.body.size()));
  }
  Set<CURLOPT_CUSTOMREQUEST>(handle, request.method.c_str());
}

CURLcode Perform(Transfer* transfer) {
  CURL* const handle = transfer->handle;
  Set<CURLOPT_ERRORBUFFER>(handle, &transfer->error[0]);
  Set<CURLOPT_HEADERFUNCTION>(handle, &OnHeader);
  Set<CURLOPT_HEADERDATA>(handle, transfer);
  Set<CURLOPT_WRITEFUNCTION>(handle, &OnBody);
  Set<CURLOPT_WRITEDATA>(handle, transfer);
  Set<CURLOPT_NOPROGRESS>(handle, 0L);
  Set<CURLOPT_XFERINFOFUNCTION>(handle, &OnProgress);
  Set<CURLOPT_XFERINFODATA>(handle, transfer);
  verify_error = X509_V_OK;
  return curl_easy_perform(handle);
}

// Returns the error of a transfer; its message is the reason alone.
absl::Status Problem(CURLcode code, const Transfer& transfer) {
  if (!transfer.reader.refusal().ok()) return transfer.reader.refusal();
  if (transfer.interrupted) return absl::CancelledError("interrupted");
  if (transfer.refused) return absl::CancelledError("the receiver of the body ended the transfer");
  if (transfer.stalled)
    return absl::UnavailableError(
        absl::StrCat("no bytes moved for ", transfer.stall_timeout.count(), " ms"));
  if (code == CURLE_SSL_CONNECT_ERROR && verify_error != X509_V_OK)
    return absl::UnauthenticatedError(
        absl::StrCat("SSL certificate problem: ", X509_verify_cert_error_string(verify_error)));
  // libcurl's message about a malformed proxy repeats its URL, which may have a password.
  const absl::string_view detail = transfer.error;
  const std::string reason =
      Escaped(detail.empty() || absl::StrContains(detail, '@') ? curl_easy_strerror(code) : detail);
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR: return absl::UnauthenticatedError(reason);
    case CURLE_URL_MALFORMAT: return absl::InvalidArgumentError(reason);
    default: return absl::UnavailableError(reason);
  }
}

class CurlClient final : public Client {
 public:
  explicit CurlClient(ClientOptions options) : options_(std::move(options)) {}

  absl::StatusOr<Response> Send(const Request& request) override {
    const auto failed = [&](absl::string_view url, const absl::Status& problem) {
      return absl::Status(problem.code(),
                          absl::StrCat("HTTP request failed: method=", Quoted(request.method, 16),
                                       url, " reason=", problem.message()));
    };
    const auto target = ParseUrl(request.url);
    if (!target.ok()) return failed("", target.status());
    const std::string url = absl::StrCat(" url=", target->shown);
    if (const absl::Status status = CheckRequest(request); !status.ok()) return failed(url, status);
    if (options_.interruption != nullptr && options_.interruption->interrupted())
      return failed(url, absl::CancelledError("interrupted"));

    Handle handle = TakeHandle();
    const HeaderList headers = HeadersOf(request);
    Transfer transfer(handle.get(), request, options_);
    SetConnection(handle.get(), options_, *target);
    SetRequest(handle.get(), request, headers.get());
    const CURLcode code = Perform(&transfer);
    curl_easy_reset(handle.get());  // The connections stay open, and the pointers are forgotten.
    ReturnHandle(std::move(handle));
    if (code != CURLE_OK || !transfer.reader.refusal().ok())
      return failed(url, Problem(code, transfer));
    // libcurl accepts a response that ends within its headers.
    if (!transfer.reader.has_headers())
      return failed(url, absl::UnavailableError("the connection ended within the headers"));
    return transfer.reader.Take();
  }

 private:
  // The handle that was used last has the connection that is most likely open.
  Handle TakeHandle() {
    {
      MutexLock lock(&mu_);
      if (!idle_.empty()) {
        Handle handle = std::move(idle_.back());
        idle_.pop_back();
        return handle;
      }
    }
    Handle handle(curl_easy_init());
    EG_CHECK_MSG(handle != nullptr, "out of memory");
    return handle;
  }
  // A handle above the limit is destroyed after the lock is released, because that closes
  // connections.
  void ReturnHandle(Handle handle) {
    MutexLock lock(&mu_);
    if (idle_.size() < kIdleHandlesMax) idle_.push_back(std::move(handle));
  }

  const ClientOptions options_;
  Mutex mu_;
  std::vector<Handle> idle_ ABSL_GUARDED_BY(mu_);
};

// Returns InvalidArgument unless libcurl will be able to load the file.
absl::Status CheckAuthorities(const std::string& path) {
  const auto refused = [&](absl::string_view reason) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read certificates of authorities: file=", path, " reason=", reason));
  };
  if (!std::ifstream(path).is_open()) return refused(std::generic_category().message(errno));
  ERR_clear_error();
  const std::unique_ptr<X509_STORE, Freer<X509_STORE_free>> store(X509_STORE_new());
  EG_CHECK_MSG(store != nullptr, "out of memory");
  if (X509_STORE_load_file(store.get(), path.c_str()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return refused("the file has no PEM certificate");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> MakeCurlClient(ClientOptions options) {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  EG_CHECK_MSG(initialized == CURLE_OK, curl_easy_strerror(initialized));
  if (!options.ca_file.empty()) EG_RETURN_IF_ERROR(CheckAuthorities(options.ca_file));
  return std::unique_ptr<Client>(std::make_unique<CurlClient>(std::move(options)));
}

}  // namespace evergrad::http
