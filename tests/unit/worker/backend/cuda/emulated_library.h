// The settings and counters of the emulated device (emulated_library.cc).
#pragma once

#include <cstdint>

namespace evergrad::worker {

struct EmulatedControl {
  std::uint64_t seed = 1;  // determines the order of the lanes' work; set it before the first use
  std::uint64_t memory_bytes = 4ull << 30;  // memory of the device
  std::int32_t devices = 1;
  bool no_pinned = false, no_plans = false, no_plan_memory = false, fail_captures = false,
       fail_waits = false;
  // If true, 16-bit products have no algorithm for an odd number of columns, and TF32 products have
  // none for a multiple of 3 columns. Convolutions have none if one side has more padding than the
  // opposite side.
  bool choosy = true;
  std::uint64_t pinned_bytes_max = ~0ull;
  std::int64_t fail_after_ops = 0;     // the n-th operation from now fails; 0: none
  std::int64_t fail_after_copies = 0;  // the n-th copy from now fails; 0: none
  std::int32_t fail_kind = 6;          // EG_CUDA_FAILED
  std::int32_t major = 9;              // the major number of its compute capability
  bool profiled = false;               // whether a profiler listens to ranges
  float utilization = -1;              // the driver's answer; below 0: there is no driver
  // If true, an event that a graph records is recorded when its node runs, and not when the graph
  // is launched. A wait that comes earlier then waits for the event's previous record.
  bool late_graph_events = false;
  // The n-th operation or plan from now computes a wrong result, and so do all later ones. 0: none.
  std::int64_t wrong_ops = 0;
  // The number of calls that CUDA would refuse. These are calls of a thread that is capturing
  // (queries and waits, page-locked memory, copies, plans), and launches of a graph after one of
  // its events was dropped.
  std::uint64_t illegal = 0;
  // The numbers of objects that exist now.
  std::int64_t events = 0, graphs = 0, plans = 0, ranges = 0;
  std::int64_t orphans = 0;     // graphs that contained an event when it was dropped
  std::uint64_t tf32_runs = 0;  // number of plans that were run in TF32
  std::uint64_t ops = 0, plan_runs = 0, launches = 0, copies = 0, pageable_copies = 0, leaked = 0;
  std::uint64_t ranges_asked = 0;
  // The number of bytes of page-locked memory now, and how often such memory was requested.
  std::uint64_t pinned_bytes = 0, pinned_asked = 0;
  // The number of copies on lane `in` that were done before work on lane `compute` that was
  // requested earlier.
  std::uint64_t overlapped = 0;
  std::int64_t pending_in = 0;  // operations of lane `in` that are not done yet
};

using EmulatedControlEntry = EmulatedControl* (*)();

}  // namespace evergrad::worker
