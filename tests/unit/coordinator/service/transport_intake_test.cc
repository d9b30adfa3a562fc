// Tests the handlers that the control plane gives to the transport. The test calls these handlers
// in place of the transport.
#include "coordinator/service/transport_intake.h"

#include "service_stage.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

struct Stage : ServiceStage {
  Stage() {
    options.calls_max = 2;
    options.batches_queued_max = 2;
    options.membership.tasks_max = 0;  // the table then has space for 64 sessions
  }
  TransportIntake::Receiver Receive() {
    return {
        .on_session = [this](std::uint64_t session, transport::PeerInfo,
                             std::shared_ptr<transport::MessageStream>) { Add("open", session); },
        .on_batch =
            [this](std::uint64_t session, const v1::TaskBatch* batch) {
              Add(batch == nullptr ? "malformed" : "batch", session);
            },
        .on_overflow = [this](std::uint64_t session) { Add("overflow", session); },
        .on_end = [this](std::uint64_t session) { Add("end", session); },
        .on_call =
            [this](const ControlCall& call, const Caller& caller, const std::string& request,
                   const Responder& responder) {
              absl::StrAppend(&log, call.name(), " ", request,
                              caller.task.empty() ? "" : absl::StrCat(" of ", caller.task), "; ");
              kept.push_back(responder);
            }};
  }
  void Add(const char* what, std::uint64_t session) {
    absl::StrAppend(&log, what, " ", session, "; ");
  }
  std::optional<transport::MessageStreamEvents> Open() {
    return intake.handlers().stream({}, client::kSessionMethod, std::make_shared<TaskStream>());
  }
  // Makes a call. Returns its answer, or Unknown if it has none yet.
  absl::Status Call(const char* method, const std::string& certificate = "") {
    struct Shared final : transport::UnaryResponder {
      explicit Shared(std::shared_ptr<absl::Status> to) : status(std::move(to)) {}
      void Answer(absl::StatusOr<std::string> response) override { *status = response.status(); }
      std::shared_ptr<absl::Status> status;
    };
    auto status = std::make_shared<absl::Status>(absl::UnknownError("open"));
    transport::PeerInfo peer;
    peer.certificate_task = certificate;
    intake.handlers().unary(peer, method, "x", std::make_unique<Shared>(status));
    Run();
    return *status;
  }
  std::string log;
  std::vector<Responder> kept;
  TransportIntake intake{parts, Receive()};
};

}  // namespace

TEST_CASE("the events of a session arrive on the control executor in order") {
  Stage stage;
  const auto events = stage.Open();
  REQUIRE(events);
  events->on_message(v1::TaskBatch().SerializeAsString());
  events->on_message("\xff\xff");
  events->on_end(absl::OkStatus());
  CHECK(stage.log.empty());
  stage.Run();
  CHECK(stage.log == "open 1; batch 1; malformed 1; end 1; ");
}

TEST_CASE(
    "a session with too many unhandled batches overflows once, and later batches are refused") {
  Stage stage;
  const auto events = stage.Open();
  REQUIRE(events);
  for (int i = 0; i < 4; ++i) events->on_message("");
  stage.Run();
  CHECK(stage.log == "open 1; batch 1; batch 1; overflow 1; ");
  events->on_message("");
  stage.Run();
  CHECK(stage.log == "open 1; batch 1; batch 1; overflow 1; ");
}

TEST_CASE("sessions beyond the limit are refused until one has ended") {
  Stage stage;
  for (int i = 0; i < 64; ++i) CHECK(stage.Open());
  CHECK_FALSE(stage.Open());
  CHECK(stage.metrics.sessions.refused.value() == 1);
  stage.intake.SessionsClosed(1);
  CHECK(stage.Open());
  CHECK_FALSE(stage.Open());
  CHECK_FALSE(stage.intake.handlers().stream({}, "/other", std::make_shared<TaskStream>()));
}

TEST_CASE("calls above the limit and unknown methods are refused before they reach the executor") {
  Stage stage;
  const char* const method = "/evergrad.v1.Control/ListJobs";
  CHECK(absl::IsUnknown(stage.Call(method)));
  CHECK(absl::IsUnknown(stage.Call(method)));
  CHECK(stage.intake.calls() == 2);
  CHECK(absl::IsResourceExhausted(stage.Call(method)));
  CHECK(stage.metrics.calls.refused.value() == 1);
  CHECK(absl::IsUnimplemented(stage.Call("/evergrad.v1.Control/Nothing")));
  CHECK(stage.log == "ListJobs x; ListJobs x; ");
  stage.kept.clear();  // a call ends when its responder is destroyed
  CHECK(stage.intake.calls() == 0);
  CHECK(absl::IsUnknown(stage.Call(method)));
}

TEST_CASE("a call of another role is refused, written to the audit log and never posted") {
  Stage stage;
  CHECK(absl::IsPermissionDenied(stage.Call("/evergrad.v1.Control/DrainTask", "user/alice")));
  CHECK(stage.log.empty());
  CHECK(stage.intake.calls() == 0);
  CHECK(stage.AuditLines() ==
        std::vector<std::string>{"audit: action=DrainTask caller=user/alice peer=- object=- "
                                 "result=PERMISSION_DENIED: certificate is for user/alice, "
                                 "expected admin"});
  CHECK(absl::IsUnknown(stage.Call("/evergrad.v1.Control/DrainTask", "admin/carol")));
  CHECK(stage.log == "DrainTask x of admin/carol; ");
  CHECK(stage.AuditLines().size() == 1);
}
