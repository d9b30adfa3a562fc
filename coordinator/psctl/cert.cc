// The verbs `psctl cert init` and `psctl cert issue`. OpenSSL's objects are in unique_ptrs. Each
// failure names the step and OpenSSL's reason.
#include "coordinator/psctl/cert.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/fs/file.h"
#include "common/transport/certificate_task.h"
#include "coordinator/psctl/context.h"

namespace evergrad::psctl {
namespace {

template <class T, void (*Free)(T*)>
struct Deleter {
  void operator()(T* object) const { Free(object); }
};
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509, X509_free>>;
using Number = std::unique_ptr<BIGNUM, Deleter<BIGNUM, BN_free>>;
using Bio = std::unique_ptr<BIO, Deleter<BIO, BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION, X509_EXTENSION_free>>;

absl::Status OpenSslError(absl::string_view step) {
  char text[256] = "unknown";
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  return absl::InternalError(absl::StrCat(step, ": ", text));
}

// Writes a new file. An existing file is never overwritten.
absl::Status WriteNew(const std::string& path, const std::string& contents, mode_t mode) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0 && errno == EEXIST)
    return UserError(
        absl::AlreadyExistsError(absl::StrCat("refusing to overwrite an existing file: ", path)));
  if (fd < 0)
    return UserError(absl::PermissionDeniedError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno))));
  std::size_t done = 0;
  while (done < contents.size()) {
    const ssize_t n = ::write(fd, contents.data() + done, contents.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = errno;
      ::close(fd);
      return absl::UnavailableError(
          absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
    }
    done += static_cast<std::size_t>(n);
  }
  ::fsync(fd);
  ::close(fd);
  return absl::OkStatus();
}

absl::Status MustBeAbsent(const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    if (fs::Exists(path))
      return UserError(
          absl::AlreadyExistsError(absl::StrCat("refusing to overwrite an existing file: ", path)));
  return absl::OkStatus();
}

bool AllExist(const std::vector<std::string>& paths) {
  return std::all_of(paths.begin(), paths.end(),
                     [](const std::string& path) { return fs::Exists(path); });
}

constexpr char kIfAbsentHelp[] = "if all files exist, leave them as they are and succeed";

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size <= 0 ? "" : std::string(data, static_cast<std::size_t>(size));
}

absl::StatusOr<std::string> PemOf(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_X509(bio.get(), certificate) != 1)
    return OpenSslError("cannot write the certificate");
  return Text(bio.get());
}

absl::StatusOr<std::string> PemOf(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return OpenSslError("cannot write the key");
  return Text(bio.get());
}

bool Add(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// Returns a certificate without extensions and signature.
absl::StatusOr<Certificate> Blank(EVP_PKEY* key, const std::string& name, std::uint32_t days) {
  Certificate certificate(X509_new());
  const Number serial(BN_new());
  if (!certificate || !serial) return OpenSslError("cannot make a certificate");
  // 127 random bits give a positive number, and two certificates never get the same number.
  if (BN_rand(serial.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get())) == nullptr)
    return OpenSslError("cannot make a serial number");
  X509_set_version(certificate.get(), 2);
  // The validity begins five minutes ago, because the clocks of two machines may differ.
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -300);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), static_cast<long>(days) * 86400);
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  if (X509_set_pubkey(certificate.get(), key) != 1 ||
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(name.data()),
                                 static_cast<int>(name.size()), -1, 0) != 1)
    return OpenSslError("cannot name the certificate");
  return certificate;
}

bool IsAddress(const std::string& host) {
  unsigned char buffer[16];
  return ::inet_pton(AF_INET, host.c_str(), buffer) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), buffer) == 1;
}

// Returns whether `host` is a valid host name, because a name must not be able to add entries to
// the text form of the certificate's extensions.
bool IsHostName(const std::string& host) {
  return !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' ||
           c == '*';
  });
}
bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ||
                  c == '_';
         });
}

absl::StatusOr<Key> NewKey() {
  Key key(EVP_EC_gen("P-256"));
  if (!key) return OpenSslError("cannot make a key");
  return key;
}

int Init(Context& context, const std::vector<std::string>& args) {
  std::string folder = "certs", name = "evergrad authority";
  std::uint32_t days = 3650;
  bool if_absent = false;
  daemon::OptionTable table(
      "psctl cert init",
      "makes a certificate authority: ca.pem, and its private key ca.key, which must be kept safe",
      daemon::OptionTable::Kind::kCommand);
  table.Add("folder", &folder, "folder for the files");
  table.Add("days", &days, "days until the certificate expires", {1, 36500});
  table.Add("if_absent", &if_absent, kIfAbsentHelp);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  const std::string path = AbsolutePath(context, folder);
  if (if_absent && AllExist({path + "/ca.pem", path + "/ca.key"})) {
    context.out << "kept: " << ShowPath(context, path) << "/ca.pem, ca.key\n";
    return kSucceeded;
  }
  if (const absl::Status status = InitAuthority(path, name, days); !status.ok())
    return Report(context, status);
  context.out << "written: " << ShowPath(context, path)
              << "/ca.pem, ca.key (keep the key off the machines that train)\n";
  return kSucceeded;
}

