// Measures trivial closures per second over real sessions. The coordinator's daemon writes its
// journal (SQLite, synchronous=FULL, group commit) and serves 1,000 simulated workers, which report
// each granted closure as done at once. Each worker has a session and a connection. All workers
// live in this process, on the one thread of its transport, and share the cores with the
// coordinator. The figure counts the DoneAnswers that arrive. Each of them means that the end of a
// closure is on disk.
//
// The rival and the coordinator are measured in turns. The rival is the simplest loop with the same
// messages over the same transport. It hands out the next number, checks that each Done is for a
// number that it handed out, and answers at once. It has no ledger, no fencing, no repair and no
// journal.
//
//   sessions_bench [--workers N] [--seconds S] [--rounds R] [--only ours|rival]
//                  [-- FLAGS of the coordinator …]
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <google/protobuf/arena.h>

#include "common/base/check.h"
#include "common/client/control.h"
#include "common/client/protocol.h"
#include "common/runtime/executor.h"
#include "common/transport/grpc/grpc_transport.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"
#include "tests/bench/figures.h"

namespace evergrad {
namespace {

using bench::Median;

using Clock = std::chrono::steady_clock;
namespace pb = google::protobuf;

// The number of closures of the job. It is more than can be done during the measurement.
constexpr std::uint64_t kClosures = 20'000'000;
constexpr std::uint32_t kOpen = 16384;  // the default of the coordinator's --closures-open-max
constexpr std::chrono::milliseconds kHeartbeat{375};

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Returns the CPU time of a process in seconds, user and system together.
double CpuOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return 0;
  unsigned long user = 0, system = 0;
  std::sscanf(text.c_str() + after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
              &user, &system);
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

v1::Hello HelloOf(v1::Role role, std::uint64_t number) {
  v1::Hello hello;
  hello.set_protocol_version(client::kProtocolVersion);
  hello.set_build_id("sessions_bench");
  hello.set_role(role);
  hello.set_identity(std::to_string(number));
  hello.set_process_uid((static_cast<std::uint64_t>(role) << 32) + number + 1);
  hello.set_pid(::getpid());
  hello.set_host("bench");
  hello.set_started_ms(1);
  if (role == v1::ROLE_PS_SERVER) hello.mutable_endpoint()->set_address("127.0.0.1:1");
  return hello;
}

// ---------------------------------------------------------------- the rival

// Hands out numbers. It is used on the transport's thread only.
class Rival {
 public:
  explicit Rival(std::uint32_t ahead) : ahead_(ahead) {}

  std::optional<transport::MessageStreamEvents> Open(
      std::shared_ptr<transport::MessageStream> stream) {
    transport::MessageStreamEvents events;
    events.on_message = [this, stream](const std::string& bytes) {
      pb::Arena arena;
      auto* batch = pb::Arena::CreateMessage<v1::TaskBatch>(&arena);
      auto* out = pb::Arena::CreateMessage<v1::CoordinatorBatch>(&arena);
      EG_CHECK(batch->ParseFromString(bytes));
      for (const v1::TaskMessage& message : batch->messages()) {
        if (message.has_hello()) {
          v1::Registered* registered = out->add_messages()->mutable_registered();
          registered->set_term(1);
          registered->set_identity(message.hello().identity());
          if (message.hello().role() != v1::ROLE_WORKER) continue;
          for (std::uint32_t i = 0; i < ahead_; ++i) Grant(out);
        }
        if (!message.has_done()) continue;
        const auto held = held_.find(message.done().attempt().n());
        EG_CHECK(held != held_.end() && held->second == message.done().closure());
        held_.erase(held);
        v1::DoneAnswer* answer = out->add_messages()->mutable_done_answer();
        answer->set_job_uid(1);
        answer->set_closure(message.done().closure());
        *answer->mutable_attempt() = message.done().attempt();
        Grant(out);
      }
      if (out->messages_size() > 0) EG_CHECK(stream->Send(out->SerializeAsString()).ok());
    };
    events.on_end = [](const absl::Status&) {};
    return events;
  }

