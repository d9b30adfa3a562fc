// Tests the settings of evergrad-operator.
#include "kubernetes/config.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/daemon/daemon.h"
#include "tests/support/temp_folder.h"

namespace evergrad::kubernetes {
namespace {

using Variables = std::map<std::string, std::string>;

absl::Status Resolved(Config* config, const Variables& variables, const std::string& folder) {
  return Resolve(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      config, folder);
}

const Variables kPod = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                        {"KUBERNETES_SERVICE_PORT", "443"}};

// The folder of the service account of a pod.
struct Account {
  Account() { std::ofstream(folder / "namespace") << " team-a\n"; }
  test::TempFolder folder;
};

TEST_CASE("a pod finds its API server, and the files of its service account") {
  const Account account;
  Config config;
  REQUIRE(Resolved(&config, kPod, account.folder.path()) == absl::OkStatus());
  CHECK(config.api_server == "https://10.0.0.1:443");
  CHECK(config.api_ca == account.folder / "ca.crt");
  CHECK(config.api_token == account.folder / "token");
  CHECK(config.name_space == "team-a");
}

TEST_CASE("the address of an API server on IPv6 gets brackets") {
  const Account account;
  Config config;
  REQUIRE(Resolved(&config,
                   {{"KUBERNETES_SERVICE_HOST", "fd00::1"}, {"KUBERNETES_SERVICE_PORT", "6443"}},
                   account.folder.path())
              .ok());
  CHECK(config.api_server == "https://[fd00::1]:6443");
}

TEST_CASE("given settings replace those of the pod, each alone") {
  const Account account;
  Config config;
  config.api_ca = "/my/ca";
  config.name_space = "team-b";
  REQUIRE(Resolved(&config, kPod, account.folder.path()).ok());
  CHECK(config.api_ca == "/my/ca");
  CHECK(config.api_token == account.folder / "token");
  CHECK(config.name_space == "team-b");
}

TEST_CASE("with a given API server the pod's token and authority are not used") {
  const Account account;
  Config config;
  config.api_server = "http://127.0.0.1:8001";
  REQUIRE(Resolved(&config, kPod, account.folder.path()).ok());
  CHECK(config.api_server == "http://127.0.0.1:8001");
  CHECK(config.api_ca == "");
  CHECK(config.api_token == "");
  CHECK(config.name_space == "team-a");
}

TEST_CASE("outside of a pod the missing settings are named") {
  const test::TempFolder empty;
  const auto refusal = [&](Config config, const Variables& variables) {
    const absl::Status status = Resolved(&config, variables, empty.path());
    CHECK(BlameOf(status) == Blame::kUser);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  CHECK_THAT(refusal({}, {}), Catch::StartsWith("--api-server is missing"));
  CHECK_THAT(refusal({}, {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}),
             Catch::StartsWith("--api-server is missing"));
  CHECK_THAT(refusal({}, {{"KUBERNETES_SERVICE_HOST", ""}, {"KUBERNETES_SERVICE_PORT", "443"}}),
             Catch::StartsWith("--api-server is missing"));
  CHECK_THAT(refusal({}, kPod), Catch::StartsWith("--namespace is missing"));
  Config config;
  config.api_server = "http://10.0.0.1:8001";
  config.name_space = "ns";
  CHECK_THAT(refusal(config, {}), Catch::Contains("plain HTTP is allowed on a loopback address"));
  config.api_server = "https://10.0.0.1";
  config.name_space = "Not a label";
  CHECK_THAT(refusal(config, {}), Catch::StartsWith("--namespace: expected a DNS label"));
}

TEST_CASE("a file of the namespace that is too large or no label is no namespace") {
  const test::TempFolder folder;
  for (const std::string& text : {std::string(5000, 'a'), std::string("a/b"), std::string()}) {
    std::ofstream(folder / "namespace", std::ios::trunc) << text;
    Config config;
    CHECK_FALSE(Resolved(&config, kPod, folder.path()).ok());
  }
}

TEST_CASE("only variables whose name begins with EVERGRAD_ stand in objects") {
  char a[] = "EVERGRAD_DATA=/data=1", b[] = "HOME=/root",
       c[] = "EVERGRAD_EMPTY=", d[] = "EVERGRAD_X", e[] = "evergrad_y=1", f[] = "MY_EVERGRAD_Z=1",
       g[] = "=x";
  char* environment[] = {a, b, c, d, e, f, g, nullptr};
  CHECK(VariablesForObjects(environment) ==
        Variables{{"EVERGRAD_DATA", "/data=1"}, {"EVERGRAD_EMPTY", ""}});
  char* none[] = {nullptr};
  CHECK(VariablesForObjects(none).empty());
}

TEST_CASE("the program has its own flags and those of a caller, and no listener") {
  daemon::Daemon daemon({.name = "evergrad-operator",
                         .role = "operator",
                         .serves = false,
                         .hands_over = false,
                         .has_coordinator = true},
                        "test");
  Config config;
  AddOptions(&config, &daemon.options());
  const std::string help = daemon.options().Help();
  for (const char* flag : {"--api-server", "--api-ca", "--api-token", "--namespace", "--poll",
                           "--status-every", "--print-crd", "--coordinator", "--tls-cert"})
    CHECK_THAT(help, Catch::Contains(flag));
  for (const char* flag : {"--listen", "--failpoints", "--preemption-source", "--address-file"})
    CHECK_THAT(help, !Catch::Contains(flag));
  const char* const arguments[] = {"evergrad-operator", "--poll", "200ms", "--status-every", "1m",
                                   "--namespace",       "team-a"};
  REQUIRE(daemon.options().Parse(7, arguments).ok());
  CHECK(config.poll == std::chrono::milliseconds(200));
  CHECK(config.status_every == std::chrono::minutes(1));
  CHECK(config.name_space == "team-a");
  for (const char* poll : {"0", "10ms", "2h"}) {
    const char* const wrong[] = {"evergrad-operator", "--poll", poll};
    CHECK_FALSE(daemon.options().Parse(3, wrong).ok());
  }
}

TEST_CASE("the flag --print-crd prints the definition, without any other setting") {
  daemon::OptionTable table("evergrad-operator", "test");
  Config config;
  AddOptions(&config, &table);
  const char* const arguments[] = {"evergrad-operator", "--print-crd"};
  const auto outcome = table.Parse(2, arguments);
  REQUIRE(outcome.ok());
  CHECK(outcome->stop);
  CHECK_THAT(outcome->text, Catch::Contains("kind: CustomResourceDefinition"));
}

}  // namespace
}  // namespace evergrad::kubernetes
