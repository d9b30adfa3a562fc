#include "tests/simulation/faults.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace evergrad::simulation {

void Faults::MakeOne() {
  const WalkOptions& options = walk_.options;
  const bool late = walk_.result.events > 300;
  const double y = walk_.random.Unit();
  if (y < 0.25) {
    KillWorker();
  } else if (y < 0.45) {
    KillServer();
  } else if (y < 0.72) {
    DisconnectTask();
  } else if (y < 0.77) {
    DoubleServer();
  } else if (y < 0.87) {
    if (!coordinator_.running()) return;
    walk_.Count("coordinator killed");
    coordinator_.Kill();
  } else if (y < 0.90 && coordinator_.running()) {
    if (options.ends_early && !parts_.early_end.begun() && late && walk_.random.Chance(0.6)) {
      coordinator_.EndEarly();
    } else {
      Cancel();
    }
  } else if (y < 0.93 && options.foreign) {
    parts_.tasks.WithAny([&](Task& t) { MeetForeignCoordinator(t); });
  } else if (y >= 0.93 && y < 0.96) {
    if (options.damage) parts_.folder.Damage();
  } else if (y >= 0.96 && options.resumes && late) {
    resume_.AfterLoss();
  }
}

void Faults::KillWorker() {
  SimulatedWorker& w = parts_.tasks.AnyWorker();
  walk_.Count("worker killed");
  walk_.Trace("worker ", w.process, " dies");
  parts_.book.EndSession(w);
  parts_.tasks.Remove(w);
  parts_.tasks.StartWorker();
}

void Faults::KillServer() {
  Tasks& tasks = parts_.tasks;
  SimulatedServer& s = tasks.AnyServer();
  walk_.Count("server killed");
  walk_.Trace("server ", s.process, " of identity ", s.identity(), " dies");
  const std::string identity = s.identity();
  parts_.book.EndSession(s);
  tasks.Remove(s);
  if (tasks.servers().size() >= kServers) return;
  if (walk_.random.Chance(0.6)) {
    tasks.StartServer(identity);
  } else {
    tasks.StartServer();
  }
}

void Faults::DisconnectTask() {
  parts_.tasks.WithAny([&](Task& t) {
    walk_.Count("session cut");
    walk_.Trace("session of process ", t.process, " is cut");
    parts_.book.EndSession(t);
  });
}

void Faults::DoubleServer() {
  Tasks& tasks = parts_.tasks;
  if (tasks.servers().size() >= kServers + 1) return;
  for (const auto& s : tasks.servers()) {
    if (s->connected) continue;
    walk_.Count("server doubled");
    tasks.StartServer(s->identity());
    return;
  }
}

void Faults::Cancel() {
  const std::uint64_t c = walk_.random.Below(kClosures);
  if (parts_.book.cancelled() < 2 && !parts_.early_end.begun()) parts_.book.Cancel(c);
}

void Faults::MeetForeignCoordinator(Task& t) {
  JournaledBook& book = parts_.book;
  walk_.Count("foreign coordinator");
  book.EndSession(t);
  t.highest_term =
      std::max(t.highest_term, book.open() ? book.state().term.value() : 0) + walk_.random.Below(3);
  t.life = walk_.random.Next() & ~1ull;
  walk_.Trace("process ", t.process, " meets another coordinator: term=", t.highest_term);
  if (walk_.random.Chance(0.5)) t.ForgetJobs(book.job());
}

}  // namespace evergrad::simulation