int Issue(Context& context, const std::vector<std::string>& args) {
  CertRequest request;
  request.folder = "certs";
  bool if_absent = false;
  daemon::OptionTable table(
      "psctl cert issue",
      "makes one task's (or a person's) certificate and key, signed by the folder's authority",
      daemon::OptionTable::Kind::kCommand);
  table.AddArgument(
      "NAME", &request.name,
      "name of the certificate and of its files: worker-0 -> worker-0.pem, worker-0.key");
  table.Add(
      "task", &request.task,
      "task or person that the certificate identifies: coordinator, ps_server/N or worker/NAME, or "
      "a role alone for any task of that role; viewer/NAME (may only look), user/NAME (may submit "
      "jobs, and change its own), operator/NAME (for programs that submit jobs) or admin/NAME (may "
      "change everything). If left out, it follows from NAME: coordinator, ps-server-N and "
      "worker-NAME are tasks, and any other name is a user");
  table.Add("host", &request.hosts,
            "host name or address under which others connect to the task (the coordinator's "
            "clients check it); if left out, localhost, 127.0.0.1 and ::1");
  table.Add("folder", &request.folder, "folder of ca.pem and ca.key");
  table.Add("days", &request.days, "days until the certificate expires", {1, 36500});
  table.Add("to", &request.to,
            "folder for the files that the task needs: ca.crt, tls.crt and tls.key, the names that "
            "Kubernetes uses; if left out, NAME.pem and NAME.key in the folder of the authority");
  table.Add("if_absent", &if_absent, kIfAbsentHelp);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  request.folder = AbsolutePath(context, request.folder);
  if (request.task.empty()) request.task = TaskOfName(request.name);
  if (request.hosts.empty()) request.hosts = {"localhost", "127.0.0.1", "::1"};
  if (!request.to.empty()) request.to = AbsolutePath(context, request.to);
  const IssuedFiles files = FilesOf(request);
  const std::string ca = ShowPath(context, files.authority),
                    certificate = ShowPath(context, files.certificate),
                    key = ShowPath(context, files.key);
  if (if_absent && AllExist({files.authority, files.certificate, files.key})) {
    context.out << "kept: " << certificate << "\n";
    return kSucceeded;
  }
  if (const absl::Status status = IssueCertificate(request); !status.ok())
    return Report(context, status);
  context.out << "written: " << certificate << ", " << files.key.substr(files.key.rfind('/') + 1)
              << " for " << request.task << " at " << absl::StrJoin(request.hosts, ", ") << "\n"
              << "use: --tls-ca " << ca << " --tls-cert " << certificate << " --tls-key " << key
              << "\n";
  return kSucceeded;
}

}  // namespace

absl::Status InitAuthority(const std::string& folder, const std::string& name, std::uint32_t days) {
  EG_RETURN_IF_ERROR(fs::MakeDirectories(folder));
  const std::string certificate_path = folder + "/ca.pem", key_path = folder + "/ca.key";
  EG_RETURN_IF_ERROR(MustBeAbsent({certificate_path, key_path}));
  EG_ASSIGN_OR_RETURN(const Key key, NewKey());
  EG_ASSIGN_OR_RETURN(const Certificate certificate, Blank(key.get(), name, days));
  if (X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get())) != 1 ||
      !Add(certificate.get(), certificate.get(), NID_basic_constraints,
           "critical,CA:TRUE,pathlen:0") ||
      !Add(certificate.get(), certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !Add(certificate.get(), certificate.get(), NID_subject_key_identifier, "hash") ||
      X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0)
    return OpenSslError("cannot sign the authority");
  EG_ASSIGN_OR_RETURN(const std::string key_pem, PemOf(key.get()));
  EG_ASSIGN_OR_RETURN(const std::string certificate_pem, PemOf(certificate.get()));
  EG_RETURN_IF_ERROR(WriteNew(key_path, key_pem, 0600));
  return WriteNew(certificate_path, certificate_pem, 0644);
}

std::string TaskOfName(const std::string& name) {
  for (const auto& [prefix, role] :
       {std::pair<absl::string_view, absl::string_view>{"ps-server-", "ps_server/"},
        {"worker-", "worker/"}}) {
    if (absl::StartsWith(name, prefix) && name.size() > prefix.size())
      return absl::StrCat(role, name.substr(prefix.size()));
  }
  return name == "coordinator" ? name : absl::StrCat("user/", name);
}

