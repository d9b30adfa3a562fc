// Tests the lines of the audit log, and the limits of their number.
#include "coordinator/service/audit_log.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "tests/support/manual_executor.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

using Lines = std::vector<std::string>;
constexpr auto kSecond = std::chrono::seconds(1);

struct Stage {
  Lines Take() {
    Lines lines;
    for (const log::Line& line : logger.Read(seen, 0, "", 10000)) {
      CHECK(line.level == log::Level::kInfo);
      lines.push_back(line.text);
      seen = line.number;
    }
    return lines;
  }
  void Cancel(const std::string& caller, const std::string& object, const absl::Status& result,
              const std::string& address = "ipv4:10.0.0.7:51022") {
    audit.Write({"CancelJob", {caller, address}, object}, result);
  }

  ManualClock clock;
  log::Logger logger{[] {
    log::Options options;
    options.file = "/dev/null";
    return options;
  }()};
  AuditLog audit{&logger,
                 &clock,
                 {.failed_burst = 3,
                  .failed_per_second = 1,
                  .repeated_within = std::chrono::seconds(60),
                  .remembered_max = 3}};
  std::uint64_t seen = 0;
};

// A responder that keeps its answer.
struct Kept final : transport::UnaryResponder {
  explicit Kept(absl::Status* to) : status(to) {}
  void Answer(absl::StatusOr<std::string> response) override { *status = response.status(); }
  absl::Status* status;
};

}  // namespace

TEST_CASE("a line has action, caller, address, object and result") {
  Stage stage;
  stage.Cancel("user/alice", "mnist/00000000000000a1", absl::OkStatus());
  stage.Cancel("user/bob", "mnist/00000000000000a1", absl::PermissionDeniedError("not yours"));
  stage.Cancel("", "", absl::OkStatus(), "");
  CHECK(stage.Take() == Lines{"audit: action=CancelJob caller=user/alice peer=ipv4:10.0.0.7:51022 "
                              "object=mnist/00000000000000a1 result=ok",
                              "audit: action=CancelJob caller=user/bob peer=ipv4:10.0.0.7:51022 "
                              "object=mnist/00000000000000a1 result=PERMISSION_DENIED: not yours",
                              "audit: action=CancelJob caller=- peer=- object=- result=ok"});
}

TEST_CASE("text of a caller is one value of the line, whatever it contains") {
  const std::pair<const char*, const char*> cases[] = {
      {"worker/gpu-a.3", "worker/gpu-a.3"},
      {"a result=ok", R"("a result=ok")"},
      {"a\nb", R"(a\nb)"},
      {"x\" caller=admin", R"("x\" caller=admin")"},
      {"x=\\", R"("x=\\")"},
      {"\xff\x1b[2J", R"(\xff\x1b[2J)"},
      {"caf\u00e9", "\"caf\u00e9\""},
      {"a\u00a0b", "\"a\u00a0b\""},
      {"\u202e", R"(\u202e)"},
  };
  for (const auto& [text, shown] : cases) {
    CAPTURE(text);
    Stage stage;
    stage.Cancel("user/a", text, absl::OkStatus());
    CHECK(stage.Take() == Lines{absl::StrCat("audit: action=CancelJob caller=user/a "
                                             "peer=ipv4:10.0.0.7:51022 object=",
                                             shown, " result=ok")});
  }
  Stage stage;
  stage.Cancel("user/a", std::string(5000, 'x'), absl::NotFoundError(std::string(5000, 'y')));
  const Lines lines = stage.Take();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].size() < 1000);
  CHECK_THAT(lines[0], Catch::Contains("x\u2026\" result=NOT_FOUND: yy"));
}

TEST_CASE("refused and failed calls beyond the rate are counted, and their number is logged") {
  Stage stage;
  const absl::Status refused = absl::PermissionDeniedError("no");
  for (int i = 0; i < 10; ++i) stage.Cancel("user/eve", absl::StrCat("job-", i), refused);
  CHECK(stage.Take().size() == 3);
  stage.audit.Tick();
  CHECK(stage.Take().empty());
  // Successful calls have their lines, however many calls fail.
  stage.Cancel("user/alice", "mnist", absl::OkStatus());
  CHECK(stage.Take().size() == 1);
  stage.clock.Advance(kSecond);
  stage.Cancel("user/eve", "job-x", refused);
  CHECK(
      stage.Take() ==
      Lines{"audit: lines about refused or failed calls were left out: caller=user/eve left_out=7",
            "audit: action=CancelJob caller=user/eve peer=ipv4:10.0.0.7:51022 object=job-x "
            "result=PERMISSION_DENIED: no"});
  stage.Cancel("user/eve", "job-y", refused);
  stage.audit.Tick();
  CHECK(stage.Take().empty());
  stage.clock.Advance(kSecond);
  stage.audit.Tick();
  CHECK(
      stage.Take() ==
      Lines{
          "audit: lines about refused or failed calls were left out: caller=user/eve left_out=1"});
  stage.clock.Advance(100 * kSecond);
  stage.audit.Tick();
  CHECK(stage.Take().empty());
  for (int i = 0; i < 10; ++i) stage.Cancel("user/eve", absl::StrCat("job-", i), refused);
  CHECK(stage.Take().size() == 3);  // no more than the burst, however long nothing was refused
}

