// The switches and counts of the emulated device (emulated_library.cc).
#pragma once

#include <cstdint>

namespace evergrad::worker {

struct EmulatedControl {
  std::uint64_t seed = 1;                   // of the order in which lanes run; before the first use
  std::uint64_t memory_bytes = 4ull << 30;  // of the device
  std::int32_t devices = 1;
  bool no_pinned = false, no_plans = false, no_plan_memory = false, fail_captures = false,
       fail_waits = false;
  // Products of 16 bits with an odd number of columns have none, those in TF32 with a multiple of 3
  // neither, nor convolutions with more padding on one side than on the other.
  bool choosy = true;
  std::uint64_t pinned_bytes_max = ~0ull;
  std::int64_t fail_after_ops = 0;     // the n-th operation from now fails; 0: none
  std::int64_t fail_after_copies = 0;  // likewise
  std::int32_t fail_kind = 6;          // EG_CUDA_FAILED
  std::int32_t major = 9;              // of its compute capability
  bool profiled = false;               // somebody listens to ranges
  float utilization = -1;              // what the driver says; below 0: it cannot be asked
  // An event that a graph records counts from when its node runs, not from when the graph is
  // launched: who awaits it meanwhile awaits the one before.
  bool late_graph_events = false;
  std::int64_t wrong_ops =
      0;  // the n-th operation or plan from now, and all behind it, compute something else; 0: none
  // Calls that CUDA refuses: of a thread that captures (queries and waits, page-locked memory,
  // copies, plans), of a graph whose events are gone.
  std::uint64_t illegal = 0;
  // What is there now, and what was done so far.
  std::int64_t events = 0, graphs = 0, plans = 0, ranges = 0;
  std::int64_t orphans = 0;     // graphs that had an event inside when that was dropped
  std::uint64_t tf32_runs = 0;  // of plans
  std::uint64_t ops = 0, plan_runs = 0, launches = 0, copies = 0, pageable_copies = 0, leaked = 0;
  std::uint64_t ranges_asked = 0;
  std::uint64_t pinned_bytes = 0,
                pinned_asked = 0;  // page-locked: there now, and how often it was asked for
  std::uint64_t overlapped =
      0;  // copies of the lane in that were done while work asked of the lane compute was not
  std::int64_t pending_in = 0;  // asked of the lane in and not done
};

using EmulatedControlEntry = EmulatedControl* (*)();

}  // namespace evergrad::worker
