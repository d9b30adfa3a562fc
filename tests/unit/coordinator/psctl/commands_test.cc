// Tests every verb of psctl against a fake coordinator in this process. The tests check the
// requests, the output and the exit codes.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/client/control.h"
#include "common/client/protocol.h"
#include "common/config/job_spec.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/text_table.h"
#include "tests/support/inproc/inproc_transport.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace evergrad::psctl {
namespace {

constexpr char kAddress[] = "127.0.0.1:4000";

// A coordinator that knows one job. Each GetJob returns the next status from a list. After the end
// of the list it returns the last status.
class FakeCoordinator {
 public:
  explicit FakeCoordinator(transport::Transport* transport, const std::string& address = kAddress) {
    transport::Handlers handlers;
    handlers.unary = [this](const transport::PeerInfo&, absl::string_view method,
                            std::string request,
                            std::unique_ptr<transport::UnaryResponder> responder) {
      responder->Answer(Handle(method, request));
    };
    transport::ServerOptions options;
    options.listen = address;
    auto server = transport->Listen(options, std::move(handlers));
    EG_CHECK_MSG(server.ok(), std::string(server.status().message()));
    server_ = *std::move(server);
  }

  void Script(std::vector<v1::JobStatus> steps) {
    MutexLock lock(&mu_);
    steps_ = std::move(steps);
  }
  void FailGetJob(absl::Status status) {
    MutexLock lock(&mu_);
    get_job_error_ = std::move(status);
  }
  void RefuseSubmit(absl::Status status) {
    MutexLock lock(&mu_);
    submit_error_ = std::move(status);
  }
  std::string submitted_yaml() const {
    MutexLock lock(&mu_);
    return submitted_yaml_;
  }
  int cancels() const {
    MutexLock lock(&mu_);
    return cancels_;
  }
  // Called in each GetJob with the number of the call, while no lock is held.
  std::function<void(int)> on_get_job;
  std::string cancel_answer = "CANCELLED";
  std::function<v1::ReadTaskLogsResponse(const v1::ReadTaskLogsRequest&)> on_read_logs;
  std::function<absl::StatusOr<std::string>(const v1::ListVariablesRequest&)> on_list_variables;

 private:
  absl::StatusOr<std::string> Handle(absl::string_view method, const std::string& bytes) {
    if (method == client::ControlMethod<v1::SubmitJobRequest>()) {
      v1::SubmitJobRequest request;
      if (!request.ParseFromString(bytes)) return absl::InvalidArgumentError("malformed");
      config::ParseOptions options;
      options.file_name = "submitted";
      if (!config::ParseJob(request.yaml(), options).spec)
        return UserError(absl::InvalidArgumentError("the effective YAML does not parse"));
      MutexLock lock(&mu_);
      if (!submit_error_.ok()) return submit_error_;
      submitted_yaml_ = request.yaml();
      v1::SubmitJobResponse response;
      response.set_job_uid(0x2a);
      response.set_name("job");
      response.set_state("QUEUED");
      response.set_runs_folder("/runs/job-2a");
      return response.SerializeAsString();
    }
    if (method == client::ControlMethod<v1::GetJobRequest>()) {
      int call = 0;
      {
        MutexLock lock(&mu_);
        call = ++get_jobs_;
      }
      if (on_get_job) on_get_job(call);
      MutexLock lock(&mu_);
      if (!get_job_error_.ok() && call > 1) return get_job_error_;
      v1::GetJobResponse response;
      if (steps_.empty()) return absl::NotFoundError("no such job");
      *response.mutable_job() = steps_.front();
      if (steps_.size() > 1) steps_.erase(steps_.begin());
      return response.SerializeAsString();
    }
    if (method == client::ControlMethod<v1::CancelJobRequest>()) {
      MutexLock lock(&mu_);
      ++cancels_;
      v1::JobStatus cancelled = steps_.back();
      cancelled.set_state("CANCELLED");
      steps_ = {cancelled};
      v1::CancelJobResponse response;
      response.set_state(cancel_answer);
      return response.SerializeAsString();
    }
    if (method == client::ControlMethod<v1::ListJobsRequest>()) {
      v1::ListJobsResponse response;
      MutexLock lock(&mu_);
      for (const v1::JobStatus& job : steps_) *response.add_jobs() = job;
      return response.SerializeAsString();
    }
    if (method == client::ControlMethod<v1::ListVariablesRequest>()) {
      v1::ListVariablesRequest request;
      if (!request.ParseFromString(bytes)) return absl::InvalidArgumentError("malformed");
      v1::ListVariablesResponse response;
      if (on_list_variables) return on_list_variables(request);
      v1::VariableRow* variable = response.add_variables();
      variable->set_name("dense/kernel");
      variable->set_complete(true);
      variable->set_digest(7);
      variable->add_shape(784);
      variable->add_shape(10);
      variable->add_shards()->set_row_end(784);
      variable->add_servers("0");
      return response.SerializeAsString();
    }
    if (method == client::ControlMethod<v1::ListTasksRequest>()) {
      v1::ListTasksResponse response;
      v1::TaskRow* task = response.add_tasks();
      task->set_role(v1::ROLE_WORKER);
      task->set_identity("0");
      task->set_state("alive");
      return response.SerializeAsString();
    }
    if (method == client::ControlMethod<v1::ReadTaskLogsRequest>()) {
      v1::ReadTaskLogsRequest request;
      if (!request.ParseFromString(bytes)) return absl::InvalidArgumentError("malformed");
      v1::ReadTaskLogsResponse response;
      if (on_read_logs) return on_read_logs(request).SerializeAsString();
      v1::LogLine* line = response.add_lines();
      line->set_task(request.tasks_size() > 0 ? request.tasks(0) : "worker/0");
      line->set_level("info");
      line->set_text("hello");
      line->set_job(request.job());
      return response.SerializeAsString();
    }
    return absl::UnimplementedError(absl::StrCat("unknown method: ", method));
  }

