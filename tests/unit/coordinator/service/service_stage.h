// The parts of the coordinator's service on manual executors, without the class ControlPlane. Each
// test calls the part that it tests, and reads the state of the other parts.
#pragma once

#include <catch2/catch.hpp>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/config/job_spec.h"
#include "common/fs/file_system.h"
#include "coordinator/service/admission.h"
#include "coordinator/service/division_host.h"
#include "coordinator/service/job_host.h"
#include "coordinator/service/registration.h"
#include "coordinator/service/service_parts.h"
#include "coordinator/service/task_ends.h"
#include "tests/support/manual_executor.h"
#include "tests/support/temp_folder.h"

namespace evergrad::coordinator {

// The coordinator's end of a session. It keeps the messages that the task would receive.
struct TaskStream final : transport::MessageStream {
  absl::Status Send(std::string bytes) override {
    v1::CoordinatorBatch batch;
    REQUIRE(batch.ParseFromString(bytes));
    for (const v1::CoordinatorMessage& message : batch.messages()) down.push_back(message);
    return absl::OkStatus();
  }
  void Close() override { closed = true; }
  // Returns the kinds of the messages to the task as text, such as "registered job map".
  std::string Kinds() const {
    std::string kinds;
    for (const v1::CoordinatorMessage& message : down) {
      std::vector<const google::protobuf::FieldDescriptor*> fields;
      message.GetReflection()->ListFields(message, &fields);
      for (const auto* field : fields)
        absl::StrAppend(&kinds, kinds.empty() ? "" : " ", field->name());
    }
    return kinds;
  }
  const v1::Rejected& rejected() const {
    REQUIRE_FALSE(down.empty());
    return down.back().rejected();
  }
  std::vector<v1::CoordinatorMessage> down;
  bool closed = false;
};

// The coordinator's end of a call. It keeps the answer that the client would receive.
struct CallReply final : transport::UnaryResponder {
  void Answer(absl::StatusOr<std::string> response) override {
    CHECK_FALSE(answered);
    answered = true;
    status = response.status();
    if (response.ok()) bytes = *response;
  }
  bool answered = false;
  absl::Status status;
  std::string bytes;
};

struct ServiceStage {
  ServiceStage() {
    life.id = 9;
    life.term = Term(1);
    life.term_known = true;
    life.window_open = false;
  }
  // Runs the tasks that were posted, before the parts that these tasks use are destroyed.
  ~ServiceStage() { Run(); }

  void Run() {
    while (control.RunReady() + file_thread.RunReady() > 0) {
    }
  }
  static ControlOptions Options() {
    ControlOptions options;
    options.runs_folder = "/runs";
    options.host = "here";
    options.build_id = "test";
    options.jobs_running_max = 2;
    options.jobs_kept_max = 1;
    options.counting_allowed = true;
    return options;
  }
  static v1::Hello HelloOf(v1::Role role, const std::string& identity, std::uint64_t process) {
    v1::Hello hello;
    hello.set_protocol_version(client::kProtocolVersion);
    hello.set_role(role);
    hello.set_identity(identity);
    hello.set_process_uid(process);
    hello.set_host("there");
    if (role == v1::ROLE_PS_SERVER) hello.mutable_endpoint()->set_address("server:0");
    return hello;
  }
  // Opens a session that has sent no message yet.
  Session& Connect() {
    Session session;
    session.number = ++last_session;
    stream = std::make_shared<TaskStream>();
    session.stream = stream;
    session.opened_at = clock.Now();
    sessions.Open(std::move(session));
    return *sessions.Find(last_session);
  }
  // Opens a session, and registers a task with this Hello.
  Session& Register(const v1::Hello& hello) {
    Session& session = Connect();
    admission.OnHello(session, hello);
    Run();
    REQUIRE(session.registered());
    return session;
  }
  Job* Submit(std::uint64_t uid, const std::string& name, const std::string& owner = "") {
    Job::Identity identity;
    identity.owner = owner;
    identity.uid = JobUid(uid);
    config::ParsedJob parsed = config::ParseJob(
        "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: " + name +
            "}\nspec:\n  type: counting\n  counting: {examples: 64, shards: 4}\n  data: "
            "{batch_size: 4, shuffle: {seed: 7}}\n  training: {epochs: 2, steps_per_closure: 2}\n  "
            "checkpoint: off\n",
        {});
    REQUIRE(parsed.spec);
    identity.spec = *std::move(parsed.spec);
    identity.runs_folder = folder / name;
    Job* const job = jobs.Add(std::make_unique<Job>(host.get(), JobOptions(), std::move(identity)));
    REQUIRE(job->Keep());
    return job;
  }
  void End(Job& job) {
    job.Cancel();
    for (int i = 0; i < 20 && !job.ended(); ++i) {
      Run();
      clock.Advance(std::chrono::seconds(10));
      job.Tick();
    }
    REQUIRE(job.ended());
    Run();
  }

