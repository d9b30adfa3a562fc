// Tests the client of a session message by message. The test acts as the coordinator, the clock is
// manual, and no call blocks.
#include "common/client/session_client.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/client/protocol.h"
#include "tests/support/manual_executor.h"
#include "tests/unit/common/client/scripted_transport_fixture.h"

namespace evergrad::client {
namespace {

using namespace std::chrono_literals;

log::Options Quiet() {
  log::Options options;
  options.file = "/dev/null";
  return options;
}

struct Stage {
  ManualClock clock;
  runtime::ManualExecutor executor{&clock};
  log::Logger logger{Quiet()};
  ScriptedTransport transport;
  std::vector<std::string> seen;
  std::unique_ptr<SessionClient> client;
  // Runs inside every event, after the event was recorded.
  std::function<void(absl::string_view event)> on_event;

  void See(std::string event) {
    seen.push_back(event);
    if (on_event) on_event(event);
  }

  explicit Stage(SessionClient::Options options = {}) {
    options.coordinator_address = "coordinator:1";
    SessionClient::Events events;
    events.make_hello = [] {
      v1::Hello hello;
      hello.set_role(v1::ROLE_WORKER);
      hello.set_identity("7");
      return hello;
    };
    events.make_heartbeat = [] { return v1::Heartbeat(); };
    events.on_registered = [this](const v1::Registered& r) {
      See(absl::StrCat("registered ", r.identity()));
    };
    events.on_message = [this](const v1::CoordinatorMessage& m) {
      See(absl::StrCat("message ", static_cast<int>(m.message_case())));
    };
    events.on_rejected = [this](const v1::Rejected& r) {
      See(absl::StrCat("rejected ", r.kind(), r.exit() ? " exit" : ""));
    };
    events.on_lost = [this](absl::string_view why) { See(absl::StrCat("lost ", why)); };
    client =
        std::make_unique<SessionClient>(&transport, &executor, &logger, options, std::move(events));
  }

