// Tests the message about a job that this life of the coordinator does not know.
#include "coordinator/service/life.h"

#include <catch2/catch.hpp>

#include <string>

using namespace evergrad;
using namespace evergrad::coordinator;
using Catch::Matchers::Contains;

namespace {

std::string Message(const Life& life, const char* job) {
  const absl::Status status = NoSuchJob(life, job);
  CHECK(absl::IsNotFound(status));
  return std::string(status.message());
}

}  // namespace

TEST_CASE("without a journal an unknown job's message states since when jobs are known") {
  Life life;
  life.term = Term(1);
  CHECK_THAT(Message(life, "a"), Contains("no such job: job=a; this coordinator was started at "
                                          "1970-01-01 00:00:00 UTC without a journal"));
  life.term = Term(2);
  CHECK_THAT(Message(life, "a"), Contains("the coordinator was restarted at"));
  CHECK_THAT(Message(life, ""), Contains("no job has been submitted"));
}

TEST_CASE("with a journal an unknown job's message names the list of jobs") {
  Life life;
  life.journaled = true;
  CHECK(Message(life, "a") == "no such job: job=a (psctl job list shows the known jobs)");
}

TEST_CASE("jobs may begin once the term is known and the window has closed") {
  Life life;
  CHECK_FALSE(life.serving());
  life.window_open = false;
  CHECK_FALSE(life.serving());
  life.term_known = true;
  CHECK(life.serving());
  life.window_open = true;
  CHECK_FALSE(life.serving());
}