  mutable Mutex mu_;
  std::vector<v1::JobStatus> steps_ ABSL_GUARDED_BY(mu_);
  absl::Status get_job_error_ ABSL_GUARDED_BY(mu_);
  absl::Status submit_error_ ABSL_GUARDED_BY(mu_);
  std::string submitted_yaml_ ABSL_GUARDED_BY(mu_);
  int cancels_ ABSL_GUARDED_BY(mu_) = 0;
  int get_jobs_ ABSL_GUARDED_BY(mu_) = 0;
  // This member is the last one, so the server stops before the members that its handlers use are
  // destroyed.
  std::unique_ptr<transport::Server> server_;
};

// A clock that advances a little each time it is read, so that no test waits for real time.
class QuickClock final : public Clock {
 public:
  MonoTime Now() const override {
    now_ += step;
    if (on_look) on_look(now_);
    return now_;
  }
  std::int64_t WallMillis() const override { return 1'000'000; }
  MonoTime step = std::chrono::milliseconds(120);
  std::function<void(MonoTime)> on_look;

 private:
  mutable MonoTime now_{0};
};

struct Psctl {
  // The coordinator's handlers put signals into it, so it is declared before the coordinator.
  Inbox<Happening> inbox;
  RealClock health_clock;
  health::Health health{&health_clock};  // the health of the fake coordinator's process
  std::unique_ptr<transport::Transport> transport =
      transport::MakeInprocTransport(nullptr, &health);
  FakeCoordinator coordinator{transport.get()};
  QuickClock clock;
  std::atomic<bool> handles_signals{false};
  std::ostringstream out, err;
  Context context{out, err};