  // ---- the coordinator's side
  Link& link() { return *transport.links.back(); }
  void Say(const v1::CoordinatorBatch& batch) { SayBytes(batch.SerializeAsString()); }
  void SayBytes(const std::string& bytes) {
    link().events.on_message(bytes);
    executor.RunReady();
  }
  void End(const absl::Status& status) {
    link().events.on_end(status);
    executor.RunReady();
  }
  static v1::CoordinatorBatch RegisteredBatch(std::uint32_t heartbeat_ms = 100) {
    v1::CoordinatorBatch batch;
    auto* registered = batch.add_messages()->mutable_registered();
    registered->set_term(2);
    registered->set_identity("7");
    registered->set_lease_ms(1500);
    registered->set_heartbeat_ms(heartbeat_ms);
    return batch;
  }
  static v1::CoordinatorBatch DropBatch() {
    v1::CoordinatorBatch batch;
    batch.add_messages()->mutable_drop()->set_shard(4);
    return batch;
  }
  void Register() {
    Say(RegisteredBatch());
    REQUIRE(client->registered());
  }
  std::vector<v1::TaskMessage> Received() {
    std::vector<v1::TaskMessage> all;
    for (const std::string& bytes : link().sent) {
      v1::TaskBatch batch;
      REQUIRE(batch.ParseFromString(bytes));
      for (const auto& m : batch.messages()) all.push_back(m);
    }
    return all;
  }
  std::vector<std::string> LogTexts() {
    std::vector<std::string> texts;
    for (const auto& line : logger.Read(0, 0, "", 1000)) texts.push_back(line.text);
    return texts;
  }
  int LinesWith(const std::string& words) {
    int n = 0;
    for (const auto& text : LogTexts()) n += text.find(words) != std::string::npos;
    return n;
  }
};

v1::TaskMessage DoneMessage(std::uint64_t closure) {
  v1::TaskMessage message;
  message.mutable_done()->set_closure(closure);
  return message;
}

TEST_CASE(
    "the first message to the coordinator holds one Hello with version and build, and nothing "
    "else") {
  Stage stage;
  stage.client->Start();
  REQUIRE(stage.transport.methods == std::vector<std::string>{"/evergrad.v1.Coordinator/Session"});
  const auto received = stage.Received();
  REQUIRE(received.size() == 1);
  CHECK(received[0].hello().identity() == "7");
  CHECK(received[0].hello().protocol_version() == kProtocolVersion);
  CHECK(!received[0].hello().build_id().empty());
  CHECK_FALSE(stage.client->registered());
  CHECK_FALSE(stage.client->Send(DoneMessage(1)));  // The task is not registered yet.
  stage.Register();
  CHECK(stage.seen == std::vector<std::string>{"registered 7"});
}

TEST_CASE("messages of one turn are sent as one batch, in order") {
  Stage stage;
  stage.client->Start();
  stage.Register();
  for (std::uint64_t c = 0; c < 5; ++c) CHECK(stage.client->Send(DoneMessage(c)));
  // Only the Hello and the first heartbeat were sent, because the executor has not run since the
  // calls.
  CHECK(stage.link().sent.size() == 2);
  stage.executor.RunReady();
  REQUIRE(stage.link().sent.size() == 3);
  const auto received = stage.Received();
  REQUIRE(received.size() == 7);
  for (std::uint64_t c = 0; c < 5; ++c) CHECK(received[c + 2].done().closure() == c);
  CHECK(stage.client->Send(DoneMessage(9)));
  stage.executor.RunReady();
  CHECK(stage.link().sent.size() == 4);
}

TEST_CASE("a batch stays within its limit, and a message above the limit is refused") {
  SessionClient::Options options;
  options.channel.message_bytes_max = 10000;
  Stage stage(options);
  stage.client->Start();
  stage.Register();
  v1::TaskMessage large;
  large.mutable_log_lines()->add_lines()->set_text(std::string(4000, 'x'));
  for (int i = 0; i < 10; ++i) CHECK(stage.client->Send(large));
  stage.executor.RunReady();
  for (const std::string& bytes : stage.link().sent) CHECK(bytes.size() <= 10000);
  CHECK(stage.Received().size() == 12);  // including the Hello and the first heartbeat
  v1::TaskMessage huge;
  huge.mutable_log_lines()->add_lines()->set_text(std::string(10001, 'x'));
  CHECK_FALSE(stage.client->Send(huge));
  CHECK(stage.client->registered());
  CHECK(stage.LinesWith("too large") == 1);
}

TEST_CASE("a task sends its first heartbeat as soon as it is registered") {
  Stage stage;
  stage.client->Start();
  stage.Register();
  const auto received = stage.Received();
  REQUIRE(received.size() == 2);
  CHECK(received[1].heartbeat().sequence() == 1);
}

TEST_CASE("each heartbeat has the cloud's latest recommendation") {
  std::string recommendation;
  SessionClient::Options options;
  options.recommendation = [&] { return recommendation; };
  Stage stage(options);
  stage.client->Start();
  stage.Register();
  recommendation = "leave";
  stage.executor.Advance(150ms);
  v1::TaskMessage own;  // a heartbeat that the daemon sends by itself
  own.mutable_heartbeat()->mutable_worker();
  REQUIRE(stage.client->Send(own));
  stage.executor.RunReady();
  const auto received = stage.Received();
  REQUIRE(received.size() == 4);
  CHECK(received[1].heartbeat().recommendation().empty());
  CHECK(received[2].heartbeat().recommendation() == "leave");
  CHECK(received[3].heartbeat().has_worker());
  CHECK(received[3].heartbeat().recommendation() == "leave");
}

TEST_CASE("heartbeats are numbered and follow at the coordinator's interval") {
  Stage stage;
  stage.client->Start();
  stage.Register();
  stage.executor.Advance(350ms);
  const auto received = stage.Received();
  REQUIRE(received.size() == 5);
  for (std::uint64_t i = 1; i <= 4; ++i) CHECK(received[i].heartbeat().sequence() == i);
  stage.End(absl::UnavailableError("gone"));
  Link& old = stage.link();
  const std::size_t before = old.sent.size();
  stage.executor.Advance(20ms);
  CHECK(old.sent.size() == before);  // No heartbeat is sent in a lost session.
}

TEST_CASE("a lost session is reported once and redialed, and its Hello is built anew") {
  Stage stage;
  stage.client->Start();
  stage.Register();
  CHECK(stage.client->Send(DoneMessage(1)));
  stage.End(absl::UnavailableError("socket closed"));
  CHECK(stage.seen == std::vector<std::string>{"registered 7", "lost UNAVAILABLE: socket closed"});
  CHECK_FALSE(stage.client->registered());
  CHECK_FALSE(stage.client->Send(DoneMessage(2)));
  CHECK(stage.transport.links.size() == 1);
  stage.executor.Advance(50ms);
  REQUIRE(stage.transport.links.size() == 2);
  REQUIRE(stage.Received().size() == 1);
  CHECK(stage.Received()[0].has_hello());  // Nothing of the old session's queue is sent.
  stage.Register();
  CHECK(stage.seen.back() == "registered 7");
}

TEST_CASE(
    "the client redials without end, with delays that rise to a limit, and logs each change of the "
    "reason once") {
  Stage stage;
  stage.client->Start();
  std::vector<MonoTime> dials;
  std::size_t known = 0;
  // A coordinator refuses for ten minutes. In each attempt the text of the refusal differs, but the
  // reason is the same.
  while (stage.clock.Now() < 600s) {
    if (stage.transport.links.size() > known) {
      known = stage.transport.links.size();
      dials.push_back(stage.clock.Now());
      stage.End(absl::UnavailableError(absl::StrCat("connection refused, try ", known)));
    }
    stage.executor.Advance(5ms);
  }
  CHECK(dials.size() >= 600);           // Two dials are at most a second apart.
  CHECK(dials.size() <= 2 * 600 + 20);  // After the first dials: at least half a second.
  CHECK(dials[1] - dials[0] <= 50ms + 5ms);
  CHECK(stage.LinesWith("waiting for the coordinator") == 1);
  CHECK(stage.LinesWith("address=coordinator:1") == 1);
  CHECK(stage.seen.empty());
  // The reason changes, so one more line must be logged.
  for (int i = 0; i < 3; ++i) {
    stage.End(absl::UnauthenticatedError("wrong CA"));
    stage.executor.Advance(1s);
  }
  CHECK(stage.LinesWith("waiting for the coordinator") == 2);
  CHECK(stage.LinesWith("wrong CA") == 1);
  stage.Register();
  CHECK(stage.LinesWith("registered with the coordinator") == 1);
  // The session is lost after it was registered. The first redial must then be quick again, and the
  // log must say again that the client waits.
  stage.executor.Advance(5s);
  stage.End(absl::UnavailableError("gone"));
  const std::size_t before = stage.transport.links.size();
  stage.executor.Advance(50ms);
  CHECK(stage.transport.links.size() == before + 1);
  stage.End(absl::UnavailableError("connection refused"));
  CHECK(stage.LinesWith("waiting for the coordinator") == 3);
}

TEST_CASE("a coordinator that registers and disconnects at once is not dialed in a tight loop") {
  Stage stage;
  stage.client->Start();
  std::size_t known = 0;
  while (stage.clock.Now() < 60s) {
    if (stage.transport.links.size() > known) {
      known = stage.transport.links.size();
      stage.Register();
      stage.End(absl::OkStatus());
    }
    stage.executor.Advance(5ms);
  }
  CHECK(known <= 2 * 60 + 20);
  CHECK(known >= 60);
}

TEST_CASE("a Hello without an answer is abandoned and repeated") {
  Stage stage;
  stage.client->Start();
  stage.executor.Advance(4999ms);
  CHECK(stage.transport.links.size() == 1);
  stage.executor.Advance(60ms);
  REQUIRE(stage.transport.links.size() == 2);
  CHECK_FALSE(stage.transport.links[0]->open);
  CHECK(stage.LinesWith("the coordinator does not answer the Hello") == 1);
  // Later messages of the first link are ignored.
  stage.transport.links[0]->events.on_message(Stage::RegisteredBatch().SerializeAsString());
  stage.transport.links[0]->events.on_end(absl::OkStatus());
  stage.executor.RunReady();
  CHECK(stage.seen.empty());
  CHECK(stage.transport.links.size() == 2);
  stage.Register();
}

TEST_CASE("a malformed message ends the session, and the process continues") {
  v1::CoordinatorBatch empty_message;
  empty_message.add_messages();
  v1::CoordinatorBatch no_heartbeat = Stage::RegisteredBatch(0);
  v1::CoordinatorBatch no_term = Stage::RegisteredBatch();
  no_term.mutable_messages(0)->mutable_registered()->set_term(0);
  const std::string garbage = "\xFF\xFF\xFF garbage";
  SECTION("before the registration") {
    for (const std::string& bytes :
         {garbage, empty_message.SerializeAsString(), no_heartbeat.SerializeAsString(),
          no_term.SerializeAsString(), Stage::DropBatch().SerializeAsString()}) {
      Stage stage;
      stage.client->Start();
      stage.SayBytes(bytes);
      CHECK(stage.seen.empty());
      CHECK_FALSE(stage.link().open);
      CHECK(stage.LinesWith("malformed message from the coordinator") == 1);
      stage.executor.Advance(50ms);
      REQUIRE(stage.transport.links.size() == 2);
      stage.Register();
    }
  }
  SECTION("after the registration") {
    for (const std::string& bytes : {garbage, empty_message.SerializeAsString(),
                                     Stage::RegisteredBatch().SerializeAsString()}) {
      Stage stage;
      stage.client->Start();
      stage.Register();
      stage.SayBytes(bytes);
      REQUIRE(stage.seen.size() == 2);
      CHECK_THAT(stage.seen[1], Catch::StartsWith("lost malformed message from the coordinator"));
      stage.executor.Advance(50ms);
      stage.Register();
    }
  }
  SECTION("the messages before it in the batch are accepted, and those behind it are not") {
    Stage stage;
    stage.client->Start();
    v1::CoordinatorBatch batch = Stage::RegisteredBatch();
    batch.add_messages()->mutable_drop();
    batch.add_messages();
    batch.add_messages()->mutable_drop();
    stage.Say(batch);
    REQUIRE(stage.seen.size() == 3);
    CHECK(stage.seen[1] ==
          absl::StrCat("message ", static_cast<int>(v1::CoordinatorMessage::kDrop)));
    CHECK_THAT(stage.seen[2], Catch::StartsWith("lost malformed"));
  }
}

TEST_CASE("a temporary refusal is waited out, and a permanent refusal ends the dialing") {
  Stage stage;
  stage.client->Start();
  v1::CoordinatorBatch batch;
  auto* rejected = batch.add_messages()->mutable_rejected();
  rejected->set_kind("identity_taken");
  rejected->set_message("worker/7 is alive");
  rejected->set_retry_after_ms(700);
  stage.Say(batch);
  CHECK(stage.seen == std::vector<std::string>{"rejected identity_taken"});
  CHECK(stage.LinesWith("identity_taken: worker/7 is alive") == 1);
  stage.executor.Advance(699ms);
  CHECK(stage.transport.links.size() == 1);
  stage.executor.Advance(1ms);
  REQUIRE(stage.transport.links.size() == 2);
  stage.Say(batch);
  CHECK(stage.LinesWith("identity_taken: worker/7 is alive") == 1);  // This is logged once.
  stage.executor.Advance(700ms);
  stage.Register();
  rejected->set_kind("replaced");
  rejected->set_exit(true);
  stage.seen.clear();
  stage.Say(batch);
  CHECK(stage.seen ==
        std::vector<std::string>{"lost replaced: worker/7 is alive", "rejected replaced exit"});
  const std::size_t dials = stage.transport.links.size();
  stage.executor.Advance(1h);
  CHECK(stage.transport.links.size() == dials);
}

TEST_CASE("a coordinator that does not read ends the session, but not inside Send") {
  Stage stage;
  stage.client->Start();
  stage.Register();
  stage.link().refuse_sends = absl::ResourceExhaustedError("unsent bytes");
  CHECK(stage.client->Send(DoneMessage(1)));
  CHECK(stage.seen.size() == 1);
  stage.executor.RunReady();
  REQUIRE(stage.seen.size() == 2);
  CHECK_THAT(stage.seen[1], Catch::Contains("unsent bytes"));
  stage.executor.Advance(50ms);
  stage.Register();
  // The bytes that the old session had not sent are not counted in the new session.
  CHECK(stage.client->Send(DoneMessage(1)));
}

TEST_CASE(
    "Stop sends the queued messages and closes the session, and no callback runs afterwards") {
  Stage stage;
  stage.client->Start();
  stage.Register();
  v1::TaskMessage leaving;
  leaving.mutable_leaving()->set_reason("SIGTERM");
  CHECK(stage.client->Send(leaving));
  const auto link = stage.transport.links.back();
  stage.client->Stop();
  CHECK(stage.Received().back().leaving().reason() == "SIGTERM");
  CHECK_FALSE(link->open);
  link->events.on_message(Stage::DropBatch().SerializeAsString());
  link->events.on_end(absl::OkStatus());
  stage.executor.Advance(1h);
  CHECK(stage.seen == std::vector<std::string>{"registered 7"});
  CHECK(stage.transport.links.size() == 1);
  CHECK_FALSE(stage.client->Send(leaving));
  stage.client->Stop();
  stage.client.reset();
  link->events.on_end(absl::OkStatus());
  stage.executor.Advance(1h);
}

TEST_CASE("an event may stop or destroy the client") {
  const std::string when = GENERATE("registered 7", "lost UNAVAILABLE: x", "rejected version exit",
                                    "rejected version", "message 9");
  const bool destroy = GENERATE(false, true);
  CAPTURE(when, destroy);
  Stage stage;
  stage.on_event = [&](absl::string_view event) {
    if (event != when) return;
    if (destroy)
      stage.client.reset();
    else
      stage.client->Stop();
  };
  stage.client->Start();
  v1::CoordinatorBatch batch = Stage::RegisteredBatch();
  batch.add_messages()->mutable_drop();
  batch.add_messages()->mutable_drop();
  if (when == "message 9") REQUIRE(static_cast<int>(v1::CoordinatorMessage::kDrop) == 9);
  if (when.find("rejected") == 0) {
    v1::CoordinatorBatch refusal;
    refusal.add_messages()->mutable_rejected()->set_kind("version");
    refusal.mutable_messages(0)->mutable_rejected()->set_exit(when.find("exit") !=
                                                              std::string::npos);
    stage.Say(refusal);
  } else {
    stage.Say(batch);
    if (when[0] == 'l') stage.End(absl::UnavailableError("x"));
  }
  CHECK(stage.seen.back() == when);
  const std::size_t events = stage.seen.size(), dials = stage.transport.links.size();
  stage.executor.Advance(1h);
  CHECK(stage.seen.size() == events);
  CHECK(stage.transport.links.size() == dials);
}

TEST_CASE("the client also waits for certificates that cannot be read") {
  Stage stage;
  stage.transport.refuse_dials = absl::InvalidArgumentError("cannot read certificate: file=ca.pem");
  stage.client->Start();
  stage.executor.Advance(10s);
  CHECK(stage.LinesWith("file=ca.pem") == 1);
  stage.transport.refuse_dials = absl::OkStatus();
  stage.executor.Advance(1s);
  stage.Register();
}

}  // namespace
}  // namespace evergrad::client
