#include "common/transport/certificate_task.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/openssl_ptr.h"

namespace evergrad::transport {
namespace {

constexpr std::size_t kIdentityBytesMax = 64;

absl::string_view IdentityOf(absl::string_view task) {
  const std::size_t slash = task.find('/');
  return slash == absl::string_view::npos ? absl::string_view() : task.substr(slash + 1);
}

bool IsAddress(const std::string& host) {
  unsigned char buffer[16];
  return inet_pton(AF_INET, host.c_str(), buffer) == 1 ||
         inet_pton(AF_INET6, host.c_str(), buffer) == 1;
}

// Returns the hosts for which a certificate is valid, as text.
std::string HostsOf(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, Freer<GENERAL_NAMES_free>> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> hosts;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      hosts.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                         static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      char text[INET6_ADDRSTRLEN] = {};
      const int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
      if (inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof text) != nullptr)
        hosts.emplace_back(text);
    }
  }
  return hosts.empty() ? "no host" : absl::StrJoin(hosts, ", ");
}

}  // namespace

absl::string_view RoleOfTask(absl::string_view task) { return task.substr(0, task.find('/')); }

absl::Status CheckTaskName(absl::string_view name) {
  const absl::string_view role = RoleOfTask(name), identity = IdentityOf(name);
  const bool known = std::find(std::begin(kCertificateRoles), std::end(kCertificateRoles), role) !=
                     std::end(kCertificateRoles);
  const bool spelled =
      name.size() == role.size() || (!identity.empty() && identity.size() <= kIdentityBytesMax &&
                                     std::all_of(identity.begin(), identity.end(), [](char c) {
                                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                                              c == '-' || c == '.' || c == '_';
                                     }));
  if (known && spelled && (role != "coordinator" || identity.empty())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected coordinator, ps_server/N, worker/NAME, viewer/NAME, user/NAME, "
                   "operator/NAME or admin/NAME (or the role alone), got `",
                   name, "`"));
}

absl::StatusOr<std::string> TaskOfUris(const std::vector<std::string>& uris) {
  std::string task;
  int found = 0;
  for (const std::string& uri : uris) {
    if (!absl::StartsWith(uri, kCertificateScheme)) continue;
    ++found;
    task = uri.substr(sizeof kCertificateScheme - 1);
  }
  if (found == 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("certificate names no task: expected a URI name ", kCertificateScheme,
                     "ROLE/IDENTITY, which `psctl cert issue` writes"));
  }
  if (found > 1)
    return absl::PermissionDeniedError("certificate names several tasks, expected one");
  if (const absl::Status status = CheckTaskName(task); !status.ok())
    return absl::PermissionDeniedError(
        absl::StrCat("certificate names an unknown task: ", status.message().substr(0, 300)));
  return task;
}

absl::Status CheckTask(absl::string_view have, absl::string_view want) {
  if (want.empty()) return absl::OkStatus();
  const absl::string_view identity = IdentityOf(have), wanted = IdentityOf(want);
  if (RoleOfTask(have) == RoleOfTask(want) &&
      (identity.empty() || wanted.empty() || identity == wanted))
    return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("certificate is for ", have, ", expected ", want));
}

absl::Status CheckHost(const std::string& pem, const std::string& host_port) {
  std::string host = host_port.substr(0, host_port.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  const std::unique_ptr<BIO, Freer<BIO_free>> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const std::unique_ptr<X509, Freer<X509_free>> certificate(
      PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) return absl::PermissionDeniedError("certificate cannot be read");
  const int matches = IsAddress(host)
                          ? X509_check_ip_asc(certificate.get(), host.c_str(), 0)
                          : X509_check_host(certificate.get(), host.data(), host.size(),
                                            X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, nullptr);
  ERR_clear_error();
  if (matches == 1) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("certificate is for ", HostsOf(certificate.get()),
                                                  ", but the dialed host is ", host,
                                                  " (psctl cert issue --host ", host, ")"));
}

}  // namespace evergrad::transport