  Psctl() {
    context.transport = transport.get();
    context.clock = &clock;
    context.folder = std::filesystem::canonical(test::SourceDir()).string();
    context.program = "/nonexistent/psctl";
    context.inbox = &inbox;
    context.handles_signals = &handles_signals;
    context.environment = {{"EVERGRAD_COORDINATOR", kAddress}};
  }
  int Run(std::vector<std::string> args) {
    out.str("");
    err.str("");
    return RunPsctl(context, args);
  }
  void Signal(int number) {
    Happening happening;
    happening.signal = number;
    inbox.Put(std::move(happening));
  }
  nlohmann::json Json() { return nlohmann::json::parse(out.str()); }
};

v1::JobStatus Job(const std::string& state, std::uint64_t revision,
                  const std::string& result = "") {
  v1::JobStatus job;
  job.set_job_uid(0x2a);
  job.set_name("job");
  job.set_state(state);
  job.set_revision(revision);
  job.set_steps_total(10);
  job.set_steps_done(revision);
  job.set_result_json(result);
  return job;
}
const char kJob[] = "configs/examples/mlp-12k.yaml";

TEST_CASE("run submits the effective job, follows it, and ends with 0 on success") {
  Psctl psctl;
  psctl.coordinator.Script({Job("QUEUED", 1), Job("RUNNING", 2),
                            Job("SUCCEEDED", 10, R"({"metrics": {"accuracy": 0.87}})")});
  CHECK(psctl.Run({"job", "run", kJob, "--set", "spec.training.epochs=3", "--require",
                   "accuracy>=0.86"}) == kSucceeded);
  CHECK_THAT(psctl.out.str(), Catch::Contains("submitted job (000000000000002a)") &&
                                  Catch::Contains("RUNNING") &&
                                  Catch::Contains("accuracy 87.00 %"));
  CHECK_THAT(psctl.coordinator.submitted_yaml(),
             Catch::Contains("epochs: 3") &&
                 Catch::Contains(psctl.context.folder +
                                 "/data/fashion-mnist-12k/train-images-idx3-ubyte.gz"));
}

TEST_CASE("exit codes distinguish a failed job, a cancelled job and an unmet requirement") {
  Psctl psctl;
  v1::JobStatus failed = Job("FAILED", 4);
  failed.mutable_first_cause()->set_message("NaN in dense1/kernel");
  psctl.coordinator.Script({failed});
  CHECK(psctl.Run({"job", "run", kJob}) == kFailed);
  CHECK_THAT(psctl.out.str(), Catch::Contains("failed: NaN in dense1/kernel"));
  psctl.coordinator.Script({Job("CANCELLED", 4)});
  CHECK(psctl.Run({"job", "watch", "job"}) == kCancelled);
  psctl.coordinator.Script({Job("SUCCEEDED", 4, R"({"metrics": {"accuracy": 0.5}})")});
  CHECK(psctl.Run({"job", "watch", "job", "--require", "accuracy>=0.86"}) == kRequirementUnmet);
  CHECK(psctl.err.str() == "psctl: not met: accuracy>=0.86: got 0.5\n");
}

TEST_CASE("Ctrl-C asks on a terminal: no continues, yes cancels, and the exit code is 130") {
  Psctl psctl;
  psctl.context.in_terminal = true;
  std::vector<std::string> answers = {"n", "y"};
  int signals = 2;
  psctl.context.read_line = [&]() -> std::optional<std::string> {
    const std::string answer = answers.front();
    answers.erase(answers.begin());
    return answer;
  };
  psctl.coordinator.on_get_job = [&](int call) {
    if (call >= 2 && signals > 0 && call % 2 == 0) --signals, psctl.Signal(SIGINT);
  };
  psctl.coordinator.Script({Job("RUNNING", 1), Job("RUNNING", 2)});
  CHECK(psctl.Run({"job", "run", kJob}) == kInterrupted);
  CHECK_THAT(psctl.out.str(),
             Catch::Contains("cancel the job? [y/N]") && Catch::Contains("the job continues") &&
                 Catch::Contains("cancelling the job") && Catch::Contains("cancelled after"));
  CHECK(psctl.coordinator.cancels() == 1);
  CHECK(answers.empty());
}

TEST_CASE("without a terminal Ctrl-C cancels at once, and a watch never cancels") {
  {
    Psctl psctl;
    psctl.coordinator.on_get_job = [&](int call) {
      if (call == 2) psctl.Signal(SIGTERM);
    };
    psctl.coordinator.Script({Job("RUNNING", 1)});
    CHECK(psctl.Run({"job", "run", kJob}) == kInterrupted);
    CHECK(psctl.coordinator.cancels() == 1);
  }
  Psctl psctl;
  psctl.coordinator.on_get_job = [&](int call) {
    if (call == 2) psctl.Signal(SIGINT);
  };
  psctl.coordinator.Script({Job("RUNNING", 1)});
  CHECK(psctl.Run({"job", "watch", "job"}) == kInterrupted);
  CHECK(psctl.coordinator.cancels() == 0);
}

TEST_CASE(
    "health prints one line, and ends with 0 if the daemon is ready or live, otherwise with 1") {
  Psctl psctl;
  CHECK(psctl.Run({"health", "--of", kAddress}) == kSucceeded);
  CHECK(psctl.out.str() == "ready\n");
  psctl.health.readiness().Add("window", "the tasks of the cluster are registering");
  CHECK(psctl.Run({"health", "--of", kAddress}) == kFailed);
  CHECK(psctl.out.str() ==
        "not ready: the daemon gives the reason at /readyz on its --metrics-listen\n");
  CHECK(psctl.Run({"health", "--of", kAddress, "--live"}) == kSucceeded);
  CHECK(psctl.out.str() == "live\n");
  CHECK(psctl.err.str().empty());

  CHECK(psctl.Run({"health", "--of", "127.0.0.1:1"}) == kFailed);
  CHECK(psctl.out.str().empty());
  CHECK_THAT(psctl.err.str(),
             Catch::StartsWith("psctl: no answer about health: address=127.0.0.1:1 cause="));
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"health"},
                                             {"health", "--of", "nowhere"},
                                             {"health", "--of", "127.0.0.1:0"},
                                             {"health", "--of", kAddress, "--tls-ca", "ca.pem"},
                                             {"health", "--of", kAddress, "--ready"}})
    CHECK(psctl.Run(wrong) == kUsage);
}

TEST_CASE("every verb names an unreachable coordinator and ends with 4") {
  Psctl psctl;
  psctl.clock.step = std::chrono::seconds(3);
  for (const std::vector<std::string>& verb :
       std::vector<std::vector<std::string>>{{"job", "list"},
                                             {"job", "show", "x"},
                                             {"job", "cancel", "x"},
                                             {"task", "list"},
                                             {"variable", "list"},
                                             {"variable", "describe", "x"},
                                             {"variable", "top", "x"},
                                             {"logs"},
                                             {"job", "submit", kJob}}) {
    std::vector<std::string> args = verb;
    args.insert(args.end(), {"--coordinator", "127.0.0.1:1"});
    CHECK(psctl.Run(args) == kUnreachable);
    CHECK_THAT(
        psctl.err.str(),
        Catch::Contains(
            "coordinator not reachable (does it run, is this its address?): address=127.0.0.1:1"));
  }
}

