// Tests the task that the certificate in a file names.
#include <catch2/catch.hpp>
#include <string>

#include "common/transport/tls/tls_files.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace evergrad::transport {
namespace {

using namespace evergrad::test;
using absl::StatusCode;

TEST_CASE("the certificate in a file names its task, whatever its authority and its time are") {
  const TempFolder folder;
  const Authority authority;
  const struct {
    const char *names, *task;
  } cases[] = {{"URI:evergrad://operator,IP:127.0.0.1", "operator"},
               {"URI:evergrad://operator/team-a,DNS:localhost", "operator/team-a"},
               {"URI:evergrad://user/alice", "user/alice"},
               {"URI:https://example.org,URI:evergrad://coordinator", "coordinator"}};
  for (const auto& one : cases) {
    CAPTURE(one.names);
    for (const long end_seconds : {3600L, -60L}) {
      const TlsPems pems =
          IssuePems("x", authority, {&authority}, {.names = one.names, .end_seconds = end_seconds});
      ReplaceFile(folder / "x.pem", pems.cert + pems.ca);
      const auto task = TaskOfCertificateFile(folder / "x.pem");
      REQUIRE(task.status() == absl::OkStatus());
      CHECK(*task == one.task);
    }
  }
}

TEST_CASE("a file without a certificate, or whose certificate names no task, is refused") {
  const TempFolder folder;
  const Authority authority;
  const auto refusal = [&](const std::string& text) {
    ReplaceFile(folder / "x.pem", text);
    return TaskOfCertificateFile(folder / "x.pem").status();
  };
  CHECK_FALSE(TaskOfCertificateFile(folder / "absent.pem").ok());
  CHECK_THAT(std::string(TaskOfCertificateFile(folder / "absent.pem").status().message()),
             Catch::Contains("absent.pem"));
  for (const char* text : {"", "hello\n", "-----BEGIN CERTIFICATE-----\nAAAA\n"}) {
    CAPTURE(text);
    const absl::Status status = refusal(text);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(status.message()), Catch::Contains("x.pem"));
  }
  const auto issued = [&](const char* names) {
    return IssuePems("x", authority, {&authority}, {.names = names}).cert;
  };
  for (const char* names : {"none", "IP:127.0.0.1", "URI:evergrad://nobody",
                            "URI:evergrad://operator,URI:evergrad://admin"}) {
    CAPTURE(names);
    CHECK(refusal(issued(names)).code() == StatusCode::kPermissionDenied);
  }
}

}  // namespace
}  // namespace evergrad::transport
