// What the processes of one identity have counted during one job. Pure.
//
// A process reports totals, again and again, and may be declared gone and return: so each is taken
// as what it says, never added up. It counts from when it began to serve the job; where it has
// served another one meanwhile it begins anew, and says so by another stint. Only the newest
// process of an identity can report (membership refuses a replaced one), so one such total is
// enough; those before it are a sum.
#pragma once

#include <cstdint>

namespace evergrad::coordinator {

struct Counts {
  std::uint64_t steps = 0, examples = 0;
  std::uint64_t bytes = 0, duplicates = 0;
};

class Tally {
 public:
  // A process registers. A repeat of the one that is counted now changes nothing. Whether a new
  // process began.
  bool Begin(std::uint64_t process) {
    if (begun_ && process == process_) return false;
    Anew(0);
    process_ = process;
    begun_ = true;
    return true;
  }
  void Report(std::uint64_t stint, const Counts& now) {
    if (stint != stint_) Anew(stint);
    Move(now.steps, &Counts::steps);
    Move(now.examples, &Counts::examples);
    Move(now.bytes, &Counts::bytes);
    Move(now.duplicates, &Counts::duplicates);
  }
  Counts total() const {
    return {former_.steps + last_.steps, former_.examples + last_.examples,
            former_.bytes + last_.bytes, former_.duplicates + last_.duplicates};
  }

  // For the journal: a tally as it is, and as it was.
  struct Parts {
    bool begun = false;
    std::uint64_t process = 0, stint = 0;
    Counts former, last;
  };
  Parts parts() const { return {begun_, process_, stint_, former_, last_}; }
  static Tally Of(const Parts& parts) {
    Tally tally;
    tally.begun_ = parts.begun;
    tally.process_ = parts.process;
    tally.stint_ = parts.stint;
    tally.former_ = parts.former;
    tally.last_ = parts.last;
    return tally;
  }

 private:
  void Anew(std::uint64_t stint) {
    former_ = total();
    last_ = Counts{};
    stint_ = stint;
  }
  // A total that falls though nothing was said of another stint: what it had counted stays.
  void Move(std::uint64_t now, std::uint64_t Counts::*field) {
    if (now < last_.*field) former_.*field += last_.*field;
    last_.*field = now;
  }

  bool begun_ = false;
  std::uint64_t process_ = 0, stint_ = 0;
  Counts former_, last_;
};

}  // namespace evergrad::coordinator