TEST_CASE(
    "a verb waits for a coordinator that does not listen yet, reports it once, and continues "
    "afterwards") {
  Psctl psctl;
  std::optional<FakeCoordinator> late;
  psctl.clock.step = std::chrono::milliseconds(400);
  psctl.clock.on_look = [&](MonoTime now) {
    if (now > std::chrono::seconds(3) && !late)
      late.emplace(psctl.transport.get(), "127.0.0.1:4001");
  };
  CHECK(psctl.Run({"task", "list", "--coordinator", "127.0.0.1:4001"}) == kSucceeded);
  CHECK_THAT(psctl.out.str(), Catch::Contains("worker/0"));
  CHECK(psctl.err.str() ==
        "psctl: no coordinator at 127.0.0.1:4001 yet; trying again for 5.0 s (--wait)\n");
  REQUIRE(late);

  // A wait of 300 ms is too short to be reported. With --wait 0ms there is only one attempt.
  Psctl quick;
  quick.clock.step = std::chrono::milliseconds(100);
  CHECK(quick.Run({"task", "list", "--coordinator", "127.0.0.1:4001", "--wait", "300ms"}) ==
        kUnreachable);
  CHECK_THAT(quick.err.str(), Catch::StartsWith("psctl: coordinator not reachable"));
  int looks = 0;
  quick.clock.on_look = [&](MonoTime) { ++looks; };
  CHECK(quick.Run({"task", "list", "--coordinator", "127.0.0.1:4001", "--wait", "0ms"}) ==
        kUnreachable);
  CHECK(looks <= 1);
}

TEST_CASE(
    "a cancel prints the job's state, and that a job which has not ended is being cancelled") {
  Psctl psctl;
  psctl.coordinator.Script({Job("RUNNING", 1)});
  CHECK(psctl.Run({"job", "cancel", "job"}) == kSucceeded);
  CHECK(psctl.out.str() == "job: CANCELLED\n");
  Psctl slow;
  slow.coordinator.Script({Job("RUNNING", 1)});
  slow.coordinator.cancel_answer = "RUNNING";
  CHECK(slow.Run({"job", "cancel", "job"}) == kSucceeded);
  CHECK(slow.out.str() == "job: RUNNING, being cancelled (psctl job watch follows it)\n");
}

TEST_CASE("a coordinator that refuses new work is not reported as unreachable") {
  Psctl psctl;
  psctl.coordinator.RefuseSubmit(
      WithOrigin(absl::UnavailableError("no new work is accepted: no room"), "coordinator"));
  CHECK(psctl.Run({"job", "submit", kJob}) == kUnreachable);
  CHECK(psctl.err.str() == "psctl: no new work is accepted: no room\n");
}

TEST_CASE(
    "the error of a submission without an answer does not claim that no coordinator received it") {
  Psctl psctl;
  psctl.coordinator.RefuseSubmit(absl::DeadlineExceededError("deadline exceeded"));
  CHECK(psctl.Run({"job", "submit", kJob}) == kUnreachable);
  CHECK_THAT(psctl.err.str(),
             Catch::Contains("may have carried out the request (psctl job list shows") &&
                 !Catch::Contains("not reachable"));
}

TEST_CASE(
    "a disconnected coordinator is polled for a while before run ends with 4, and one that forgot "
    "the job ends run at once") {
  Psctl psctl;
  psctl.clock.step = std::chrono::milliseconds(200);
  psctl.coordinator.Script({Job("RUNNING", 1)});
  psctl.coordinator.FailGetJob(absl::UnavailableError("connection refused"));
  CHECK(psctl.Run({"job", "run", kJob}) == kUnreachable);
  CHECK_THAT(psctl.err.str(),
             Catch::Contains("coordinator not reachable (does it run, is this its address?): "
                             "address=127.0.0.1:4000 cause=connection refused"));
  Psctl other;
  other.coordinator.Script({Job("RUNNING", 1)});
  other.coordinator.FailGetJob(absl::NotFoundError("no such job: job=2a"));
  CHECK(other.Run({"job", "run", kJob}) == kUnreachable);
  CHECK_THAT(other.err.str(), Catch::Contains("restarted and does not know this job"));
}

