#include "common/daemon/option_table.h"

#include <fstream>

#include <catch2/catch.hpp>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "tests/support/temp_folder.h"

namespace evergrad::daemon {
namespace {

struct Settings {
  std::string listen = "127.0.0.1:0", ca;
  bool spare = false;
  std::uint32_t threads = 0;
  std::optional<std::uint32_t> index;
  std::uint64_t budget = 1 << 20;
  double rate = 0.5;
  std::chrono::milliseconds lease{1500};
  std::string mode = "text";
};

struct Fixture {
  Settings settings;
  OptionTable table{"evergrad-test", "shows options"};
  test::TempFolder folder;
  Fixture() {
    table.Add("listen", &settings.listen, "address");
    table.Add("tls.ca", &settings.ca, "authority");
    table.Add("spare", &settings.spare, "a flag");
    table.Add("threads", &settings.threads, "threads", {0, 64});
    table.Add("index", &settings.index, "identity", {0, 1023});
    table.AddBytes("budget_bytes_max", &settings.budget, "budget", {1024, 1ull << 40});
    table.Add("rate", &settings.rate, "rate", 0, 1);
    table.Add("lease", &settings.lease, "lease", std::chrono::milliseconds(10));
    table.AddChoice("log_format", &settings.mode, {"text", "json"}, "format");
  }
  std::string File(const std::string& text) {
    const std::string path = folder / "d.yaml";
    std::ofstream(path) << text;
    return path;
  }
  absl::StatusOr<ParseOutcome> Parse(std::vector<std::string> args) {
    std::vector<const char*> argv{"evergrad-test"};
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    return table.Parse(static_cast<int>(argv.size()), argv.data());
  }
  std::string Refusal(std::vector<std::string> args) {
    const auto outcome = Parse(std::move(args));
    REQUIRE_FALSE(outcome.ok());
    CHECK(BlameOf(outcome.status()) == Blame::kUser);
    return std::string(outcome.status().message());
  }
};

TEST_CASE("a setting is read from its flag, with or without an equals sign") {
  Fixture f;
  REQUIRE(f.Parse({"--listen", "127.0.0.1:9", "--threads=4", "--spare", "--index=0",
                   "--budget-bytes-max", "64KiB", "--rate", "0.25", "--lease", "2s", "--log-format",
                   "json", "--tls-ca=/x"})
              .ok());
  CHECK(f.settings.listen == "127.0.0.1:9");
  CHECK(f.settings.threads == 4);
  CHECK(f.settings.spare);
  CHECK(f.settings.index == 0u);
  CHECK(f.settings.budget == 65536);
  CHECK(f.settings.rate == 0.25);
  CHECK(f.settings.lease == std::chrono::seconds(2));
  CHECK(f.settings.mode == "json");
  CHECK(f.settings.ca == "/x");
  CHECK(f.table.IsSet("tls.ca"));
  CHECK_FALSE(f.table.IsSet("config"));
}

TEST_CASE("a setting is read from the file, and its flag overrides it") {
  Fixture f;
  const std::string path =
      f.File("listen: 127.0.0.1:7\nthreads: 3\nspare: true\ntls: {ca: /there}\nlease: 250ms\n");
  REQUIRE(f.Parse({"--config", path, "--threads", "5", "--spare=false"}).ok());
  CHECK(f.settings.listen == "127.0.0.1:7");
  CHECK(f.settings.threads == 5);
  CHECK_FALSE(f.settings.spare);
  CHECK(f.settings.ca == "/there");
  CHECK(f.settings.lease == std::chrono::milliseconds(250));
}

TEST_CASE("all mistakes of a settings file are reported with line and column") {
  Fixture f;
  const std::string path = f.File(
      "lisen: x\nthreads: 65\nspare: yes\ntls: {cert_: 1}\nthreads: 2\nindex: 010\nlog_format: "
      "jsn\nlease: 5\n");
  const std::string expected =
      path + ":5:1: duplicate key `threads`: first given on line 2\n" + path +
      ":1:1: unknown setting `lisen`; did you mean `listen`?\n" + path +
      ":2:10: threads: expected an integer from 0 to 64, got `65`\n" + path +
      ":3:8: spare: expected true or false, got `yes`; did you mean `true`?\n" + path +
      ":4:7: unknown setting `tls.cert_`\n" + path +
      ":6:8: index: expected an integer from 0 to 1023, got `010`: leading zeros are refused, "
      "because YAML 1.1 reads them as octal\n" +
      path + ":7:13: log_format: expected one of text, json, got `jsn`; did you mean `json`?\n" +
      path +
      ":8:8: lease: expected a duration like 200ms, 5s, 1m or 2h, got `5`: the unit is missing; "
      "did you mean `5s`?";
  CHECK(f.Refusal({"--config", path}) == expected);
}

TEST_CASE("unknown, repeated, incomplete and ill-typed flags are refused by name") {
  CHECK(Fixture().Refusal({"--thread", "4"}) ==
        "unknown flag `--thread`; did you mean `--threads`?");
  CHECK(Fixture().Refusal({"--threads=1", "--threads=2"}) == "--threads: duplicate flag");
  CHECK(Fixture().Refusal({"--threads"}) == "--threads: a value is missing: expected N");
  CHECK(Fixture().Refusal({"--threads=-1"}) ==
        "--threads: expected an integer from 0 to 64, got `-1`");
  CHECK(Fixture().Refusal({"--budget-bytes-max", "64kib"}) ==
        "--budget-bytes-max: expected a size like 65536, 64KiB or 1GiB, got `64kib`; did you mean "
        "`64KiB`?");
  CHECK(Fixture().Refusal({"job.yaml"}) ==
        "unexpected argument `job.yaml`: every setting is a flag like --listen");
  CHECK(Fixture().Refusal({"--rate", "1.5"}) == "--rate: expected a number from 0 to 1, got `1.5`");
  CHECK(Fixture().Refusal({"--config", "/nonexistent/x.yaml"}).find("--config: ") == 0);
}

TEST_CASE("help names every option with its default, and takes precedence over mistakes") {
  Fixture f;
  const auto outcome = f.Parse({"--nonsense", "--help"});
  REQUIRE(outcome.ok());
  CHECK(outcome->stop);
  for (const char* flag :
       {"--config", "--listen TEXT", "--tls-ca", "--spare", "--threads N", "--index",
        "--budget-bytes-max SIZE", "--rate X", "--lease TIME", "--log-format text|json", "--help",
        "--version", "default 1500ms", "default 1MiB", "0 to 64"})
    CHECK_THAT(outcome->text, Catch::Contains(flag));
}

TEST_CASE("a repeatable setting is a list or one value in a settings file, and flags override it") {
  Fixture f;
  std::vector<std::string> given;
  f.table.Add("data_root", &given, "folders");
  REQUIRE(f.Parse({"--config", f.File("data_root: [/a, \"/b c\"]\n")}).ok());
  CHECK(given == std::vector<std::string>{"/a", "/b c"});
  const auto read = [](const std::string& text, std::vector<std::string> flags = {}) {
    Fixture one;
    std::vector<std::string> roots;
    one.table.Add("data_root", &roots, "folders");
    std::vector<std::string> args = {"--config", one.File(text)};
    args.insert(args.end(), flags.begin(), flags.end());
    const auto outcome = one.Parse(args);
    return outcome.ok() ? absl::StrJoin(roots, ",") : std::string(outcome.status().message());
  };
  CHECK(read("data_root: /a\n") == "/a");
  CHECK(read("data_root: []\n").empty());
  CHECK(read("data_root: [/a]\n", {"--data-root", "/x", "--data-root", "/y"}) == "/x,/y");
  CHECK_THAT(read("data_root: [{a: b}]\n"),
             Catch::Contains(":1:13: data_root: expected a list of texts, got a mapping"));
  CHECK_THAT(read("data_root: {a: b}\n"),
             Catch::Contains("data_root: expected one value, got a mapping"));
  CHECK_THAT(f.table.ReferenceYaml(), Catch::Contains("data_root: []\n"));
}

TEST_CASE("the printed settings file changes nothing when it is loaded") {
  Fixture printed;
  Fixture f;
  const std::string path = f.File(printed.table.ReferenceYaml());
  REQUIRE(f.Parse({"--config", path}).ok());
  CHECK(f.table.ReferenceYaml() == printed.table.ReferenceYaml());
  CHECK(f.settings.lease == printed.settings.lease);
  CHECK_FALSE(f.settings.index.has_value());
}

TEST_CASE("a command takes arguments, short flags and repeated flags, and no settings file") {
  std::string job;
  std::vector<std::string> sets, tasks;
  bool follow = false;
  OptionTable table("psctl logs", "shows logs", OptionTable::Kind::kCommand);
  table.AddArgument("JOB", &job, "the job");
  table.AddRest("TASK", &tasks, "tasks");
  table.Add("set", &sets, "a value");
  table.Add("follow", &follow, "go on");
  table.Short('f', "follow");
  const auto parse = [&](std::vector<const char*> args) {
    args.insert(args.begin(), "psctl");
    return table.Parse(static_cast<int>(args.size()), args.data());
  };
  REQUIRE(parse({"j", "--set", "a=1", "worker/0", "-f", "--set=b=2", "worker/1"}).ok());
  CHECK(job == "j");
  CHECK(tasks == std::vector<std::string>{"worker/0", "worker/1"});
  CHECK(sets == std::vector<std::string>{"a=1", "b=2"});
  CHECK(follow);
  CHECK_THAT(table.Help(), Catch::Contains("usage: psctl logs [flags] JOB [TASK …]") &&
                               Catch::Contains("-f, --follow") && !Catch::Contains("--config"));
  OptionTable other("psctl job show", "shows a job", OptionTable::Kind::kCommand);
  other.AddArgument("JOB", &job, "name of the job");
  const std::vector<const char*> none = {"psctl"}, two = {"psctl", "a", "b", "-x", "--config", "y"};
  CHECK(other.Parse(1, none.data()).status().message() == "missing argument JOB: name of the job");
  CHECK(other.Parse(6, two.data()).status().message() ==
        "unexpected argument `b`\nunknown flag `-x`\nunknown flag `--config`");
}

TEST_CASE(
    "a printing flag ends the program with its text after the other settings are parsed, and is no "
    "setting") {
  Fixture f;
  absl::StatusOr<std::string> text = std::string();
  f.table.AddPrint("list_things", "print the things and end", [&] {
    return text.ok() ? absl::StatusOr<std::string>(f.settings.listen + "\n") : text;
  });
  const char* args[] = {"evergrad-test", "--list-things", "--listen", "there:1"};
  auto outcome = f.table.Parse(4, args);
  REQUIRE(outcome.ok());
  CHECK(outcome->stop);
  CHECK(outcome->text == "there:1\n");
  CHECK(f.table.Help().find("--list-things") != std::string::npos);
  CHECK(f.table.ReferenceYaml().find("list_things") == std::string::npos);
  Fixture refused;
  refused.table.AddPrint("list_things", "print the things and end",
                         [] { return UserError(absl::NotFoundError("no things")); });
  const char* alone[] = {"evergrad-test", "--list-things"};
  CHECK(refused.table.Parse(2, alone).status().message() == "no things");
  Fixture file;
  file.table.AddPrint("list_things", "print the things and end", [] { return std::string(); });
  const std::string path = file.File("list_things: true\n");
  const char* from_file[] = {"evergrad-test", "--config", path.c_str()};
  CHECK(file.table.Parse(3, from_file)
            .status()
            .message()
            .find("unknown setting `list_things`; this setting can only be given as a flag") !=
        std::string::npos);
}

}  // namespace
}  // namespace evergrad::daemon