 private:
  void Grant(v1::CoordinatorBatch* out) {
    v1::Grant* grant = out->add_messages()->mutable_grant();
    grant->set_job_uid(1);
    grant->set_closure(next_);
    grant->mutable_attempt()->set_term(1);
    grant->mutable_attempt()->set_n(next_);
    grant->set_kind(v1::TRAIN);
    grant->set_all_targets(true);
    held_[next_] = next_;
    ++next_;
  }
  const std::uint32_t ahead_;
  std::uint64_t next_ = 1;
  std::unordered_map<std::uint64_t, std::uint64_t> held_;
};

[[noreturn]] void ServeRival(const std::string& address_file, std::uint32_t ahead) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  transport::TuneAllocator();
  auto transport = transport::MakeGrpcTransport(nullptr);
  Rival rival(ahead);
  transport::Handlers handlers;
  handlers.stream = [&](const transport::PeerInfo&, absl::string_view,
                        std::shared_ptr<transport::MessageStream> stream) {
    return rival.Open(std::move(stream));
  };
  auto server = transport->Listen({}, std::move(handlers));
  EG_CHECK_MSG(server.ok(), server.status().ToString());
  {
    std::ofstream file(address_file + ".new");
    file << (*server)->address();
  }
  std::filesystem::rename(address_file + ".new", address_file);
  for (;;) ::pause();
}

// ---------------------------------------------------------------- the tasks

// One session. It is used on the transport's thread only.
class Task {
 public:
  Task(transport::Transport* transport, const std::string& address, v1::Role role,
       std::uint64_t number, std::atomic<std::uint64_t>* answered)
      : answered_(answered) {
    auto channel = transport->Dial({address, ""}, {});
    EG_CHECK_MSG(channel.ok(), channel.status().ToString());
    channel_ = *std::move(channel);
    transport::MessageStreamEvents events;
    events.on_message = [this](const std::string& bytes) { OnMessage(bytes); };
    events.on_end = [](const absl::Status&) {};
    stream_ = channel_->OpenStream(client::kSessionMethod, std::move(events));
    v1::TaskBatch batch;
    *batch.add_messages()->mutable_hello() = HelloOf(role, number);
    Send(batch);
  }
  ~Task() { stream_->Close(); }
  bool registered() const { return registered_.load(); }
  bool rejected() const { return rejected_.load(); }
  static inline std::atomic<std::uint64_t> messages{0};  // received by all tasks

  // Sends a heartbeat if the session has sent no message for the length of the heartbeat interval.
  // Any thread may call it.
  void HeartbeatIfQuiet() {
    if (!registered_.load() || Clock::now().time_since_epoch().count() - last_said_.load() <
                                   std::chrono::nanoseconds(kHeartbeat).count())
      return;
    v1::TaskBatch batch;
    batch.add_messages()->mutable_heartbeat()->set_sequence(1);
    Send(batch);
  }

 private:
  void Send(const v1::TaskBatch& batch) {
    last_said_.store(Clock::now().time_since_epoch().count());
    const absl::Status status = stream_->Send(batch.SerializeAsString());
    (void)status;  // The status is ignored, because the measurement has ended.
  }
  void OnMessage(const std::string& bytes) {
    pb::Arena arena;
    auto* batch = pb::Arena::CreateMessage<v1::CoordinatorBatch>(&arena);
    auto* out = pb::Arena::CreateMessage<v1::TaskBatch>(&arena);
    EG_CHECK(batch->ParseFromString(bytes));
    std::uint64_t answers = 0;
    for (const v1::CoordinatorMessage& m : batch->messages()) {
      switch (m.message_case()) {
        case v1::CoordinatorMessage::kRegistered: registered_ = true; break;
        case v1::CoordinatorMessage::kRejected:
          std::fprintf(stderr, "a session is refused: %s\n", m.rejected().message().c_str());
          rejected_ = true;
          break;
        case v1::CoordinatorMessage::kDoneAnswer: answers += !m.done_answer().superseded(); break;
        case v1::CoordinatorMessage::kGrant:
          Work(m.grant(), out->add_messages()->mutable_done());
          break;
        case v1::CoordinatorMessage::kAssign: {
          v1::Assigned* assigned = out->add_messages()->mutable_assigned();
          assigned->set_job_uid(m.assign().job_uid());
          assigned->set_shard(m.assign().spec().shard());
          *assigned->mutable_epoch() = m.assign().epoch();
          assigned->set_ok(true);
          break;
        }
        case v1::CoordinatorMessage::kClose: {
          v1::Closed* closed = out->add_messages()->mutable_closed();
          closed->set_job_uid(m.close().job_uid());
          closed->set_shard(m.close().shard());
          *closed->mutable_epoch() = m.close().epoch();
          closed->set_taken(true);
          break;
        }
        default: break;
      }
    }
    if (out->messages_size() > 0) Send(*out);
    if (answers > 0) answered_->fetch_add(answers);
    messages.fetch_add(1);
  }
  static void Work(const v1::Grant& grant, v1::Done* done) {
    done->set_job_uid(grant.job_uid());
    done->set_closure(grant.closure());
    *done->mutable_attempt() = grant.attempt();
    done->set_kind(grant.kind());
    done->set_all_targets(grant.all_targets());
    done->mutable_v0()->set_term(grant.attempt().term());
    done->mutable_v0()->set_n(~0ull >> 1);  // higher than the V0 of any rollback
    *done->mutable_v1() = grant.attempt();
    if (grant.kind() == v1::DESCRIBE) {
      done->mutable_describe()->set_train_examples(kClosures);
      v1::VariableSpec* v = done->mutable_describe()->add_variables();
      v->set_name("counting/samples");
      v->add_shape(kClosures);
      v->add_shape(1);
      v->set_dtype(v1::DTYPE_FLOAT32);
      v->mutable_optimizer()->set_type("counting");
      return;
    }
    done->mutable_metrics()->set_examples(1);
    done->mutable_metrics()->set_steps(1);
    v1::StepRecord* step = done->mutable_metrics()->add_step_records();
    step->set_global_step(grant.closure());
    step->set_loss(0.5);
    step->set_examples(1);
  }