TEST_CASE("programs get JSON from submit, show, list, tasks, variables, logs and validate") {
  Psctl psctl;
  psctl.coordinator.Script({Job("RUNNING", 3)});
  REQUIRE(psctl.Run({"job", "submit", kJob, "--output", "json"}) == kSucceeded);
  CHECK(psctl.Json()["job_uid"] == "000000000000002a");
  REQUIRE(psctl.Run({"job", "show", "job", "--output=json"}) == kSucceeded);
  CHECK(psctl.Json()["steps_done"] == 3);
  REQUIRE(psctl.Run({"job", "list", "--output=json"}) == kSucceeded);
  CHECK(psctl.Json()["jobs"].size() == 1);
  REQUIRE(psctl.Run({"task", "list", "--output=json"}) == kSucceeded);
  CHECK(psctl.Json()["tasks"][0]["role"] == "worker");
  REQUIRE(psctl.Run({"variable", "list", "--output=json"}) == kSucceeded);
  CHECK(psctl.Json()["variables"][0]["digest"] == "0000000000000007");
  REQUIRE(psctl.Run({"logs", "ps_server/1", "--job", "job", "--since", "5m", "--output=json"}) ==
          kSucceeded);
  CHECK(psctl.Json()["task"] == "ps_server/1");
  REQUIRE(psctl.Run({"job", "validate", "tests/unit/common/config/testdata/twelve.yaml",
                     "--output=json"}) == kUsage);
  CHECK(psctl.Json()["mistakes"].size() >= 12);
  CHECK(psctl.Json()["mistakes"][1]["line"] == 6);
  REQUIRE(psctl.Run({"job", "run", kJob, "--output=json", "--timeout", "1s", "--set",
                     "spec.training.epochs=x"}) == kUsage);
  CHECK(psctl.Json()["mistakes"][0]["file"] == "<--set 1>");
}

TEST_CASE(
    "variable top shows totals first and then rates, only describe requests digests, and unknown "
    "names are errors") {
  Psctl psctl;
  psctl.coordinator.Script({Job("RUNNING", 3)});
  std::vector<bool> digests;
  psctl.coordinator.on_list_variables =
      [&](const v1::ListVariablesRequest& request) -> absl::StatusOr<std::string> {
    if (request.variable() != "movies")
      return UserError(absl::NotFoundError("no such variable: variable=" + request.variable() +
                                           " job=job; it has movies"));
    digests.push_back(!request.without_digests());
    v1::ListVariablesResponse response;
    v1::VariableRow* row = response.add_variables();
    row->set_name("movies");
    row->set_complete(true);
    row->mutable_table()->set_rows(5);
    row->add_servers("0");
    row->add_shards()->set_pulls(1000 * digests.size());
    return response.SerializeAsString();
  };
  REQUIRE(psctl.Run({"variable", "top", "movies", "--once", "--output=json"}) == kSucceeded);
  CHECK(psctl.Json()["servers"][0]["pulls"] == 1000);
  CHECK(psctl.Json()["seconds"].is_null());
  CHECK(psctl.Json()["rows"] == 5);
  // If the output is not a terminal, `variable top` shows one sample and ends.
  REQUIRE(psctl.Run({"variable", "top", "movies"}) == kSucceeded);
  CHECK_THAT(psctl.out.str(), Catch::Contains("movies of job job, 5 rows") &&
                                  Catch::Contains("since the servers got the shards"));
  REQUIRE(psctl.Run({"variable", "top", "movies", "--samples", "2", "--interval", "1s",
                     "--output=json"}) == kSucceeded);
  std::istringstream lines(psctl.out.str());
  std::string first, second, none;
  std::getline(lines, first);
  std::getline(lines, second);
  CHECK_FALSE(std::getline(lines, none));
  CHECK(nlohmann::json::parse(first)["servers"][0]["pulls"] == 3000);
  const auto rates = nlohmann::json::parse(second);
  CHECK(rates["seconds"].get<double>() >= 1);
  CHECK(rates["servers"][0]["pulls"].get<double>() ==
        Approx(1000 / rates["seconds"].get<double>()));
  CHECK(digests == std::vector<bool>(4, false));
  // On a terminal `variable top` continues until Ctrl-C is pressed.
  psctl.context.out_terminal = true;
  int asked = 0;
  const auto answer = psctl.coordinator.on_list_variables;
  psctl.coordinator.on_list_variables = [&](const v1::ListVariablesRequest& request) {
    if (++asked == 3) psctl.Signal(SIGINT);
    return answer(request);
  };
  CHECK(psctl.Run({"variable", "top", "movies", "--interval", "200ms"}) == kInterrupted);
  CHECK(asked == 3);
  CHECK_THAT(psctl.out.str(), Catch::Contains("\033[H\033[J") && Catch::Contains("pulls/s"));
  digests.clear();
  REQUIRE(psctl.Run({"variable", "describe", "movies", "--output=json"}) == kSucceeded);
  CHECK(digests == std::vector<bool>{true});
  CHECK(psctl.Json()["table"]["rows"] == 5);
  CHECK(psctl.Json()["traffic"]["servers"][0]["server"] == "0");
  CHECK(psctl.Run({"variable", "describe", "movie"}) == kUsage);
  CHECK_THAT(psctl.err.str(),
             Catch::Contains("no such variable: variable=movie job=job; it has movies"));
  CHECK(psctl.Run({"variable", "describe"}) == kUsage);
  CHECK(psctl.Run({"variable", "top", "movies", "--once", "--samples", "2"}) == kUsage);
}