  // Returns the lines of the audit log.
  std::vector<std::string> AuditLines() const {
    std::vector<std::string> lines;
    for (const log::Line& line : audit_logger.Read(0, 0, "", 1000)) lines.push_back(line.text);
    return lines;
  }
  static log::Options LogOptions(log::Level level) {
    log::Options options;
    options.level = level;
    options.file = "/dev/null";
    return options;
  }

  ManualClock clock;
  runtime::ManualExecutor control{&clock}, file_thread{&clock};
  log::Logger logger{LogOptions(log::Level::kError)};
  log::Logger audit_logger{LogOptions(log::Level::kInfo)};
  AuditLog audit{&audit_logger, &clock};
  metrics::Registry registry;
  fault::Failpoints failpoints;
  const test::TempFolder folder;
  const std::unique_ptr<fs::FileSystem> file_system = fs::MakeLocalFileSystem({});
  MemoryStateStore store;
  ControlOptions options = Options();
  Life life;
  StoreWatch store_watch{&store, &control, &logger};
  DurabilityGate gate{&store, 1 << 20, [] { return true; }};
  FileWriter files{{&control, &file_thread, &clock, &logger, &registry}, 1 << 20};
  Membership membership{options.membership};
  TaskReports reports{&membership};
  ControlMetrics metrics{registry, options, 100};
  SessionTable sessions{
      {&control, &logger, &gate, [](std::uint64_t) { FAIL("a session failed"); }, [] {}}};
  LogReads log_reads{{&sessions, &membership, &logger}, {10, std::chrono::seconds(5)}};
  // `parts` refers to members that are constructed later. They are used only when a part is called.
  const ServiceParts parts{&control,     &clock,    &logger, &store,      &options, &life,
                           &store_watch, &gate,     &files,  &membership, &reports, &sessions,
                           &jobs,        &division, &drains, &log_reads,  &metrics, &audit};
  const std::unique_ptr<JobHost> host =
      MakeJobHost(parts, &file_thread, &failpoints, file_system.get(), &supervisor);
  int changes = 0, windows = 0, closed = 0;  // numbers of calls of the callbacks
  absl::Status end;                          // the status that on_end got
  JobTable jobs{options.jobs_running_max};
  ServerDrains drains{&jobs, &sessions};
  const std::unique_ptr<DivisionHost> division_host = MakeDivisionHost(parts, &supervisor);
  WorkerDivision division{division_host.get(), std::chrono::seconds(10)};
  JobSupervisor supervisor{parts, [this] { ++changes; }};
  TaskEnds ends{parts, [this] { ++closed; }};
  Registrar registrar{parts, &ends};
  Admission admission{parts, &registrar, &ends, [this] { ++windows; },
                      [this](const absl::Status& why) { end = why; }};
  std::uint64_t last_session = 0;
  std::shared_ptr<TaskStream> stream;  // the coordinator's end of the newest session
};

}  // namespace evergrad::coordinator