  std::atomic<std::uint64_t>* const answered_;
  std::atomic<bool> registered_{false}, rejected_{false};
  std::atomic<std::int64_t> last_said_{0};
  std::unique_ptr<transport::Channel> channel_;
  std::unique_ptr<transport::MessageStream> stream_;
};

// ---------------------------------------------------------------- one measurement

struct Settings {
  std::uint64_t workers = 1000;
  double seconds = 4;
  int rounds = 3;
  std::string only;
  std::vector<std::string> flags;
};

struct Figures {
  double rate = 0;  // closures/s
  // CPU microseconds per closure of the server's process: the coordinator or the rival.
  double server_us = 0;
  double driver_us = 0;  // CPU microseconds per closure of this process
  double batch = 0;      // closures per message
};

pid_t StartCoordinator(const Settings& settings, const std::string& folder,
                       const std::string& address_file) {
  std::vector<std::string> words{
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "evergrad-coordinator")
          .string(),
      "--address-file",
      address_file,
      "--state-dir",
      folder + "/state",
      "--runs",
      folder + "/runs",
      "--log-file",
      folder + "/coordinator.log",
      "--log-level",
      "warning",
      "--tasks-max",
      std::to_string(settings.workers + 24),
      "--failpoints",
      "none"};  // the job is a counting job, and no failpoint is armed
  words.insert(words.end(), settings.flags.begin(), settings.flags.end());
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  std::perror(argv[0]);
  ::_exit(127);
}

class Waiting {
 public:
  // Waits until `until()` is true. Returns false after a minute.
  template <class F>
  static bool For(F until) {
    const auto begin = Clock::now();
    runtime::WaitableEvent never;
    while (!until()) {
      if (Since(begin) > 60) return false;
      never.WaitFor(std::chrono::milliseconds(5));
    }
    return true;
  }
};

