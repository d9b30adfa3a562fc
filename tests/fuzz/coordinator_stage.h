// A coordinator's control plane on manual executors, with a server, a worker and a counting job
// that is training. The fuzz targets for task sessions and Control calls begin in this state. The
// stage has no threads. Its files are in a folder that is removed with the stage.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/client/protocol.h"
#include "common/fs/file_system.h"
#include "common/runtime/executor.h"
#include "coordinator/service/control_plane.h"
#include "tests/fuzz/control_methods.h"
#include "tests/fuzz/quiet.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/support/temp_folder.h"

namespace evergrad::fuzz {

// The coordinator's end of one session. It parses everything that the coordinator sends.
class PeerStream final : public transport::MessageStream {
 public:
  absl::Status Send(std::string message) override {
    EG_CHECK(!closed_);
    v1::CoordinatorBatch batch;
    EG_CHECK(batch.ParseFromString(message));
    for (v1::CoordinatorMessage& down : *batch.mutable_messages()) down_.push_back(std::move(down));
    return absl::OkStatus();
  }
  void Close() override { closed_ = true; }
  bool closed() const { return closed_; }
  std::deque<v1::CoordinatorMessage> Take() { return std::exchange(down_, {}); }

 private:
  std::deque<v1::CoordinatorMessage> down_;
  bool closed_ = false;
};

// Receives the answers of calls, and checks that each call is answered exactly once.
class CountingResponder final : public transport::UnaryResponder {
 public:
  explicit CountingResponder(std::shared_ptr<std::vector<absl::StatusOr<std::string>>> answers)
      : answers_(std::move(answers)) {}
  ~CountingResponder() override { EG_CHECK(answered_); }
  void Answer(absl::StatusOr<std::string> response) override {
    EG_CHECK(!answered_);
    answered_ = true;
    answers_->push_back(std::move(response));
  }

 private:
  // Shared with the stage.
  const std::shared_ptr<std::vector<absl::StatusOr<std::string>>> answers_;
  bool answered_ = false;
};

class CoordinatorStage {
 public:
  static constexpr char kJobName[] = "fuzz";
  // In the messages of an input, this number stands for the job's uid. The real uid is random, so
  // an input cannot contain it.
  static constexpr std::uint64_t kThisJob = 1;

  CoordinatorStage() {
    Open();
    worker_ = Connect();
    server_ = Connect();
    Say(server_, HelloOf(v1::ROLE_PS_SERVER));
    Say(worker_, HelloOf(v1::ROLE_WORKER));
    v1::TaskMessage heartbeat;
    heartbeat.mutable_heartbeat()->set_sequence(1);
    Say(worker_, heartbeat);
    v1::SubmitJobRequest submit;
    submit.set_yaml(kYaml);
    EG_CHECK(Call(submit).ok());
    for (int turn = 0; turn < 20; ++turn) {
      for (const v1::CoordinatorMessage& down : At(server_).stream->Take()) Serve(down);
      for (const v1::CoordinatorMessage& down : At(worker_).stream->Take()) Work(down);
      Advance(std::chrono::milliseconds(30));
    }
    EG_CHECK(!grants_.empty());
  }
  ~CoordinatorStage() { Close(); }

  // Opens a session that has not sent anything yet, and returns its number.
  int Connect() {
    Session session;
    session.stream = std::make_shared<PeerStream>();
    auto events = handlers_.stream({}, client::kSessionMethod, session.stream);
    EG_CHECK(events.has_value());
    session.events = *std::move(events);
    sessions_.push_back(std::move(session));
    Run();
    return static_cast<int>(sessions_.size()) - 1;
  }
  int worker() const { return worker_; }
  int server() const { return server_; }
  int sessions() const { return static_cast<int>(sessions_.size()); }
  // Delivers a batch of messages as the transport does. Does nothing if the stream was closed.
  void Deliver(int session, std::string batch) {
    if (At(session).stream->closed()) return;
    At(session).events.on_message(std::move(batch));
    Run();
  }
  void Say(int session, const v1::TaskMessage& message) {
    v1::TaskBatch batch;
    *batch.add_messages() = message;
    Deliver(session, batch.SerializeAsString());
  }
  void End(int session) {
    if (At(session).stream->closed() || std::exchange(At(session).ended, true)) return;
    At(session).events.on_end(absl::UnavailableError("cut"));
    Run();
  }
  // Returns the answer of the call, or an error if the call has no answer yet.
  absl::StatusOr<std::string> Call(absl::string_view method, std::string request) {
    const std::size_t before = answers_->size();
    handlers_.unary({}, method, std::move(request), std::make_unique<CountingResponder>(answers_));
    Run();
    if (answers_->size() == before) return absl::UnavailableError("not answered yet");
    return answers_->back();
  }
  template <class Request>
  absl::StatusOr<std::string> Call(const Request& request) {
    return Call(MethodPath(MethodOf<Request>()), request.SerializeAsString());
  }
  void Advance(std::chrono::nanoseconds by) {
    control_->Advance(by);
    Run();
  }
  std::uint64_t job_uid() const { return job_uid_; }
  // The training grants that the worker got, and the assignments that the server got.
  const std::vector<v1::Grant>& grants() const { return grants_; }
  const std::vector<v1::Assign>& assigns() const { return assigns_; }

