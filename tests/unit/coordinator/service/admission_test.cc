// Tests when the coordinator handles a Hello. The Hello may have to wait for the end of the
// start-up window, may show a higher term (LEDGER line 18), or may name jobs that the journal has
// lost (line 18a).
#include "coordinator/service/admission.h"

#include "service_stage.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

// A coordinator that has just begun a life, so that its start-up window is open.
struct Starting : ServiceStage {
  Starting() {
    life = Life{.id = 9};
    options.window = std::chrono::milliseconds(100);
    admission.Start();
  }
  std::shared_ptr<TaskStream> Hello(const v1::Hello& hello) {
    Session& session = Connect();
    admission.OnHello(session, hello);
    Run();
    return stream;
  }
  void EndWindow() {
    clock.Advance(std::chrono::milliseconds(100));
    admission.Tick();
    Run();
  }
};

}  // namespace

TEST_CASE("tasks wait for the end of the window, and the servers are registered first") {
  Starting stage;
  const auto worker = stage.Hello(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1));
  const auto server = stage.Hello(ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 2));
  stage.admission.Tick();
  CHECK(worker->down.empty());
  CHECK(stage.windows == 0);
  stage.EndWindow();
  CHECK(stage.windows == 1);
  REQUIRE(worker->Kinds() == "registered");
  REQUIRE(server->Kinds() == "registered");
  CHECK(server->down[0].registered().registration().n() <
        worker->down[0].registered().registration().n());
  CHECK(stage.life.serving());
}

TEST_CASE("the term is above every term that a task has reported") {
  Starting stage;
  v1::Hello hello = ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1);
  hello.set_highest_term(6);
  stage.Hello(hello);
  v1::Hello server = ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 2);
  server.add_shards()->mutable_epoch()->set_term(8);
  stage.Hello(server);
  stage.EndWindow();
  CHECK(stage.life.term.value() > 8);
  CHECK(stage.store.term() == stage.life.term);
}

TEST_CASE("a task that reports a later life makes all tasks register again under a new term") {
  ServiceStage stage;
  stage.store.CommitTerm(Term(1)).IgnoreError();
  stage.Register(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1));
  const auto registered = stage.stream;
  Session& session = stage.Connect();
  v1::Hello hello = ServiceStage::HelloOf(v1::ROLE_WORKER, "1", 2);
  hello.set_highest_term(5);
  hello.set_life_id(1234);
  stage.admission.OnHello(session, hello);
  stage.Run();
  CHECK(registered->rejected().kind() == "not_active");
  CHECK(stage.life.term.value() > 5);
  CHECK(stage.life.window_open);
  CHECK_FALSE(session.registered());  // a worker is registered only after the window
  CHECK(stage.sessions.deferred().size() == 1);
}

TEST_CASE("another protocol version and a malformed Hello are refused without a registration") {
  ServiceStage stage;
  v1::Hello hello = ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 1);
  hello.set_protocol_version(client::kProtocolVersion + 1);
  stage.admission.OnHello(stage.Connect(), hello);
  CHECK(stage.stream->rejected().kind() == "version");
  CHECK(stage.metrics.malformed.value() == 0);
  stage.admission.OnHello(stage.Connect(), v1::Hello());
  CHECK(stage.stream->rejected().kind() == "version");
  hello = ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 1);
  hello.clear_endpoint();
  stage.admission.OnHello(stage.Connect(), hello);
  CHECK(stage.stream->rejected().kind() == "malformed");
  CHECK(stage.metrics.malformed.value() == 1);
  CHECK(stage.membership.living() == 0);
}

TEST_CASE("a Hello that its certificate does not permit changes neither the term nor the window") {
  for (const char* certificate : {"viewer/eve", "user/eve", "worker/7", "ps_server/1", "admin"}) {
    CAPTURE(certificate);
    ServiceStage stage;
    stage.store.CommitTerm(Term(1)).IgnoreError();
    Session& session = stage.Connect();
    session.peer.certificate_task = certificate;
    v1::Hello hello = ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 2);
    hello.set_highest_term(5);
    hello.set_life_id(1234);
    stage.admission.OnHello(session, hello);
    stage.Run();
    CHECK(stage.stream->rejected().kind() == "certificate");
    CHECK(stage.life.term == Term(1));
    CHECK(stage.life.highest_reported == 0);
    CHECK_FALSE(stage.life.window_open);
    CHECK(stage.membership.living() == 0);
  }
}

TEST_CASE(
    "a life that would drop shards of another coordinator's job ends before its first message") {
  Starting stage;
  v1::Hello server = ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 2);
  server.set_journaled(true);
  server.add_shards()->set_job_uid(77);
  const auto stream = stage.Hello(server);
  stage.EndWindow();
  CHECK(stream->Kinds() == "rejected");
  CHECK(stream->rejected().kind() == "lost_journal");
  CHECK(absl::IsDataLoss(stage.end));
  CHECK(stage.windows == 0);
  const auto late = stage.Hello(ServiceStage::HelloOf(v1::ROLE_WORKER, "0", 3));
  CHECK(late->rejected().kind() == "lost_journal");
}

TEST_CASE("a late server of a lost job is refused alone while jobs live") {
  ServiceStage stage;
  stage.Submit(11, "a");
  v1::Hello server = ServiceStage::HelloOf(v1::ROLE_PS_SERVER, "0", 2);
  server.set_journaled(true);
  server.add_shards()->set_job_uid(77);
  stage.admission.OnHello(stage.Connect(), server);
  CHECK(stage.stream->rejected().kind() == "lost_journal");
  CHECK(stage.end.ok());
  CHECK_FALSE(stage.life.over);
}
