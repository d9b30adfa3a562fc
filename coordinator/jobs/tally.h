// What the processes of one identity have counted during one job. Pure.
//
// A process reports totals since its own start, again and again, and may be declared gone and return: so each is counted by the
// difference to what it had before the job, never by adding reports up. Only the newest process of an identity can report
// (membership refuses a replaced one), so one base is enough; those before it are a sum.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace evergrad::coordinator {

struct Counts {
  std::uint64_t steps = 0, examples = 0;  // the process begins these anew with each job
  std::uint64_t bytes = 0, duplicates = 0;
};

class Tally {
 public:
  // A process registers. A repeat of the one that is counted now changes nothing. `older`: it has run since before the job, so what
  // it says first of bytes and duplicates is not the job's.
  // Whether a new process began.
  bool Begin(std::uint64_t process, bool older) {
    if (begun_ && process == process_) return false;
    former_ = total();
    process_ = process;
    begun_ = true;
    base_ = last_ = Counts{};
    base_unknown_ = older;
    return true;
  }
  // What the process had before the job. Only before its first report.
  void SetBase(std::uint64_t bytes, std::uint64_t duplicates) {
    base_ = Counts{0, 0, bytes, duplicates};
    last_ = base_;
    base_unknown_ = false;
  }
  void Report(const Counts& now) {
    if (base_unknown_) SetBase(now.bytes, now.duplicates);
    Move(now.steps, &Counts::steps);
    Move(now.examples, &Counts::examples);
    Move(now.bytes, &Counts::bytes);
    Move(now.duplicates, &Counts::duplicates);
  }
  Counts total() const {
    return {former_.steps + last_.steps - base_.steps, former_.examples + last_.examples - base_.examples, former_.bytes + last_.bytes - base_.bytes,
            former_.duplicates + last_.duplicates - base_.duplicates};
  }

  // For the journal: a tally as it is, and as it was.
  struct Parts {
    bool begun = false, base_unknown = false;
    std::uint64_t process = 0;
    Counts former, base, last;
  };
  Parts parts() const { return {begun_, base_unknown_, process_, former_, base_, last_}; }
  // What does not fit together (base above last) is taken as nothing counted since.
  static Tally Of(Parts parts) {
    Tally tally;
    tally.begun_ = parts.begun;
    tally.base_unknown_ = parts.base_unknown;
    tally.process_ = parts.process;
    tally.former_ = parts.former;
    for (std::uint64_t Counts::*field : {&Counts::steps, &Counts::examples, &Counts::bytes, &Counts::duplicates}) {
      tally.base_.*field = parts.base.*field;
      tally.last_.*field = parts.last.*field < parts.base.*field ? parts.base.*field : parts.last.*field;
    }
    return tally;
  }

 private:
  // A total that falls was begun anew (a worker that was told of no job for a moment): what it had counted stays.
  void Move(std::uint64_t now, std::uint64_t Counts::*field) {
    if (now < last_.*field) {
      former_.*field += last_.*field - base_.*field;
      base_.*field = 0;
    }
    last_.*field = now;
  }

  bool begun_ = false, base_unknown_ = false;
  std::uint64_t process_ = 0;
  Counts former_, base_, last_;  // base_ <= last_, field by field
};

}  // namespace evergrad::coordinator