  // Checks that the coordinator still serves after everything that it has received, and that
  // another coordinator can start from its journal.
  void CheckAlive() {
    Advance(std::chrono::seconds(1));
    v1::ListTasksResponse tasks;
    const auto listed = Call(v1::ListTasksRequest());
    EG_CHECK(listed.ok() && tasks.ParseFromString(*listed));
    v1::ListJobsResponse jobs;
    const auto answered = Call(v1::ListJobsRequest());
    EG_CHECK(answered.ok() && jobs.ParseFromString(*answered));
    EG_CHECK(jobs.jobs_size() > 0);
    Close();
    Open();
    Close();
  }

 private:
  struct Session {
    std::shared_ptr<PeerStream> stream;  // shared with the control plane
    transport::MessageStreamEvents events;
    bool ended = false;
  };
  static constexpr char kYaml[] =
      "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: fuzz}\nspec:\n"
      "  type: counting\n  counting: {examples: 64, shards: 4}\n"
      "  data: {batch_size: 4, shuffle: {seed: 7}}\n"
      "  training: {epochs: 2, steps_per_closure: 2}\n  checkpoint: off\n";

  void Open() {
    control_ = std::make_unique<runtime::ManualExecutor>(&clock_);
    files_ = std::make_unique<runtime::ManualExecutor>(&clock_);
    coordinator::ControlOptions options;
    options.runs_folder = folder_ / "runs";
    options.window = std::chrono::milliseconds(0);
    options.counting_allowed = true;
    options.build_id = "fuzz";
    options.host = "here";
    options.jobs_queued_max = 8;
    options.jobs_kept_max = 8;
    coordinator::ControlPlane::Parts parts;
    parts.control = control_.get();
    parts.files = files_.get();
    parts.file_system = &file_system_;
    parts.clock = &clock_;
    parts.logger = &logger_;
    parts.registry = &registry_;
    parts.failpoints = &failpoints_;
    parts.store = &store_;
    plane_ = std::make_unique<coordinator::ControlPlane>(options, parts);
    const absl::Status recovered = plane_->Recover();
    EG_CHECK_MSG(recovered.ok(), std::string(recovered.message()));
    handlers_ = plane_->handlers();
    plane_->Start("coordinator:0", "");
    Run();
  }
  void Close() {
    if (plane_ == nullptr) return;
    plane_->Stop();
    Run();
    handlers_ = {};
    sessions_.clear();
    // The executors may still have tasks, which must be destroyed before the objects that they use.
    control_.reset();
    files_.reset();
    plane_.reset();
  }
  void Run() {
    while (control_->RunReady() + files_->RunReady() > 0) {
    }
  }
  Session& At(int session) { return sessions_[static_cast<std::size_t>(session)]; }

  static v1::TaskMessage HelloOf(v1::Role role) {
    v1::TaskMessage message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_protocol_version(client::kProtocolVersion);
    hello.set_build_id("fuzz");
    hello.set_role(role);
    hello.set_identity("0");
    hello.set_process_uid(role == v1::ROLE_WORKER ? 11 : 12);
    hello.set_host("there");
    if (role == v1::ROLE_PS_SERVER) hello.mutable_endpoint()->set_address("server:0");
    return message;
  }
  void Serve(const v1::CoordinatorMessage& down) {
    if (!down.has_assign()) return;
    assigns_.push_back(down.assign());
    v1::TaskMessage answer;
    answer.mutable_assigned()->set_job_uid(down.assign().job_uid());
    answer.mutable_assigned()->set_shard(down.assign().spec().shard());
    *answer.mutable_assigned()->mutable_epoch() = down.assign().epoch();
    answer.mutable_assigned()->set_ok(true);
    Say(server_, answer);
  }
  void Work(const v1::CoordinatorMessage& down) {
    if (!down.has_grant()) return;
    job_uid_ = down.grant().job_uid();
    if (down.grant().kind() == v1::TRAIN) grants_.push_back(down.grant());
    if (down.grant().kind() != v1::DESCRIBE) return;
    v1::TaskMessage answer;
    v1::Done& done = *answer.mutable_done();
    done.set_job_uid(down.grant().job_uid());
    done.set_closure(down.grant().closure());
    *done.mutable_attempt() = down.grant().attempt();
    done.set_kind(v1::DESCRIBE);
    *done.mutable_v0() = *done.mutable_v1() = down.grant().attempt();
    done.mutable_describe()->set_train_examples(64);
    done.mutable_describe()->set_eval_examples(64);
    v1::VariableSpec& variable = *done.mutable_describe()->add_variables();
    variable.set_name("counting/samples");
    variable.add_shape(64);
    variable.add_shape(1);
    variable.set_dtype(v1::DTYPE_FLOAT32);
    variable.mutable_optimizer()->set_type("counting");
    Say(worker_, answer);
  }

  ManualClock clock_;
  log::Logger logger_{[] {
    log::Options options;
    options.level = log::Level::kError;
    options.file = "/dev/null";
    return options;
  }()};
  metrics::Registry registry_;
  fault::Failpoints failpoints_;
  fs::MemoryFileSystem file_system_;
  coordinator::MemoryStateStore store_{{.persistent = true}};
  const test::TempFolder folder_;
  std::unique_ptr<runtime::ManualExecutor> control_, files_;
  std::unique_ptr<coordinator::ControlPlane> plane_;
  transport::Handlers handlers_;
  std::vector<Session> sessions_;
  const std::shared_ptr<std::vector<absl::StatusOr<std::string>>> answers_ =
      std::make_shared<std::vector<absl::StatusOr<std::string>>>();  // shared with the calls
  int worker_ = 0, server_ = 0;
  std::uint64_t job_uid_ = 0;
  std::vector<v1::Grant> grants_;
  std::vector<v1::Assign> assigns_;
};

}  // namespace evergrad::fuzz
