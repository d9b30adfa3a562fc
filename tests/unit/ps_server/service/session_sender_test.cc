#include "ps_server/service/session_sender.h"

#include <catch2/catch.hpp>
#include <vector>

namespace evergrad::ps_server {
namespace {

struct Fixture {
  bool connected = false;
  std::vector<v1::TaskMessage> sent;
  SessionSender sender{[this](v1::TaskMessage message) {
    if (connected) sent.push_back(std::move(message));
    return connected;
  }};

  static v1::Assigned AssignedOf(std::uint64_t job, std::uint32_t shard, bool ok = true) {
    v1::Assigned assigned;
    assigned.set_job_uid(job);
    assigned.set_shard(shard);
    assigned.set_ok(ok);
    return assigned;
  }
  void Connect() {
    connected = true;
    sender.Begin();
  }
};

TEST_CASE_METHOD(Fixture, "an answer is sent only in the session of its order") {
  Connect();
  const std::uint64_t session = sender.session();
  sender.SendIn(session, {});
  CHECK(sent.size() == 1);
  sender.End();
  sender.SendIn(session, {});
  CHECK(sent.size() == 1);
  Connect();
  sender.SendIn(session, {});
  CHECK(sent.size() == 1);
  sender.SendIn(sender.session(), {});
  CHECK(sent.size() == 2);
}

TEST_CASE_METHOD(Fixture,
                 "Assigned is kept without a session, the newest of each shard, in order") {
  sender.SendAssigned(AssignedOf(1, 7, false));
  sender.SendAssigned(AssignedOf(1, 3));
  sender.SendAssigned(AssignedOf(1, 7, true));
  Connect();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].assigned().shard() == 3);
  CHECK(sent[1].assigned().shard() == 7);
  CHECK(sent[1].assigned().ok());
  Connect();
  CHECK(sent.size() == 2);  // no message is sent a second time
}

TEST_CASE_METHOD(Fixture, "kept answers end with their job") {
  sender.SendAssigned(AssignedOf(1, 3));
  sender.SendAssigned(AssignedOf(2, 3));
  sender.ForgetJob(JobUid(1));
  Connect();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].assigned().job_uid() == 2);
}

}  // namespace
}  // namespace evergrad::ps_server
