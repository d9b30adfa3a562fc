#include "coordinator/psctl/cert.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "tests/support/temp_folder.h"

namespace evergrad::psctl {
namespace {

X509* ReadCertificate(const std::string& path) {
  FILE* file = std::fopen(path.c_str(), "r");
  REQUIRE(file != nullptr);
  X509* certificate = PEM_read_X509(file, nullptr, nullptr, nullptr);
  std::fclose(file);
  REQUIRE(certificate != nullptr);
  return certificate;
}

// Returns whether a peer would accept the certificate. The check covers the chain, the purpose and
// the name.
bool Accepted(const std::string& ca_path, const std::string& path, int purpose) {
  X509 *ca = ReadCertificate(ca_path), *certificate = ReadCertificate(path);
  X509_STORE* store = X509_STORE_new();
  X509_STORE_add_cert(store, ca);
  X509_STORE_CTX* context = X509_STORE_CTX_new();
  X509_STORE_CTX_init(context, store, certificate, nullptr);
  X509_STORE_CTX_set_purpose(context, purpose);
  const bool accepted = X509_verify_cert(context) == 1;
  X509_STORE_CTX_free(context);
  X509_STORE_free(store);
  X509_free(ca);
  X509_free(certificate);
  return accepted;
}

TEST_CASE(
    "an issued certificate is accepted at both ends of a channel, under its own names and no "
    "others") {
  const test::TempFolder folder;
  REQUIRE(InitAuthority(folder.path(), "test authority", 1).ok());
  REQUIRE(IssueCertificate({folder.path(), "worker-0", {"10.0.0.1", "w0.example", "::1"}, 1}).ok());
  const std::string path = folder / "worker-0.pem";
  CHECK(Accepted(folder / "ca.pem", path, X509_PURPOSE_SSL_SERVER));
  CHECK(Accepted(folder / "ca.pem", path, X509_PURPOSE_SSL_CLIENT));
  X509* certificate = ReadCertificate(path);
  CHECK(X509_check_ip_asc(certificate, "10.0.0.1", 0) == 1);
  CHECK(X509_check_ip_asc(certificate, "::1", 0) == 1);
  CHECK(X509_check_host(certificate, "w0.example", 0, 0, nullptr) == 1);
  CHECK(X509_check_host(certificate, "w1.example", 0, 0, nullptr) == 0);
  CHECK(X509_check_ca(certificate) == 0);
  GENERAL_NAMES* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  REQUIRE(names != nullptr);
  const GENERAL_NAME* task = sk_GENERAL_NAME_value(names, 0);
  REQUIRE(task->type == GEN_URI);
  CHECK(std::string(reinterpret_cast<const char*>(
            ASN1_STRING_get0_data(task->d.uniformResourceIdentifier))) == "evergrad://worker/0");
  GENERAL_NAMES_free(names);
  X509_free(certificate);
  const test::TempFolder other;
  REQUIRE(InitAuthority(other.path(), "another authority", 1).ok());
  CHECK_FALSE(Accepted(other / "ca.pem", path, X509_PURPOSE_SSL_SERVER));
}

TEST_CASE("the owner of a certificate follows from its name, unless it is stated") {
  CHECK(TaskOfName("coordinator") == "coordinator");
  CHECK(TaskOfName("ps-server-12") == "ps_server/12");
  CHECK(TaskOfName("worker-gpu.3") == "worker/gpu.3");
  for (const char* person : {"alice", "worker", "worker-", "ps-server-", "coordinator-2", "admin",
                             "viewer", "operator-1"})
    CHECK(TaskOfName(person) == std::string("user/") + person);
  const test::TempFolder folder;
  REQUIRE(InitAuthority(folder.path(), "test authority", 1).ok());
  int number = 0;
  for (const char* task : {"coordinator", "ps_server/0", "ps_server", "worker/a-b", "user/alice",
                           "viewer/board", "operator/ctl", "admin/carol", "admin"})
    CHECK(IssueCertificate({folder.path(), "n" + std::to_string(number++), {"localhost"}, 1, task})
              .ok());
  for (const char* task : {"scheduler/0", "worker/", "coordinator/0", "worker/0,DNS:evil",
                           "worker/a/b", "admins", "viewer/", "Admin/carol"}) {
    const absl::Status refused = IssueCertificate({folder.path(), "x", {"localhost"}, 1, task});
    CHECK(BlameOf(refused) == Blame::kUser);
    CHECK_THAT(std::string(refused.message()),
               Catch::StartsWith("--task: expected coordinator, ps_server/N"));
  }
}

TEST_CASE("keys are readable by their owner only, and no existing file is overwritten") {
  const test::TempFolder folder;
  REQUIRE(InitAuthority(folder.path(), "test authority", 1).ok());
  REQUIRE(IssueCertificate({folder.path(), "a", {"localhost"}, 1}).ok());
  for (const char* name : {"/ca.key", "/a.key"}) {
    struct stat info {};
    REQUIRE(stat((folder.path() + name).c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
  }
  const absl::Status again = InitAuthority(folder.path(), "test authority", 1);
  CHECK(again.code() == absl::StatusCode::kAlreadyExists);
  CHECK(std::string(again.message()) ==
        "refusing to overwrite an existing file: " + folder / "ca.pem");
  CHECK(IssueCertificate({folder.path(), "a", {"localhost"}, 1}).code() ==
        absl::StatusCode::kAlreadyExists);
}

TEST_CASE("with a folder of its own, a task gets the three files that it needs, and no more") {
  const test::TempFolder folder;
  REQUIRE(InitAuthority(folder.path(), "test authority", 1).ok());
  const CertRequest request{folder.path(), "any-worker", {"worker"}, 1, "worker", folder / "to/w"};
  REQUIRE(IssueCertificate(request).ok());
  std::set<std::string> written;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "to/w"))
    written.insert(entry.path().filename());
  CHECK(written == std::set<std::string>{"ca.crt", "tls.crt", "tls.key"});
  const IssuedFiles files = FilesOf(request);
  CHECK(Accepted(files.authority, files.certificate, X509_PURPOSE_SSL_CLIENT));
  CHECK(IssueCertificate(request).code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("names that would inject entries, and folders without an authority, are refused") {
  const test::TempFolder folder;
  CHECK_THAT(
      std::string(IssueCertificate({folder.path(), "a", {"localhost"}, 1}).message()),
      Catch::StartsWith("the folder has no certificate authority (psctl cert init makes one)"));
  REQUIRE(InitAuthority(folder.path(), "test authority", 1).ok());
  for (const char* host : {"a,DNS:b", "a b", "", "a/b"})
    CHECK(BlameOf(IssueCertificate({folder.path(), "x", {host}, 1})) == Blame::kUser);
  for (const char* name : {"", "../x", ".x", "a/b", "a b"})
    CHECK(BlameOf(IssueCertificate({folder.path(), name, {"localhost"}, 1})) == Blame::kUser);
  std::filesystem::remove(folder / "ca.key");
  REQUIRE(InitAuthority(folder / "other", "another", 1).ok());
  std::filesystem::copy(folder / "other/ca.key", folder / "ca.key");
  CHECK_THAT(std::string(IssueCertificate({folder.path(), "a", {"localhost"}, 1}).message()),
             Catch::StartsWith("ca.key does not belong to ca.pem"));
}

}  // namespace
}  // namespace evergrad::psctl
