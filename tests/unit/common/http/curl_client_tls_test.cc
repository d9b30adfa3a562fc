// Tests HTTPS with certificates that the test makes.
#include <catch2/catch.hpp>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/http/client.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/http/certificate_fixture.h"
#include "tests/unit/common/http/client_fixture.h"
#include "tests/unit/common/http/server_fixture.h"

namespace evergrad::http {
namespace {

using absl::StatusCode;

constexpr char kAnswer[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

// A client that trusts only this authority.
std::unique_ptr<Client> Trusting(const TestAuthority& authority, const test::TempFolder& folder) {
  ClientOptions options = Patient();
  options.ca_file = folder / "ca.pem";
  std::ofstream(options.ca_file, std::ios::trunc) << authority.pem();
  return MakeClient(options);
}

TEST_CASE("HTTPS works with a certificate of the given authority for this host") {
  const test::TempFolder folder;
  const TestAuthority authority;
  const std::string body(3'000'000, 'x');
  for (const char* name : {"127.0.0.1", "localhost"}) {
    CAPTURE(name);
    TestServer server(Always(kAnswer),
                      authority.Issue((name[0] == '1' ? "IP:" : "DNS:") + std::string(name)));
    const auto client = Trusting(authority, folder);
    const std::string url = "https://" + server.host_port(name) + "/k";
    const auto response = Get(client.get(), url);
    REQUIRE(response.status() == absl::OkStatus());
    CHECK(response->body == "ok");
    Request put = MakeRequest("PUT", url);
    put.body = body;
    CHECK(client->Send(put).status() == absl::OkStatus());
    CHECK(server.requests().back().size() > body.size());
    CHECK(server.connections() == 1);
  }
}

TEST_CASE("a certificate of another authority, for another host, or expired, is Unauthenticated") {
  const test::TempFolder folder;
  const TestAuthority authority;
  const TestAuthority other("another authority");
  const TestAuthority renewed;  // another key under the same name
  struct Case {
    ServerPems pems;
    std::string reason;
  };
  for (const Case& refused :
       std::vector<Case>{{other.Issue("IP:127.0.0.1"), "unable to get local issuer certificate"},
                         {renewed.Issue("IP:127.0.0.1"), "certificate signature failure"},
                         {authority.Issue("DNS:other.example"), "127.0.0.1"},
                         {authority.Issue("IP:127.0.0.2"), "127.0.0.1"},
                         {authority.Issue("IP:127.0.0.1", -60), "certificate has expired"}}) {
    TestServer server(Always(kAnswer), refused.pems);
    const auto client = Trusting(authority, folder);
    const auto response = Get(client.get(), server.Url("/k?secret"));
    CHECK(response.status().code() == StatusCode::kUnauthenticated);
    CHECK_THAT(
        std::string(response.status().message()),
        Catch::StartsWith("HTTP request failed: method=GET url=" + server.Url("/k") + " reason=") &&
            Catch::Contains(refused.reason));
    CHECK(server.requests().empty());
  }
}

TEST_CASE("without a file of authorities, a certificate of an unknown authority is refused") {
  const TestAuthority authority;
  TestServer server(Always(kAnswer), authority.Issue("IP:127.0.0.1"));
  CHECK(Get(MakeClient().get(), server.Url("/k")).status().code() == StatusCode::kUnauthenticated);
  CHECK(server.requests().empty());
}

TEST_CASE("a plain server behind an HTTPS URL is Unavailable") {
  TestServer server([](Peer& peer, int) { peer.Send("HTTP/1.1 400 Bad Request\r\n\r\n"); });
  const auto client = MakeClient();
  CHECK(Get(client.get(), "https://" + server.host_port() + "/k").status().code() ==
        StatusCode::kUnavailable);
}

}  // namespace
}  // namespace evergrad::http
