// Tests the verbs of `psctl context` and `psctl completion`, and which cluster a connection means.
#include "coordinator/psctl/cluster_contexts.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "common/fs/file.h"
#include "tests/support/temp_folder.h"

namespace evergrad::psctl {
namespace {

struct Stage {
  test::TempFolder folder;
  std::ostringstream out, err;
  Context context{out, err};

  Stage() {
    context.folder = folder / "work";
    context.environment["HOME"] = folder / "home";
    std::filesystem::create_directories(context.folder);
    for (const char* file : {"ca.pem", "alice.pem", "alice.key"})
      std::ofstream(folder / (std::string("work/") + file)) << "pem";
  }
  int Run(const std::vector<std::string>& args) {
    out.str("");
    err.str("");
    return RunPsctl(context, args);
  }
  std::string path() { return *ClusterContextsPath(context); }
  // The address of the target, or the error.
  std::string Address(const Connection& connection) {
    const auto target = TargetOf(context, connection);
    return target.ok() ? target->address : std::string(target.status().message());
  }
};

TEST_CASE("a context is added, listed, chosen and removed") {
  Stage stage;
  CHECK(stage.Run({"context", "list"}) == kSucceeded);
  CHECK(absl::StrContains(stage.out.str(), "no contexts"));
  CHECK(stage.Run({"context", "add", "production", "--coordinator", "cluster.example.org:4000",
                   "--tls-ca", "ca.pem", "--tls-cert", "alice.pem", "--tls-key", "alice.key"}) ==
        kSucceeded);
  CHECK(stage.out.str() == "context production added; it is the current context\n");
  CHECK(stage.Run({"context", "add", "lab", "--coordinator", "10.0.0.7:4000"}) == kSucceeded);
  CHECK(stage.out.str() == "context lab added\n");
  struct stat info {};
  REQUIRE(::stat(stage.path().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);

  CHECK(stage.Run({"context", "list", "--output", "json"}) == kSucceeded);
  CHECK(absl::StrContains(stage.out.str(), "\"current\": \"production\""));
  CHECK(stage.Run({"context", "use", "lab"}) == kSucceeded);
  CHECK(ReadClusterContexts(stage.context)->current == "lab");
  CHECK(stage.Run({"context", "use", "none"}) == kUsage);
  CHECK(absl::StrContains(stage.err.str(), "the contexts are lab, production"));
  CHECK(stage.Run({"context", "remove", "lab"}) == kSucceeded);
  CHECK(ReadClusterContexts(stage.context)->current.empty());
  CHECK(ReadClusterContexts(stage.context)->all.size() == 1);
}

TEST_CASE("wrong contexts are refused, and change nothing") {
  Stage stage;
  const struct {
    std::vector<std::string> args;
    const char* says;
  } cases[] = {
      {{"a/b", "--coordinator", "h:1"}, "letters, digits"},
      {{"a", "--coordinator", "h"}, "expected host:port"},
      {{"a", "--coordinator", "h:0"}, "expected host:port"},
      {{"a", "--coordinator", "h:1", "--tls-ca", "ca.pem"}, "all three"},
      {{"a", "--coordinator", "h:1", "--tls-ca", "none.pem"}, "no such file"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> args = {"context", "add"};
    args.insert(args.end(), c.args.begin(), c.args.end());
    INFO(c.says);
    CHECK(stage.Run(args) == kUsage);
    CHECK(absl::StrContains(stage.err.str(), c.says));
    CHECK_FALSE(std::filesystem::exists(stage.path()));
  }
}

TEST_CASE("mistakes in the file of contexts are named with their places") {
  Stage stage;
  std::filesystem::create_directories(stage.folder / "home/.config/evergrad");
  std::ofstream(stage.path()) << "current: a\n"
                                 "contexts:\n"
                                 "  - {name: a, coordinator: h}\n"
                                 "  - {name: b, coordinator: 'h:1', tls_crt: x}\n";
  CHECK(stage.Run({"context", "list"}) == kUsage);
  CHECK(absl::StrContains(stage.err.str(), "config.yaml:3:"));
  CHECK(absl::StrContains(stage.err.str(), "config.yaml:4:"));
  CHECK(absl::StrContains(stage.err.str(), "tls_cert"));  // the suggestion
  std::ofstream(stage.path()) << "contexts:\n  - {name: a, coordinator: 'h:1', tls_ca: ca.pem, "
                                 "tls_cert: c.pem, tls_key: k.pem}\n";
  CHECK(stage.Run({"context", "list"}) == kUsage);
  CHECK(absl::StrContains(stage.err.str(), "expected an absolute path"));
}

TEST_CASE("the order of the places that name a coordinator") {
  Stage stage;
  CHECK(absl::StrContains(stage.Address({}), "which coordinator?"));
  REQUIRE(stage.Run({"context", "add", "one", "--coordinator", "one:1"}) == kSucceeded);
  REQUIRE(stage.Run({"context", "add", "two", "--coordinator", "two:2", "--tls-ca", "ca.pem",
                     "--tls-cert", "alice.pem", "--tls-key", "alice.key"}) == kSucceeded);
  CHECK(stage.Address({}) == "one:1");
  stage.context.environment["EVERGRAD_COORDINATOR"] = "variable:3";
  CHECK(stage.Address({}) == "variable:3");
  CHECK(TargetOf(stage.context, {})->tls.empty());  // the certificate belongs to its context
  std::filesystem::create_directories(stage.folder / "work/.evergrad");
  std::ofstream(stage.folder / "work/.evergrad/coordinator.address") << "folder:4\n";
  CHECK(stage.Address({}) == "folder:4");
  // Another folder does not change the cluster that this variable names.
  stage.context.environment["EVERGRAD_CONTEXT"] = "two";
  CHECK(stage.Address({}) == "two:2");
  CHECK(TargetOf(stage.context, {})->tls.cert == stage.folder / "work/alice.pem");
  Connection named;
  named.context = "one";
  CHECK(stage.Address(named) == "one:1");
  named.context = "three";
  CHECK(absl::StrContains(stage.Address(named), "there is no context `three`"));
  Connection flag;
  flag.coordinator = "flag:5";
  CHECK(stage.Address(flag) == "flag:5");
  flag.context = "one";
  CHECK(absl::StrContains(stage.Address(flag), "not both"));
}

TEST_CASE("completion offers nouns, verbs, flags and contexts") {
  Stage stage;
  REQUIRE(stage.Run({"context", "add", "lab", "--coordinator", "lab:1"}) == kSucceeded);
  const struct {
    std::vector<std::string> words, some;
    std::vector<std::string> not_these;
  } cases[] = {
      {{""}, {"checkpoint", "job", "logs", "version"}, {"run"}},
      {{"j"}, {"job"}, {"logs"}},
      {{"job", ""}, {"cancel", "list", "run"}, {"job", "--set"}},
      {{"job", "r"}, {"run"}, {"list"}},
      {{"job", "run", "--s"}, {"--set", "--set-file"}, {"--local", "run"}},
      {{"logs", "--f"}, {"--follow"}, {"--set"}},
      {{"context", "use", ""}, {"lab"}, {"use"}},
      {{"context", "add", ""}, {}, {"lab"}},
      {{"job", "list", "--context", "l"}, {"lab"}, {"list"}},
      {{"nothing", ""}, {}, {"job", "run"}},
  };
  for (const auto& c : cases) {
    std::vector<std::string> args = {"completion", "candidates", "--"};
    args.insert(args.end(), c.words.begin(), c.words.end());
    CHECK(stage.Run(args) == kSucceeded);
    const std::string out = "\n" + stage.out.str();
    INFO(c.words.back() << " gives " << out);
    for (const std::string& word : c.some) CHECK(absl::StrContains(out, "\n" + word + "\n"));
    for (const std::string& word : c.not_these)
      CHECK_FALSE(absl::StrContains(out, "\n" + word + "\n"));
  }
  CHECK(stage.Run({"completion", "bash"}) == kSucceeded);
  CHECK(absl::StrContains(stage.out.str(), "complete -o default -F _psctl psctl"));
  CHECK(stage.Run({"completion", "zsh"}) == kSucceeded);
  CHECK(absl::StrContains(stage.out.str(), "#compdef psctl"));
}

}  // namespace
}  // namespace evergrad::psctl