TEST_CASE("a successful call that a caller repeats within a minute has one line") {
  Stage stage;
  const auto ok = absl::OkStatus();
  stage.Cancel("user/alice", "a", ok);
  stage.Cancel("user/alice", "a", ok, "ipv4:10.0.0.7:51023");
  CHECK(stage.Take().size() == 1);
  stage.Cancel("user/bob", "c", ok);
  stage.Cancel("user/alice", "b", ok);
  CHECK(stage.Take().size() == 2);
  stage.clock.Advance(59 * kSecond);
  stage.Cancel("user/alice", "a", ok);
  CHECK(stage.Take().empty());
  stage.clock.Advance(kSecond);
  stage.Cancel("user/alice", "a", ok);
  CHECK(stage.Take().size() == 1);
  // The limit of the remembered calls may only cause lines, not prevent them.
  for (int i = 0; i < 10; ++i) stage.Cancel("user/alice", absl::StrCat("c", i), ok);
  CHECK(stage.Take().size() == 10);
}

TEST_CASE("a caller's refused calls do not hide those of another caller") {
  Stage stage;
  const absl::Status refused = absl::PermissionDeniedError("no");
  for (int i = 0; i < 30; ++i) stage.Cancel("viewer/eve", absl::StrCat("job-", i), refused);
  stage.Take();
  stage.Cancel("user/bob", "mnist", refused);
  CHECK(stage.Take().size() == 1);
  // Callers beyond the limit share one rate, and memory is bounded.
  for (int i = 0; i < 1000; ++i) stage.Cancel(absl::StrCat("user/", i), "mnist", refused);
  CHECK(stage.Take().size() < 3 * 66);
}

TEST_CASE("calls that undo each other each have a line") {
  Stage stage;
  for (int i = 0; i < 4; ++i)
    stage.audit.Write(
        {"CordonTask", {"admin/a", "here"}, "worker/0", i % 2 == 0 ? "on=true" : "on=false"},
        absl::OkStatus());
  CHECK(
      stage.Take() ==
      Lines{"audit: action=CordonTask caller=admin/a peer=here object=worker/0 on=true result=ok",
            "audit: action=CordonTask caller=admin/a peer=here object=worker/0 on=false result=ok",
            "audit: action=CordonTask caller=admin/a peer=here object=worker/0 on=true result=ok",
            "audit: action=CordonTask caller=admin/a peer=here object=worker/0 on=false "
            "result=ok"});
}

TEST_CASE("without TLS, callers are told apart by their hosts") {
  Stage stage;
  stage.Cancel("", "a", absl::OkStatus(), "ipv4:10.0.0.7:1");
  stage.Cancel("", "a", absl::OkStatus(), "ipv4:10.0.0.7:2");
  stage.Cancel("", "a", absl::OkStatus(), "ipv4:10.0.0.8:1");
  CHECK(stage.Take().size() == 2);
}

TEST_CASE("an audited responder writes the row's calls, and refused calls of every row") {
  ManualClock clock;
  log::Logger logger{[] {
    log::Options options;
    options.file = "/dev/null";
    return options;
  }()};
  const auto log = std::make_shared<AuditLog>(&logger, &clock);
  const auto results = [&] {
    Lines lines;
    for (const log::Line& line : logger.Read(0, 0, "", 100))
      lines.push_back(line.text.substr(line.text.find("object=")));
    return lines;
  };
  ControlCall reads, changes;
  changes.audited = true;
  changes.made = [](const std::string& answer) { return absl::StrCat("made-", answer); };
  absl::Status answer;
  const auto responder = [&](const ControlCall& call) {
    return Audited(log, call, {"Any", {"user/a", "here"}, "named"},
                   std::make_shared<Kept>(&answer));
  };
  responder(reads)->Answer("fine");
  responder(reads)->Answer(absl::NotFoundError("nothing"));
  CHECK(absl::IsNotFound(answer));
  CHECK(results().empty());
  responder(reads)->Answer(absl::PermissionDeniedError("no"));
  CHECK(absl::IsPermissionDenied(answer));
  responder(changes)->Answer("it");
  CHECK(answer.ok());
  responder(changes)->Answer(absl::NotFoundError("nothing"));
  responder(changes).reset();
  responder(reads).reset();
  CHECK(results() == Lines{"object=named result=PERMISSION_DENIED: no", "object=made-it result=ok",
                           "object=named result=NOT_FOUND: nothing",
                           "object=named result=UNKNOWN: the call ended without an answer"});
}
