#include "common/client/log_lines.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace evergrad::client {
namespace {

std::vector<v1::TaskMessage> Answer(const log::Logger& logger, const v1::ReadLogs& request) {
  std::vector<v1::TaskMessage> sent;
  AnswerReadLogs(logger, request,
                 [&](v1::TaskMessage message) { sent.push_back(std::move(message)); });
  return sent;
}

log::Options Quiet() {
  log::Options options;
  options.file = "/dev/null";
  return options;
}

TEST_CASE(
    "log lines are answered newest last, in messages of bounded size, and the last message is "
    "marked") {
  log::Logger logger(Quiet());
  logger.SetTask("ps_server/3");
  v1::ReadLogs request;
  request.set_request_id(7);
  auto sent = Answer(logger, request);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].log_lines().request_id() == 7);
  CHECK(sent[0].log_lines().end());
  CHECK(sent[0].log_lines().lines().empty());

  const int lines = 1000;
  for (int i = 0; i < lines; ++i)
    logger.Error(std::to_string(i) + std::string(3000, 'x'), {.job = i % 2 == 0 ? "even" : "odd"});
  sent = Answer(logger, request);
  REQUIRE(sent.size() > 3);
  int next = 0;
  for (std::size_t m = 0; m < sent.size(); ++m) {
    CHECK(sent[m].log_lines().request_id() == 7);
    CHECK(sent[m].log_lines().end() == (m + 1 == sent.size()));
    CHECK(sent[m].ByteSizeLong() < (1u << 20));
    for (const v1::LogLine& line : sent[m].log_lines().lines()) {
      CHECK(line.text().rfind(std::to_string(next++) + "x", 0) == 0);
      CHECK(line.level() == "error");
      CHECK(line.task() == "ps_server/3");
    }
  }
  CHECK(next == lines);

  request.set_lines_max(3);
  request.set_job("even");
  sent = Answer(logger, request);
  REQUIRE(sent.size() == 1);
  REQUIRE(sent[0].log_lines().lines_size() == 3);
  CHECK(sent[0].log_lines().lines(0).text().rfind("994x", 0) == 0);
  CHECK(sent[0].log_lines().lines(2).text().rfind("998x", 0) == 0);
  CHECK(sent[0].log_lines().lines(2).job() == "even");
}

// A proto3 string must be UTF-8. Otherwise the receiver cannot parse the whole message.
TEST_CASE("the receiver can read lines that are long or not UTF-8") {
  log::Logger logger(Quiet());
  logger.Info("\xff" + std::string(100000, 'y'), {.job = "\xfe"});
  v1::TaskMessage read;
  REQUIRE(read.ParseFromString(Answer(logger, {}).at(0).SerializeAsString()));
  REQUIRE(read.log_lines().lines_size() == 1);
  CHECK(read.log_lines().lines(0).text().size() <= 4096);
  CHECK(read.log_lines().lines(0).text().rfind("\xEF\xBF\xBDyyy", 0) == 0);
  CHECK(read.log_lines().lines(0).job() == "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace evergrad::client
