// Tests the rules about the address of the API server and the namespace.
#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "common/base/status.h"
#include "kubernetes/api/api.h"
#include "tests/support/temp_folder.h"

namespace evergrad::kubernetes {
namespace {

std::string Refusal(const std::string& server, const std::string& name_space = "ns") {
  ApiOptions options;
  options.server = server;
  options.name_space = name_space;
  const absl::Status status = CheckApiOptions(options);
  if (status.ok()) return "";
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(BlameOf(status) == Blame::kUser);
  return std::string(status.message());
}

TEST_CASE("HTTPS is allowed to every host, and plain HTTP to this machine only") {
  for (const char* server :
       {"https://10.0.0.1:443", "https://kubernetes.default.svc", "https://[fd00::1]:6443",
        "http://127.0.0.1:8001", "http://127.8.9.1:8001", "http://localhost:8001",
        "http://localhost", "http://[::1]:8001", "http://[::1]"}) {
    CAPTURE(server);
    CHECK(Refusal(server) == "");
  }
  for (const char* server :
       {"http://10.0.0.1:8001", "http://127.evil.org:8001", "http://127.0.0.1.evil.org",
        "http://localhost.evil.org", "http://[fd00::1]:8001", "http://[::]:80", "http://::1:80"}) {
    CAPTURE(server);
    CHECK_THAT(Refusal(server),
               Catch::Contains("plain HTTP is allowed on a loopback address only"));
  }
}

TEST_CASE("an address that is missing, of another scheme, or with more than a host is refused") {
  CHECK_THAT(Refusal(""), Catch::StartsWith("--api-server is missing"));
  for (const char* server : {"10.0.0.1:443", "ftp://a", "HTTPS://a", "https:/a", "//a", "a\nb"}) {
    CAPTURE(server);
    CHECK_THAT(Refusal(server), Catch::StartsWith("--api-server: expected https://HOST:PORT, got"));
  }
  CHECK_THAT(Refusal("a\nb"), Catch::Contains("a\\nb"));
  for (const char* server : {"https://", "https:///", "https://a/", "https://a/path", "https://a?b",
                             "https://user:secret@a", "http://secret@127.0.0.1"}) {
    CAPTURE(server);
    const std::string refusal = Refusal(server);
    CHECK_THAT(refusal, Catch::StartsWith("--api-server: expected https://HOST:PORT without"));
    CHECK_THAT(refusal, !Catch::Contains("secret"));
  }
}

TEST_CASE("a namespace is a DNS label") {
  for (const std::string name : {"a", "0", "default", "team-a", "a-0-b"})
    CHECK(Refusal("https://a", name) == "");
  CHECK(Refusal("https://a", std::string(63, 'a')) == "");
  CHECK_THAT(Refusal("https://a", ""), Catch::StartsWith("--namespace is missing"));
  for (const std::string name :
       {"A", "a_b", "a.b", "-a", "a-", "a/b", "a b", "ä", "..", "a?b", "a\n"})
    CHECK_THAT(Refusal("https://a", name), Catch::StartsWith("--namespace: expected a DNS label"));
  CHECK_THAT(Refusal("https://a", std::string(64, 'a')),
             Catch::StartsWith("--namespace: expected a DNS label"));
}

TEST_CASE("a file of authorities that cannot be used is refused") {
  const test::TempFolder folder;
  ApiOptions options;
  options.server = "https://a";
  options.name_space = "ns";
  options.ca_file = folder / "absent.pem";
  CHECK_THAT(std::string(MakeHttpApi(options).status().message()), Catch::Contains("absent.pem"));
  std::ofstream(folder / "wrong.pem") << "hello";
  options.ca_file = folder / "wrong.pem";
  CHECK(MakeHttpApi(options).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace evergrad::kubernetes