TEST_CASE("run prints only JSON when JSON is requested") {
  Psctl psctl;
  psctl.coordinator.Script(
      {Job("RUNNING", 1), Job("SUCCEEDED", 10, R"({"metrics": {"accuracy": 0.87}})")});
  REQUIRE(psctl.Run({"job", "run", kJob, "--output", "json"}) == kSucceeded);
  CHECK(psctl.Json()["state"] == "SUCCEEDED");
  CHECK(psctl.Json()["result"]["metrics"]["accuracy"] == 0.87);
}

TEST_CASE("logs -f requests only new lines of each task, until Ctrl-C") {
  Psctl psctl;
  std::vector<std::uint64_t> asked;
  psctl.coordinator.on_read_logs = [&](const v1::ReadTaskLogsRequest& request) {
    const auto cursor = request.cursors().find("worker/0");
    const std::uint64_t from = cursor == request.cursors().end() ? 0 : cursor->second;
    asked.push_back(from);
    v1::ReadTaskLogsResponse response;
    // The log has five lines. The first read returns three lines, and each later read returns one
    // more.
    const std::uint64_t to = std::min<std::uint64_t>(5, from == 0 ? 3 : from + 1);
    for (std::uint64_t i = from; i < to; ++i) {
      v1::LogLine* line = response.add_lines();
      line->set_task("worker/0");
      line->set_text(absl::StrCat("line ", i));
    }
    (*response.mutable_cursors())["worker/0"] = to;
    if (asked.size() == 5) {
      Happening interrupt;
      interrupt.signal = SIGINT;
      psctl.inbox.Put(std::move(interrupt));
    }
    return response;
  };
  CHECK(psctl.Run({"logs", "-f", "--lines", "3", "--output=json"}) == kInterrupted);
  CHECK(asked == std::vector<std::uint64_t>{0, 3, 4, 5, 5});
  std::size_t lines = 0;
  for (const char c : psctl.out.str()) lines += c == '\n';
  CHECK(lines == 5);
  CHECK_THAT(psctl.out.str(), Catch::Contains("line 4"));
}

TEST_CASE("bad usage ends with 2, and the message explains the correct usage") {
  Psctl psctl;
  CHECK(psctl.Run({}) == kUsage);
  CHECK(psctl.Run({"jbo"}) == kUsage);
  CHECK_THAT(psctl.err.str(), Catch::Contains("unknown noun `jbo`; did you mean `job`?"));
  CHECK(psctl.Run({"job", "wach"}) == kUsage);
  CHECK_THAT(psctl.err.str(), Catch::Contains("did you mean `watch`?"));
  CHECK(psctl.Run({"job", "run"}) == kUsage);
  CHECK_THAT(psctl.err.str(), Catch::Contains("missing argument JOB.yaml"));
  CHECK(psctl.Run({"job", "run", kJob, "--local", "--coordinator", "127.0.0.1:1"}) == kUsage);
  CHECK(psctl.Run({"job", "run", kJob, "--workers", "2"}) == kUsage);
  CHECK_THAT(psctl.err.str(), Catch::Contains("--workers needs --local"));
  CHECK(psctl.Run({"job", "run", kJob, "--require", "accuracy"}) == kUsage);
  CHECK(psctl.Run({"job", "run", "/nonexistent.yaml"}) == kUsage);
  CHECK(psctl.Run({"job", "run", kJob, "--set", "no-equals"}) == kUsage);
  CHECK(psctl.Run({"job", "run", "configs"}) == kUsage);
  CHECK(psctl.Run({"job", "list", "--tls-ca", "x"}) == kUsage);
  psctl.context.environment.clear();
  CHECK(psctl.Run({"job", "list"}) == kUsage);
  CHECK_THAT(psctl.err.str(), Catch::Contains("which coordinator? Give --coordinator HOST:PORT, "
                                              "set EVERGRAD_COORDINATOR, choose a context "
                                              "(psctl context use), start a cluster here") &&
                                  !Catch::Contains("--local"));
  CHECK(psctl.Run({"job", "run", kJob}) == kUsage);
  CHECK_THAT(psctl.err.str(), Catch::Contains("(psctl cluster up), or add --local --workers 2 "
                                              "--servers 2 to start a cluster for the job: no "));
  CHECK(psctl.Run({"cluster", "down", "--folder", "/nonexistent"}) == kUsage);
  CHECK_THAT(psctl.err.str(), Catch::Contains("no cluster in this folder (psctl cluster up starts "
                                              "one; --folder names another): /nonexistent"));
}

TEST_CASE(
    "an address that cannot be dialed is reported with its flag or variable, and no other port is "
    "dialed") {
  Psctl psctl;
  for (const char* address :
       {"127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1", "127.0.0.1:+80", "::1:4000"}) {
    INFO(address);
    CHECK(psctl.Run({"job", "list", "--coordinator", address}) == kUsage);
    CHECK(psctl.err.str().find(
              absl::StrCat("--coordinator: expected host:port with a port from 1 to 65535, got `",
                           address, "`")) != std::string::npos);
    psctl.context.environment = {{"EVERGRAD_COORDINATOR", address}};
    CHECK(psctl.Run({"job", "list"}) == kUsage);
    CHECK(psctl.err.str().find(absl::StrCat(
              "$EVERGRAD_COORDINATOR: expected host:port with a port from 1 to 65535, got `",
              address, "`")) != std::string::npos);
  }
}

