#include "tests/simulation/task.h"

#include "absl/strings/str_cat.h"

namespace evergrad::simulation {

void Task::EndSession() {
  if (connected) earlier.push_back(task);
  connected = registered = welcomed = false;
  in.Clear();
  out.Clear();
}

void Task::OnRegistered(const Down& m) {
  welcomed = true;
  if (m.term.value() < highest_term ||
      (m.term.value() == highest_term && m.life != life && life != 0)) {
    walk_.Fail(
        absl::StrCat("I4 the term fell for a task: seen=", highest_term, " got=", m.term.value()));
  }
  highest_term = m.term.value();
  life = m.life;
}

}  // namespace evergrad::simulation