IssuedFiles FilesOf(const CertRequest& request) {
  if (!request.to.empty())
    return {request.to + "/ca.crt", request.to + "/tls.crt", request.to + "/tls.key"};
  const std::string stem = absl::StrCat(request.folder, "/", request.name);
  return {request.folder + "/ca.pem", stem + ".pem", stem + ".key"};
}

absl::Status IssueCertificate(const CertRequest& request) {
  if (!IsFileName(request.name))
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("a certificate's name: expected letters, digits, `-`, `_` and `.`, got `",
                     request.name, "`")));
  const std::string task = request.task.empty() ? TaskOfName(request.name) : request.task;
  if (const absl::Status status = transport::CheckTaskName(task); !status.ok())
    return UserError(absl::InvalidArgumentError(absl::StrCat("--task: ", status.message())));
  std::vector<std::string> names{absl::StrCat("URI:", transport::kCertificateScheme, task)};
  for (const std::string& host : request.hosts) {
    if (IsAddress(host))
      names.push_back(absl::StrCat("IP:", host));
    else if (IsHostName(host))
      names.push_back(absl::StrCat("DNS:", host));
    else
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("--host: expected a host name or an address, got `", host, "`")));
  }
  if (names.size() == 1)
    return UserError(
        absl::InvalidArgumentError("--host: expected at least one host name or address"));
  const IssuedFiles files = FilesOf(request);
  EG_RETURN_IF_ERROR(MustBeAbsent({files.certificate, files.key}));
  if (!request.to.empty()) {
    EG_RETURN_IF_ERROR(fs::MakeDirectories(request.to));
    EG_RETURN_IF_ERROR(MustBeAbsent({files.authority}));
  }
  const auto ca_pem = fs::ReadFile(request.folder + "/ca.pem", 1u << 20);
  const auto ca_key_pem = fs::ReadFile(request.folder + "/ca.key", 1u << 20);
  for (const auto* file : {&ca_pem, &ca_key_pem})
    if (!file->ok())
      return UserError(absl::Status(
          file->status().code(),
          absl::StrCat("the folder has no certificate authority (psctl cert init makes one): ",
                       file->status().message())));
  const Bio ca_bio(BIO_new_mem_buf(ca_pem->data(), static_cast<int>(ca_pem->size()))),
      ca_key_bio(BIO_new_mem_buf(ca_key_pem->data(), static_cast<int>(ca_key_pem->size())));
  const Certificate ca(PEM_read_bio_X509(ca_bio.get(), nullptr, nullptr, nullptr));
  const Key ca_key(PEM_read_bio_PrivateKey(ca_key_bio.get(), nullptr, nullptr, nullptr));
  if (!ca || !ca_key)
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "cannot read the authority in ", request.folder, ": ca.pem or ca.key is not PEM")));
  if (X509_check_private_key(ca.get(), ca_key.get()) != 1)
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("ca.key does not belong to ca.pem in ", request.folder)));
  EG_ASSIGN_OR_RETURN(const Key key, NewKey());
  EG_ASSIGN_OR_RETURN(const Certificate certificate, Blank(key.get(), request.name, request.days));
  if (X509_set_issuer_name(certificate.get(), X509_get_subject_name(ca.get())) != 1 ||
      !Add(certificate.get(), ca.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !Add(certificate.get(), ca.get(), NID_key_usage, "critical,digitalSignature") ||
      !Add(certificate.get(), ca.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !Add(certificate.get(), ca.get(), NID_subject_alt_name, absl::StrJoin(names, ",")) ||
      !Add(certificate.get(), ca.get(), NID_authority_key_identifier, "keyid") ||
      X509_sign(certificate.get(), ca_key.get(), EVP_sha256()) == 0)
    return OpenSslError("cannot sign the certificate");
  EG_ASSIGN_OR_RETURN(const std::string key_pem, PemOf(key.get()));
  EG_ASSIGN_OR_RETURN(const std::string certificate_pem, PemOf(certificate.get()));
  if (!request.to.empty()) EG_RETURN_IF_ERROR(WriteNew(files.authority, *ca_pem, 0644));
  EG_RETURN_IF_ERROR(WriteNew(files.key, key_pem, 0600));
  return WriteNew(files.certificate, certificate_pem, 0644);
}

std::vector<Verb> CertVerbs() {
  return {{"cert", "init", "make a certificate authority", Init},
          {"cert", "issue", "make one task's certificate", Issue}};
}

}  // namespace evergrad::psctl