TEST_CASE("a local run checks its data before it starts anything") {
  Psctl psctl;
  CHECK(psctl.Run({"job", "run", kJob, "--local", "--set",
                   "spec.data.train.labels=/nonexistent/labels.gz"}) == kUsage);
  CHECK_THAT(psctl.err.str(),
             Catch::Contains("<--set 1>:1:24: no such file: /nonexistent/labels.gz\n"));
  // The job must not start if the folder for its files cannot be made.
  CHECK(psctl.Run({"job", "run", "configs/examples/counting.yaml", "--local", "--failpoints",
                   "none", "--runs", "README.md/runs"}) == kUsage);
  CHECK_THAT(psctl.err.str(), Catch::Contains("cannot create the folder for the run's files "
                                              "(--runs DIR names another): cannot make folder"));
}

// A job that reads csv files from a folder, and a psctl that is run with this job.
struct CsvJob {
  test::TempFolder folder;
  Psctl psctl;
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
  }
  std::string Yaml(const std::string& data) {
    return "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\nspec:\n  "
           "data:\n" +
           data +
           "    fields: {x: {column: 0, type: float}, y: {column: 1, type: float}}\n"
           "  model: {inputs: {x: {shape: [1]}}, layers: [{name: d, type: dense, units: 1}], "
           "losses: {type: mean_squared_error, labels: y}}\n"
           "  optimizer: {type: sgd}\n";
  }
  int Run(const std::string& data, std::vector<std::string> verb) {
    Write("my.yaml", Yaml(data));
    verb.insert(verb.begin() + 2, folder / "my.yaml");
    return psctl.Run(verb);
  }
};

TEST_CASE("validate refuses the paths that run refuses, and warns of files that are missing here") {
  CsvJob job;
  job.Write("x.csv", "1,2\n");
  std::filesystem::create_directory(job.folder / "data");
  const auto source = [](const std::string& path) {
    return "    train: {format: csv, header: false, path: \"" + path + "\"}\n";
  };
  CHECK(job.Run(source("x.csv"), {"job", "validate"}) == kSucceeded);
  CHECK(job.psctl.err.str().empty());
  for (const auto& [path, why] : std::vector<std::pair<std::string, std::string>>{
           {"data", "my.yaml:6:47: is a folder: "},
           {"*.csv", "my.yaml:6:47: `path`: expected the path of one file"},
           {"x[12].csv", "my.yaml:6:47: no such file: "},
           {"hdfs://host/x.csv", "unsupported URI scheme: scheme=hdfs"},
           {"https://host/x.csv", "unsupported URI scheme: scheme=https"}}) {
    for (const std::vector<std::string>& verb :
         std::vector<std::vector<std::string>>{{"job", "validate"}, {"job", "run", "--local"}}) {
      INFO(path << verb[1]);
      CHECK(job.Run(source(path), verb) == kUsage);
      CHECK_THAT(job.psctl.err.str(), Catch::Contains(why) && Catch::Contains("one mistake in "));
    }
  }
  CHECK(job.Run(source("absent.csv"), {"job", "validate"}) == kSucceeded);
  CHECK(job.psctl.err.str() == "warning: " + (job.folder / "my.yaml") +
                                   ":6:47: no such file: " + (job.folder / "absent.csv") +
                                   "; the job can run if the workers have the file\n");
  CHECK_THAT(job.psctl.out.str(), Catch::Contains(": valid: job a"));
  REQUIRE(job.Run(source("absent.csv"), {"job", "validate", "--output=json"}) == kSucceeded);
  CHECK(job.psctl.Json()["valid"] == true);
  CHECK(job.psctl.Json()["warnings"][0]["line"] == 6);
}

TEST_CASE("each missing file is reported once at its line, with a hint if one applies") {
  CsvJob job;
  const std::string split = ", split: {modulo: 2, equals: 0, take: eval}}\n";
  CHECK(job.Run("    train: {format: csv, path: mine.csv" + split, {"job", "run", "--local"}) ==
        kUsage);
  CHECK(job.psctl.err.str() ==
        (job.folder / "my.yaml") + ":6:32: no such file: " + (job.folder / "mine.csv") +
            "\npsctl: one mistake in " + (job.folder / "my.yaml") + "; nothing was started\n");
  job.psctl.context.environment["EVERGRAD_DATA"] = "/nowhere";
  CHECK(job.Run("    train: {format: csv, path: \"${EVERGRAD_DATA}/x.csv\"" + split,
                {"job", "run", "--local"}) == kUsage);
  CHECK_THAT(
      job.psctl.err.str(),
      Catch::Contains(
          "no such file: /nowhere/x.csv (`./evergrad data` fetches the example "
          "data; EVERGRAD_DATA, which this path contains, is /nowhere)\npsctl: one mistake"));
  job.psctl.context.environment.erase("EVERGRAD_DATA");
  CHECK(job.Run("    train: {format: csv, path: \"${EVERGRAD_DATA:-/nowhere}/x.csv\"" + split,
                {"job", "run", "--local"}) == kUsage);
  CHECK_THAT(job.psctl.err.str(),
             Catch::Contains("EVERGRAD_DATA, which this path contains, is not set)"));
}