Figures Measure(const Settings& settings, bool rival, int round) {
  std::string folder = (std::filesystem::temp_directory_path() / "evergrad-bench-XXXXXX").string();
  EG_CHECK(::mkdtemp(folder.data()) != nullptr);
  const std::string address_file = folder + "/address";
  std::fflush(stdout);
  const pid_t child = [&] {
    if (!rival) return StartCoordinator(settings, folder, address_file);
    const pid_t pid = ::fork();
    if (pid == 0)
      ServeRival(address_file,
                 static_cast<std::uint32_t>(std::max<std::uint64_t>(2, kOpen / settings.workers)));
    return pid;
  }();
  EG_CHECK_MSG(Waiting::For([&] { return std::filesystem::exists(address_file); }),
               "the server did not start");
  std::string address;
  std::getline(std::ifstream(address_file), address);

  // Another process runs the workers, because this one uses gRPC and may no longer fork.
  int ends[2];
  EG_CHECK(::pipe(ends) == 0);
  const pid_t driver = ::fork();
  if (driver == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    transport::TuneAllocator();
    Figures figures;
    {
      auto transport = transport::MakeGrpcTransport(nullptr);
      std::atomic<std::uint64_t> answered{0};
      std::vector<std::unique_ptr<Task>> tasks;
      if (!rival)
        tasks.push_back(
            std::make_unique<Task>(transport.get(), address, v1::ROLE_PS_SERVER, 0, &answered));
      for (std::uint64_t i = 0; i < settings.workers; ++i)
        tasks.push_back(
            std::make_unique<Task>(transport.get(), address, v1::ROLE_WORKER, i, &answered));
      const auto all = [&] {
        for (auto& task : tasks) task->HeartbeatIfQuiet();
        return std::all_of(tasks.begin(), tasks.end(),
                           [](const auto& task) { return task->registered(); });
      };
      EG_CHECK_MSG(Waiting::For(all), "not every session was accepted");
      if (!rival) {
        auto channel = transport->Dial({address, ""}, {});
        EG_CHECK(channel.ok());
        v1::SubmitJobRequest request;
        request.set_yaml(
            "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: "
            "bench}\nspec:\n  type: counting\n  counting: {examples: " +
            std::to_string(kClosures) +
            ", shards: 4}\n  data: {batch_size: 1, shuffle: {seed: 7}}\n  training: {epochs: 1, "
            "steps_per_closure: 1}\n  checkpoint: off\n");
        const auto answer = client::CallControl<v1::SubmitJobResponse>(**channel, request,
                                                                       std::chrono::seconds(30));
        EG_CHECK_MSG(answer.ok(), answer.status().ToString());
      }
      EG_CHECK_MSG(Waiting::For([&] {
                     all();
                     return answered.load() > settings.workers;
                   }),
                   "no closures end");
      runtime::WaitableEvent never;
      const auto run = [&](double seconds) {
        const auto begin = Clock::now();
        while (Since(begin) < seconds) {
          all();
          never.WaitFor(std::chrono::milliseconds(50));
        }
        return Since(begin);
      };
      run(1.0);
      const std::uint64_t before = answered.load(), messages_before = Task::messages.load();
      const double server_before = CpuOf(child), driver_before = CpuOf(::getpid());
      const double seconds = run(settings.seconds);
      const double closures = static_cast<double>(answered.load() - before);
      figures.rate = closures / seconds;
      figures.batch = closures / static_cast<double>(Task::messages.load() - messages_before);
      figures.server_us = (CpuOf(child) - server_before) / closures * 1e6;
      figures.driver_us = (CpuOf(::getpid()) - driver_before) / closures * 1e6;
      EG_CHECK_MSG(std::none_of(tasks.begin(), tasks.end(),
                                [](const auto& task) { return task->rejected(); }),
                   "a session was refused meanwhile");
      EG_CHECK(::write(ends[1], &figures, sizeof(figures)) == sizeof(figures));
      ::kill(child, SIGKILL);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  Figures figures;
  const bool read = ::read(ends[0], &figures, sizeof(figures)) == sizeof(figures);
  ::close(ends[0]);
  ::waitpid(driver, nullptr, 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (!read) {
    std::ifstream log(folder + "/coordinator.log");
    std::fprintf(
        stderr, "%s\n",
        std::string((std::istreambuf_iterator<char>(log)), std::istreambuf_iterator<char>())
            .c_str());
    std::exit(1);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  std::fprintf(stderr,
               "%s, round %d: %.0f closures/s, CPU us per closure: server %.1f, driver %.1f; "
               "closures per message %.1f\n",
               rival ? "rival" : "ours", round, figures.rate, figures.server_us, figures.driver_us,
               figures.batch);
  return figures;
}

int Main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      EG_CHECK_MSG(i + 1 < argc, "a value is missing");
      return std::string(argv[++i]);
    };
    if (word == "--workers")
      settings.workers = std::stoull(value());
    else if (word == "--seconds")
      settings.seconds = std::stod(value());
    else if (word == "--rounds")
      settings.rounds = std::stoi(value());
    else if (word == "--only")
      settings.only = value();
    else if (word == "--") {
      settings.flags.assign(argv + i + 1, argv + argc);
      break;
    } else {
      std::fprintf(stderr, "unknown argument: %s\n", word.c_str());
      return 2;
    }
  }
  ::signal(SIGPIPE, SIG_IGN);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  std::vector<double> ours, theirs, ratios, ours_cpu, theirs_cpu;
  for (int round = 0; round < settings.rounds; ++round) {
    Figures a, b;
    if (settings.only != "rival") a = Measure(settings, false, round);
    if (settings.only != "ours") b = Measure(settings, true, round);
    ours.push_back(a.rate);
    ours_cpu.push_back(a.server_us);
    theirs.push_back(b.rate);
    theirs_cpu.push_back(b.server_us);
    ratios.push_back(b.rate > 0 ? a.rate / b.rate : 0);
  }
  const std::string workers = std::to_string(settings.workers) + " simulated workers";
  bench::Print("closures over real sessions, " + workers + ", journal on", Median(ours),
               "closures/s", "what it must reach", 50000, Median(ours) / 50000, 1);
  bench::Print("the same beside a bare loop", Median(ours), "closures/s",
               "numbers handed out over the same sessions, no journal", Median(theirs),
               Median(ratios), bench::kNoReach);
  bench::Print("coordinator's CPU per closure", Median(ours_cpu), "us", "the bare loop's",
               Median(theirs_cpu), Median(ours_cpu) / std::max(1e-9, Median(theirs_cpu)),
               bench::kNoReach);
  return 0;
}

}  // namespace
}  // namespace evergrad

int main(int argc, char** argv) { return evergrad::Main(argc, argv); }
