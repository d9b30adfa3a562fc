#include "common/log/log.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/temp_folder.h"

namespace evergrad::log {
namespace {

class LogFile {
 public:
  std::string path() const { return folder_ / "log"; }
  std::vector<std::string> Lines() const {
    std::ifstream in(path());
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

 private:
  test::TempFolder folder_;
};

TEST_CASE("a text line contains time, level, task, job and closure") {
  LogFile file;
  Options options;
  options.file = file.path();
  {
    Logger logger(options);
    logger.Info("starting");
    logger.SetTask("worker/0");
    logger.Warning("slow", {"fashion", "12"});
    logger.Debug("not shown");
  }
  const auto lines = file.Lines();
  REQUIRE(lines.size() == 2);
  CHECK_THAT(
      lines[0],
      Catch::Matches(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info - job=- closure=- starting)"));
  CHECK_THAT(lines[1], Catch::EndsWith("warning worker/0 job=fashion closure=12 slow"));
}

TEST_CASE("control characters and U+202E of peers do not reach a log, in text or JSON") {
  const std::string evil = "\x1b[2J \xe2\x80\xae \xc2\x9b \x7f";
  for (const bool json : {false, true}) {
    LogFile file;
    Options options;
    options.file = file.path();
    options.json = json;
    {
      Logger logger(options);
      logger.SetTask(evil);
      logger.Error(evil, {evil, evil});
    }
    REQUIRE(file.Lines().size() == 1);
    const std::string line = file.Lines()[0];
    for (const char* hidden : {"\x1b", "\xe2\x80\xae", "\xc2\x9b", "\x7f"})
      CHECK(line.find(hidden) == std::string::npos);
    if (json) CHECK(nlohmann::json::parse(line)["text"] == evil);
  }
}

TEST_CASE("text of peers cannot forge a log line, in text or JSON") {
  LogFile text_file, json_file;
  const std::string evil = "a\nb\x1b[31m\"\\\x80 \xC3\xA9";
  Options options;
  options.file = text_file.path();
  Logger(options).Error(evil);
  REQUIRE(text_file.Lines().size() == 1);
  CHECK(text_file.Lines()[0].find('\x1b') == std::string::npos);
  options.file = json_file.path();
  options.json = true;
  {
    Logger logger(options);
    logger.SetTask("ps_server/1");
    logger.Error(evil, {"j", "3"});
  }
  REQUIRE(json_file.Lines().size() == 1);
  const auto json = nlohmann::json::parse(json_file.Lines()[0]);
  CHECK(json["text"] == "a\nb\x1b[31m\"\\\xEF\xBF\xBD \xC3\xA9");
  CHECK(json["level"] == "error");
  CHECK(json["task"] == "ps_server/1");
  CHECK(json["job"] == "j");
  CHECK(json["closure"] == "3");
  CHECK(json.contains("time"));
}

TEST_CASE("the ring keeps only the newest lines, and is read by number, time and job") {
  LogFile file;
  Options options;
  options.file = file.path();
  options.ring_lines_max = 10;
  Logger logger(options);
  for (int i = 1; i <= 25; ++i)
    logger.Info(absl::StrCat("line ", i), {i % 2 == 0 ? "even" : "odd", ""});
  const auto all = logger.Read(0, 0, "", 1000);
  REQUIRE(all.size() == 10);
  CHECK(all.front().number == 16);
  CHECK(all.back().text == "line 25");
  const auto newest = logger.Read(0, 0, "", 3);
  REQUIRE(newest.size() == 3);
  CHECK(newest.front().number == 23);
  CHECK(logger.Read(24, 0, "", 1000).size() == 1);
  CHECK(logger.Read(25, 0, "", 1000).empty());
  CHECK(logger.Read(0, 0, "even", 1000).size() == 5);
  CHECK(logger.Read(0, all.back().wall_ms + 1, "", 1000).empty());
}

TEST_CASE("a huge line is truncated, so that the ring is bounded in bytes") {
  LogFile file;
  Options options;
  options.file = file.path();
  Logger logger(options);
  logger.Info(std::string(100000, 'x'), {std::string(10000, 'j'), ""});
  const auto lines = logger.Read(0, 0, "", 10);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].text.size() <= 4096);
  CHECK(lines[0].job.size() <= 256);
}

}  // namespace
}  // namespace evergrad::log
