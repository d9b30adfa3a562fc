// Tests child processes: how they are started, watched and ended. Shell scripts take the place of
// the daemons.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/runtime/executor.h"
#include "coordinator/psctl/local_cluster.h"
#include "tests/support/temp_folder.h"

namespace evergrad::psctl {
namespace {

struct Folder : test::TempFolder {
  // Makes a shell script that stands for a daemon. The script writes its address file and its
  // arguments, and then executes `body`.
  void Script(const std::string& name, const std::string& body) const {
    const std::string file = *this / name;
    std::ofstream(file) << "#!/bin/sh\nall=\"$*\"\nwhile [ $# -gt 0 ]; do [ \"$1\" = "
                           "--address-file ] && file=$2; shift; done\n[ -z \"$file\" ] || "
                           "echo \"$all\" >> \"$file.args\"\n"
                        << body;
    chmod(file.c_str(), 0755);
  }
};

struct Stage {
  Folder folder;
  RealClock clock;
  runtime::WaitableEvent never;
  LocalOptions options;
  Stage() {
    options.bin = folder.path();
    options.folder = folder / "cluster";
    options.runs = folder / "runs";
    options.workers = 2;
    options.servers = 1;
    const std::string idle =
        "trap 'exit 0' TERM\n( exec sleep 1000 ) & child=$!\ntrap 'kill $child; exit 0' TERM\nwait "
        "$child\n";
    folder.Script("evergrad-coordinator",
                  "echo 127.0.0.1:1234 > \"$file.new\" && mv \"$file.new\" \"$file\"\n" + idle);
    folder.Script("evergrad-ps-server", idle);
    folder.Script("evergrad-worker", idle);
  }
  std::function<bool(std::chrono::milliseconds)> Pause() {
    return [this](std::chrono::milliseconds wait) {
      never.WaitFor(wait);
      return true;
    };
  }
  // Ticks the cluster until `done` returns true, for at most 20 s. Returns the messages of the
  // ticks.
  template <class Done>
  std::vector<std::string> TickUntil(LocalCluster& cluster, Done done) {
    std::vector<std::string> news;
    const MonoTime until = clock.Now() + std::chrono::seconds(20);
    while (!done() && clock.Now() < until) {
      for (std::string& line : cluster.Tick()) news.push_back(std::move(line));
      never.WaitFor(std::chrono::milliseconds(10));
    }
    REQUIRE(done());
    return news;
  }
};

TEST_CASE("the plan names every task and divides the cores among the workers") {
  LocalOptions options;
  options.folder = "/f";
  options.runs = "/r";
  options.workers = 2;
  options.servers = 1;
  options.failpoints = "none";
  const auto tasks = PlanTasks(options, 5);
  REQUIRE(tasks.size() == 4);
  CHECK(tasks[0].Name() == "coordinator");
  CHECK(tasks[1].Name() == "ps_server/0");
  CHECK(tasks[3].FileName() == "worker-1");
  CHECK(tasks[3].args ==
        std::vector<std::string>{"--name", "1", "--threads", "2", "--failpoints", "none"});
  CHECK(ArgumentsOf(tasks[0], "/f", "127.0.0.1:7") ==
        std::vector<std::string>{"--address-file", "/f/coordinator.address", "--listen",
                                 "127.0.0.1:7", "--runs", "/r", "--state-dir", "/f/state",
                                 "--failpoints", "none"});
  CHECK(PlanTasks(options, 1)[3].args[3] == "1");
  options.failpoints.clear();
  options.device = "cpu";
  CHECK(PlanTasks(options, 5)[3].args ==
        std::vector<std::string>{"--name", "1", "--threads", "2", "--device", "cpu"});
  options.device.clear();
  options.gpus = true;
  CHECK(PlanTasks(options, 5)[2].args.back() == "gpu:0");
  CHECK(PlanTasks(options, 5)[3].args ==
        std::vector<std::string>{"--name", "1", "--threads", "2", "--device", "gpu:1"});
}

TEST_CASE("the folders of data and checkpoints are passed to the tasks that they confine") {
  LocalOptions options;
  options.folder = "/f";
  options.runs = "/r";
  options.workers = 1;
  options.servers = 1;
  options.data_roots = {"/data", "/more"};
  options.checkpoint_roots = {"/saved"};
  const auto tasks = PlanTasks(options, 4);
  const auto ends = [](const LocalTask& task, std::vector<std::string> with) {
    return task.args.size() >= with.size() &&
           std::equal(with.rbegin(), with.rend(), task.args.rbegin());
  };
  CHECK(ends(tasks[0], {"--checkpoint-root", "/saved"}));
  // The runs folder is allowed, too, because it gets the checkpoints of jobs that name no folder.
  CHECK(ends(tasks[1], {"--index", "0", "--checkpoint-root", "/saved", "--checkpoint-root", "/r"}));
  CHECK(ends(tasks[2], {"--data-root", "/data", "--data-root", "/more"}));
}

TEST_CASE(
    "the GPUs of this host are those that its worker lists, and so is the reason for their "
    "absence") {
  Stage stage;
  stage.folder.Script(
      "evergrad-worker",
      "case \"$all\" in --list-devices) echo 'gpu:0 A'; echo 'gpu:1 B' ;; *) exit 9 ;; esac\n");
  const auto count = CountGpus(stage.options, stage.clock, stage.Pause());
  REQUIRE(count.ok());
  CHECK(*count == 2);
  stage.folder.Script("evergrad-worker",
                      "echo 'evergrad-worker: no GPU: no device (100)' >&2; exit 2\n");
  const auto none = CountGpus(stage.options, stage.clock, stage.Pause());
  CHECK(none.status().message() ==
        "--gpus: no GPU can be used on this host: evergrad-worker: no GPU: no device (100)");
  CHECK(BlameOf(none.status()) == Blame::kUser);
  stage.folder.Script("evergrad-worker", "exit 0\n");
  CHECK_FALSE(CountGpus(stage.options, stage.clock, stage.Pause()).ok());
  // If the user interrupts the wait, the child process must be ended.
  stage.folder.Script("evergrad-worker", "exec sleep 1000\n");
  CHECK(absl::IsCancelled(CountGpus(stage.options, stage.clock, [](std::chrono::milliseconds) {
                            return false;
                          }).status()));
}

TEST_CASE(
    "a task that dies at once is restarted with rising delays, and a task that lived is restarted "
    "at once") {
  std::chrono::milliseconds before(0);
  for (int starts = 1; starts < 10; ++starts) {
    const auto delay = RestartDelay(starts, std::chrono::seconds(1));
    CHECK(delay >= before);
    CHECK(delay <= std::chrono::seconds(5));
    before = delay;
  }
  CHECK(before == std::chrono::seconds(5));
  CHECK(RestartDelay(9, std::chrono::minutes(1)) == std::chrono::milliseconds(100));
}

TEST_CASE("a cluster starts, gets the coordinator's address, and leaves no process behind") {
  Stage stage;
  std::vector<ProcessId> processes;
  {
    LocalCluster cluster(stage.options, &stage.clock, stage.Pause());
    REQUIRE(cluster.Start().ok());
    CHECK(cluster.coordinator_address() == "127.0.0.1:1234");
    for (const LocalTask& task : cluster.tasks()) {
      processes.push_back(task.process);
      CHECK(IsAlive(task.process));
      CHECK(getpgid(task.process.pid) == getpgrp());
      CHECK(ReadPidFile(stage.options.folder + "/" + task.FileName() + ".pid")->pid ==
            task.process.pid);
    }
    CHECK_FALSE(cluster.broken().has_value());
    const std::string args_file = stage.options.folder + "/worker-0.address.args";
    stage.TickUntil(cluster, [&] {
      return std::filesystem::exists(args_file) && std::filesystem::file_size(args_file) > 0;
    });
    std::ifstream file(args_file);
    std::string args;
    std::getline(file, args);
    CHECK_THAT(args, Catch::Contains("--coordinator 127.0.0.1:1234 --name 0"));
    // A process that is suspended (SIGSTOP) must get SIGTERM, too.
    kill(processes.back().pid, SIGSTOP);
  }
  for (const ProcessId& process : processes) CHECK_FALSE(IsAlive(process));
  CHECK_FALSE(std::filesystem::exists(stage.options.folder + "/coordinator.pid"));
}

TEST_CASE("a task that exits unexpectedly is reported with the last lines of its log") {
  Stage stage;
  stage.options.workers = 1;
  for (const char* const line : {"2026-01-01T00:00:00.000Z error worker/0 job=- closure=- device "
                                 "gpu is not usable: no device (100)",
                                 "device gpu is not usable: no device (100)"}) {
    stage.folder.Script("evergrad-worker",
                        absl::StrCat("echo before; echo '", line, "'; exit 3\n"));
    LocalCluster cluster(stage.options, &stage.clock, stage.Pause());
    REQUIRE(cluster.Start().ok());
    const auto news = stage.TickUntil(cluster, [&] { return !cluster.tasks()[2].running; });
    REQUIRE(news.size() == 1);
    CHECK_THAT(news[0], Catch::StartsWith("worker/0 (pid ") &&
                            Catch::Contains(
                                ") ended with code 3: device gpu is not usable: no device (100)"));
  }
}

TEST_CASE(
    "without supervision the cluster fails after a server's death, or after the death of its last "
    "worker") {
  Stage stage;
  LocalCluster cluster(stage.options, &stage.clock, stage.Pause());
  REQUIRE(cluster.Start().ok());
  kill(cluster.tasks()[2].process.pid, SIGKILL);
  const auto news = stage.TickUntil(cluster, [&] { return !cluster.tasks()[2].running; });
  REQUIRE(news.size() == 1);
  CHECK_THAT(news[0], Catch::Contains("worker/0") && Catch::Contains("was killed by signal 9"));
  CHECK_FALSE(cluster.broken().has_value());
  kill(cluster.tasks()[3].process.pid, SIGKILL);
  stage.TickUntil(cluster, [&] { return !cluster.tasks()[3].running; });
  REQUIRE(cluster.broken().has_value());
  CHECK_THAT(cluster.broken()->text, Catch::Contains("every worker has ended"));
  kill(cluster.tasks()[0].process.pid, SIGKILL);
  stage.TickUntil(cluster, [&] { return !cluster.tasks()[0].running; });
  CHECK(cluster.broken()->coordinator);
}

TEST_CASE("with supervision dead tasks are restarted, and the coordinator keeps its address") {
  Stage stage;
  stage.options.supervise = true;
  LocalCluster cluster(stage.options, &stage.clock, stage.Pause());
  REQUIRE(cluster.Start().ok());
  const pid_t worker = cluster.tasks()[2].process.pid, coordinator = cluster.tasks()[0].process.pid;
  kill(worker, SIGKILL);
  kill(coordinator, SIGKILL);
  const auto news = stage.TickUntil(
      cluster, [&] { return cluster.tasks()[0].starts == 2 && cluster.tasks()[2].starts == 2; });
  CHECK(news.size() == 4);
  CHECK(cluster.tasks()[2].process.pid != worker);
  CHECK_FALSE(cluster.broken().has_value());
  const std::string args_file = stage.options.folder + "/coordinator.address.args";
  std::string second;
  stage.TickUntil(cluster, [&] {
    std::ifstream file(args_file);
    return std::getline(file, second) && std::getline(file, second);
  });
  CHECK_THAT(second, Catch::Contains("--listen 127.0.0.1:1234"));
}

TEST_CASE("a coordinator that exits before it listens is reported with its log") {
  Stage stage;
  stage.folder.Script("evergrad-coordinator", "echo 'cannot bind' >&2\nexit 3\n");
  LocalCluster cluster(stage.options, &stage.clock, stage.Pause());
  const absl::Status started = cluster.Start();
  CHECK_THAT(std::string(started.message()),
             Catch::Contains("ended with code 3") && Catch::Contains("cannot bind"));
  std::filesystem::remove(stage.folder / "evergrad-coordinator");
  LocalCluster missing(stage.options, &stage.clock, stage.Pause());
  CHECK_THAT(std::string(missing.Start().message()), Catch::Contains("no such program"));
}

TEST_CASE("a reused pid is not mistaken for the process of a pid file") {
  const auto self = IdentityOf(getpid());
  REQUIRE(self.ok());
  CHECK(IsAlive(*self));
  CHECK_FALSE(IsAlive({self->pid, self->start_ticks + 1}));
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK_FALSE(IdentityOf(child).ok());  // a zombie process counts as ended
  waitpid(child, nullptr, 0);
  Folder folder;
  REQUIRE(WritePidFile(folder / "x.pid", *self).ok());
  CHECK(ReadPidFile(folder / "x.pid")->start_ticks == self->start_ticks);
  std::ofstream(folder / "y.pid") << "1 2\n";
  CHECK_FALSE(ReadPidFile(folder / "y.pid").has_value());  // the process id 1 is never accepted
  CHECK_FALSE(ReadPidFile(folder / "z.pid").has_value());
}

}  // namespace
}  // namespace evergrad::psctl