TEST_CASE("control characters and U+202E of a job file do not reach the terminal") {
  CsvJob job;
  const std::string evil = "\x1b[2J\xe2\x80\xae\xc2\x9b";
  const auto clean = [&] {
    const std::string all = job.psctl.out.str() + job.psctl.err.str();
    return all.find('\x1b') == std::string::npos && all.find("\xe2\x80\xae") == std::string::npos &&
           all.find("\xc2\x9b") == std::string::npos;
  };
  const std::string data =
      "    train: {format: csv, header: false, path: \"a\\e]0;\xe2\x80\xae\xc2\x9b.csv\"}\n";
  for (const char* output : {"text", "json"}) {
    CHECK(job.Run(data, {"job", "validate", "--output", output}) == kSucceeded);
    CHECK(clean());
    CHECK(job.Run(data, {"job", "validate", "--effective", "--output", output}) == kSucceeded);
    CHECK(clean());
    CHECK(job.Run(data, {"job", "run", "--local", "--output", output}) == kUsage);
    CHECK(clean());
    CHECK(job.Run("    \"" + std::string("\xe2\x80\xae\\e[2J") + "\": 1\n" + data,
                  {"job", "validate", "--output", output}) == kUsage);
    CHECK(clean());
  }
  CHECK_THAT(job.psctl.out.str() + job.psctl.err.str(), Catch::Contains("\\u202e"));
  // Texts that come from a peer, such as the cause of a failure or a line of a log, must be
  // escaped, too.
  v1::JobStatus failed = Job("FAILED", 4);
  failed.mutable_first_cause()->set_message(evil);
  failed.add_events()->set_text(evil);
  job.psctl.coordinator.Script({failed});
  for (const char* output : {"text", "json"}) {
    for (const char* verb : {"show", "watch"}) {
      job.psctl.Run({"job", verb, "job", "--output", output});
      CHECK(clean());
    }
  }
  job.psctl.coordinator.on_read_logs = [&](const v1::ReadTaskLogsRequest&) {
    v1::ReadTaskLogsResponse response;
    v1::LogLine* line = response.add_lines();
    line->set_task(evil);
    line->set_level("info");
    line->set_text(evil);
    return response;
  };
  CHECK(job.psctl.Run({"logs"}) == kSucceeded);
  CHECK(clean());
  CHECK_THAT(job.psctl.out.str(), Catch::Contains("\\x1b[2J\\u202e\\u009b"));
}

TEST_CASE("every noun and verb has help") {
  Psctl psctl;
  CHECK(psctl.Run({"--help"}) == kSucceeded);
  const std::string overview = psctl.out.str();
  for (const char* verb :
       {"run", "submit", "list", "show", "watch", "cancel", "validate", "reference"}) {
    CHECK_THAT(overview, Catch::Contains(std::string("job ") + verb));
    CHECK(psctl.Run({"job", verb, "--help"}) == kSucceeded);
    CHECK_THAT(psctl.out.str(), Catch::Contains(std::string("usage: psctl job ") + verb));
  }
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"cluster", "up"},
                                             {"cluster", "down"},
                                             {"cluster", "status"},
                                             {"cluster", "restart"},
                                             {"cluster", "run"},
                                             {"task", "list"},
                                             {"variable", "list"},
                                             {"variable", "describe"},
                                             {"variable", "top"},
                                             {"logs"},
                                             {"cert", "init"},
                                             {"cert", "issue"},
                                             {"version"},
                                             {"job"},
                                             {"cluster"}}) {
    std::vector<std::string> with_help = args;
    with_help.push_back("--help");
    CHECK(psctl.Run(with_help) == kSucceeded);
    CHECK_THAT(psctl.out.str(), Catch::Contains("usage: psctl"));
  }
}

TEST_CASE("every committed job is valid") {
  Psctl psctl;
  int jobs = 0;
  for (const char* folder : {"configs", "configs/examples"})
    for (const auto& entry :
         std::filesystem::directory_iterator(test::SourceDir() + "/" + folder)) {
      if (entry.path().extension() != ".yaml") continue;
      INFO(entry.path());
      ++jobs;
      CHECK(psctl.Run({"job", "validate", std::filesystem::absolute(entry.path()).string()}) ==
            kSucceeded);
      INFO(psctl.err.str());
      REQUIRE(psctl.Run({"job", "validate", "--effective",
                         std::filesystem::absolute(entry.path()).string()}) == kSucceeded);
    }
  CHECK(jobs >= 6);
}

}  // namespace
}  // namespace evergrad::psctl
