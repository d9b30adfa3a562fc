// Emulates a device on the host. The library has the function table of cuda_abi.h, over plain
// memory, with the kernels of worker/backend/cuda/kernels. It is used to test the worker's part of
// the backend, so it is as strict as a device may be:
//
// - Operations do not run when they are requested. Each lane is a queue, whose operations run only
//   when the host waits. The order between lanes is random, but respects the events.
//   waits, in a random order that respects the events.
// - Memory is filled with NaN when it is allocated and when it is freed.
// - The threads of a kernel run in descending order.
// - While a step is captured, memory cannot be allocated, nothing can be copied, no event can be
//   queried or waited for, and no plan can be made (CUDA's programming guide, "prohibited and
//   unhandled operations" of stream capture).
// - The host can access the device's memory only while lanes run. At other times an access ends the
//   process. Larger amounts of memory than kGuardedMax are not protected, because to protect them
//   takes milliseconds each time.
// - An access past the end of an allocation ends the process.
// - Any use of an event that was dropped fails, in particular if a graph uses it.
//
// The device has a clock that is independent of this machine's clock. A kernel occupies its lane
// for 1 ms, and a copy for 2 ms. An operation begins at the latest of three times: its request, the
// end of the operation before it in its lane, and the event that it awaits. When the host waits for
// an event, the host's emulated clock moves to the time of the event.
//
// `emulated_control` (emulated_library.h) has the settings for tests. In a daemon,
// EVERGRAD_EMULATED_FAIL_AFTER_COPIES sets fail_after_copies, EVERGRAD_EMULATED_MEMORY_BYTES sets
// memory_bytes, and EVERGRAD_EMULATED_DEVICES sets devices.
#include "tests/unit/worker/backend/cuda/emulated_library.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <type_traits>
#include <vector>

#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/kernels/launch.h"

using evergrad::worker::EmulatedControl;

namespace {

EmulatedControl control = [] {
  EmulatedControl made;
  const auto number = [](const char* name, auto* to) {
    if (const char* const text = std::getenv(name); text != nullptr)
      *to = static_cast<std::remove_pointer_t<decltype(to)>>(std::atoll(text));
  };
  number("EVERGRAD_EMULATED_FAIL_AFTER_COPIES", &made.fail_after_copies);
  number("EVERGRAD_EMULATED_MEMORY_BYTES", &made.memory_bytes);
  number("EVERGRAD_EMULATED_DEVICES", &made.devices);
  return made;
}();

std::uint64_t Draw() {
  static std::uint64_t state = control.seed;
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return state >> 33;
}

constexpr double kKernelCost = 1, kCopyCost = 2;  // ms

// Returns whether the operation that is being requested must compute a wrong result.
bool Wrong() {
  return control.wrong_ops > 0 && (control.wrong_ops == 1 || --control.wrong_ops == 1);
}

int32_t Fail(int32_t kind, EgCudaError* error, const char* text) {
  error->kind = kind;
  error->code = 0;
  std::snprintf(error->text, sizeof error->text, "%s", text);
  return kind;
}

struct HostLauncher {
  template <typename Op>
  std::int32_t Map(std::int64_t count, const Op& op) {
    for (std::int64_t i = count; i-- > 0;) op(i);
    return 0;
  }
  template <int kThreads, typename Op>
  std::int32_t Teams(std::int64_t count, const Op& op) {
    const evergrad::cuda::HostTeam<kThreads> team;
    for (std::int64_t i = count; i-- > 0;) op(team, i);
    return 0;
  }
  std::int32_t Zero(void* to, std::uint64_t bytes) {
    std::memset(to, 0, bytes);
    return 0;
  }
  std::int32_t Copy(void* to, const void* from, std::uint64_t bytes) {
    std::memcpy(to, from, bytes);
    return 0;
  }
  static std::int64_t SortBytes(std::int64_t) { return 256; }
  std::int32_t Sort(const std::uint32_t* keys, const std::uint32_t* values,
                    std::uint32_t* sorted_keys, std::uint32_t* sorted_values, std::int64_t n,
                    int bits, void*) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) order[static_cast<std::size_t>(i)] = i;
    const auto key = [&](std::int64_t i) {
      return bits >= 32 ? keys[i] : keys[i] & ((1u << bits) - 1);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return key(a) < key(b); });
    for (std::int64_t i = 0; i < n; ++i)
      sorted_keys[i] = keys[order[static_cast<std::size_t>(i)]],
      sorted_values[i] = values[order[static_cast<std::size_t>(i)]];
    return 0;
  }
};

std::mutex pinned_mutex;
std::map<const char*, std::uint64_t> pinned;

bool IsPinned(const void* memory) {
  const std::lock_guard lock(pinned_mutex);
  const auto after = pinned.upper_bound(static_cast<const char*>(memory));
  return after != pinned.begin() &&
         static_cast<const char*>(memory) < std::prev(after)->first + std::prev(after)->second;
}

}  // namespace

// When a queued operation runs, its event may have been dropped. The operation therefore holds the
// state of the event and not the event itself.
struct EventState {
  std::uint64_t recorded = 0, passed = 0;
  double at = 0;  // ms
};
struct EgEvent {
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};
// Runs the operation if possible. Returns false if it waits for an event.
using Task = std::function<bool()>;
// A node of a graph: a task, or an event. Each launch of the graph records the event, or awaits the
// state that the event has at that time.
struct Node {
  Task task;
  double cost = 0;
  EgEvent *record = nullptr, *await = nullptr;
};
struct EgGraph {
  std::vector<Node> nodes;
  bool orphaned = false;  // one of its events was dropped
};
double host_clock = 0;  // ms

struct EgContext {
  std::deque<Task> lanes[3];
  std::map<std::uint64_t, std::uint64_t> memory;  // address -> bytes
  std::uint64_t taken = 0;
  bool capturing = false, spoilt = false;
  std::vector<Node> captured;

  double clock[3] = {};  // ms

  void Ask(int lane, Task task, double cost) {
    if (capturing && lane == EG_LANE_COMPUTE)
      captured.push_back({std::move(task), cost, nullptr, nullptr});
    else
      lanes[lane].push_back([this, lane, task = std::move(task), cost, asked = host_clock] {
        if (!task()) return false;
        clock[lane] = std::max(clock[lane], asked) + cost;
        return true;
      });
    control.pending_in = static_cast<std::int64_t>(lanes[EG_LANE_IN].size());
  }
  // Runs one task of a lane. Returns false if no lane can continue.
  bool Step() {
    const std::uint64_t first = Draw() % 3;
    for (std::uint64_t i = 0; i < 3; ++i) {
      auto& lane = lanes[(first + i) % 3];
      if (lane.empty() || !lane.front()()) continue;
      lane.pop_front();
      control.pending_in = static_cast<std::int64_t>(lanes[EG_LANE_IN].size());
      return true;
    }
    return false;
  }
};
struct EgPlan {
  EgPlanKey key;
  std::int32_t index;
};

namespace {

// All contexts of the process. A wait names an event without its context, so all contexts are
// searched.
std::vector<EgContext*> contexts;
std::set<const EgEvent*> events;  // the events that were not dropped
std::set<EgGraph*> graphs;
bool IsGone(const EgEvent* event) { return events.count(event) == 0; }
constexpr const char* kGone = "an event that was dropped is used";
thread_local EgContext* captures = nullptr;  // the context that this thread is capturing

// The driver refuses this call in a capture. If this thread is capturing, marks the capture as
// failed and returns `what`. Otherwise returns null, and the call may be made.
const char* Refused(const char* what) {
  if (captures == nullptr) return nullptr;
  captures->spoilt = true;
  ++control.illegal;
  return what;
}

// While an object of this class exists, lanes may run, and the device's memory can be accessed.
class Running {
 public:
  Running() {
    if (depth++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  ~Running() {
    std::uint64_t taken = 0;
    for (const EgContext* context : contexts) taken += context->taken;
    if (--depth == 0 && taken <= kGuardedMax) Protect(PROT_NONE);
  }

 private:
  // Protecting more memory than this would take milliseconds each time.
  static constexpr std::uint64_t kGuardedMax = 64ull << 20;
  static void Protect(int how) {
    for (const EgContext* context : contexts)
      for (const auto& [address, bytes] : context->memory) Piece(address, bytes, how);
  }
  static void Piece(std::uint64_t address, std::uint64_t bytes, int how) {
    const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)),
                        begin = address / page * page;
    if (::mprotect(reinterpret_cast<void*>(begin),
                   (address + bytes + page - 1) / page * page - begin, how) != 0)
      std::abort();
  }
  static inline int depth = 0;
};
// Maps whole pages. The block has `bytes` bytes, rounded up to the device's alignment. It ends at
// the end of the last page, so that no accessible memory follows it.
std::uint64_t MapMemory(std::uint64_t bytes) {
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)),
                      want = (bytes + 511) / 512 * 512;
  const std::uint64_t whole = (want + page - 1) / page * page;
  void* const at = ::mmap(nullptr, whole + page, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) std::abort();
  std::memset(at, 0xFF, whole);
  if (::mprotect(at, whole + page, PROT_NONE) != 0) std::abort();
  return reinterpret_cast<std::uint64_t>(at) + whole - want;
}
void UnmapMemory(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)),
                      begin = address / page * page;
  const std::uint64_t want = (bytes + 511) / 512 * 512;
  if (::munmap(reinterpret_cast<void*>(begin), (want + page - 1) / page * page + page) != 0)
    std::abort();
}

bool StepAny() {
  const std::uint64_t first = contexts.empty() ? 0 : Draw() % contexts.size();
  for (std::size_t i = 0; i < contexts.size(); ++i)
    if (contexts[(first + i) % contexts.size()]->Step()) return true;
  return false;
}

int32_t Open(const EgOpenOptions*, EgContext** context, EgCudaError*) {
  contexts.push_back(*context = new EgContext);
  return EG_CUDA_OK;
}
void Close(EgContext* context) {
  {
    const Running running;
    while (context->Step()) {
    }
  }
  control.leaked += context->memory.size();
  for (const auto& [address, bytes] : context->memory) UnmapMemory(address, bytes);
  std::erase(contexts, context);
  delete context;
}
int32_t Memory(EgContext* context, uint64_t* free_bytes, uint64_t* total, EgCudaError* error) {
  if (const char* const refused = Refused("free memory was asked for while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  *total = control.memory_bytes;
  *free_bytes = control.memory_bytes - context->taken;
  return EG_CUDA_OK;
}
int32_t Allocate(EgContext* context, uint64_t bytes, uint64_t* address, EgCudaError* error) {
  if (const char* const refused = Refused("allocated while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  if (context->taken + bytes > control.memory_bytes)
    return Fail(EG_CUDA_NO_MEMORY, error, "out of memory");
  *address = MapMemory(bytes);
  context->memory[*address] = bytes;
  context->taken += bytes;
  return EG_CUDA_OK;
}
int32_t Release(EgContext* context, uint64_t address, EgCudaError* error) {
  const auto found = context->memory.find(address);
  if (found == context->memory.end())
    return Fail(EG_CUDA_FAILED, error, "released what is not there");
  if (const char* const refused = Refused("released while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  {
    const Running running;
    while (context->Step()) {  // like cudaFree, waits for the device
    }
  }
  context->taken -= found->second;
  UnmapMemory(address, found->second);
  context->memory.erase(found);
  return EG_CUDA_OK;
}
int32_t AllocateHost(uint64_t bytes, void** memory, EgCudaError* error) {
  if (const char* const refused = Refused("page-locked memory was asked for while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  ++control.pinned_asked;
  if (control.no_pinned || control.pinned_bytes + bytes > control.pinned_bytes_max)
    return Fail(EG_CUDA_NO_MEMORY, error, "out of memory");
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(*memory, 0xFF, bytes);
  const std::lock_guard lock(pinned_mutex);
  pinned[static_cast<const char*>(*memory)] = bytes;
  control.pinned_bytes += bytes;
  return EG_CUDA_OK;
}
void ReleaseHost(void* memory) {
  static_cast<void>(Refused("page-locked memory was given back while capturing"));
  {
    const std::lock_guard lock(pinned_mutex);
    const auto found = pinned.find(static_cast<const char*>(memory));
    // A test may have reset the counters since the memory was allocated.
    control.pinned_bytes -= std::min(control.pinned_bytes, found->second);
    pinned.erase(found);
  }
  std::free(memory);
}
int32_t Copy(EgContext* context, int32_t lane, int32_t direction, void* to, const void* from,
             uint64_t bytes, EgCudaError* error) {
  if (const char* const refused = Refused("copied while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  if (control.fail_after_copies > 0 && --control.fail_after_copies == 0)
    return Fail(control.fail_kind, error, "made to fail");
  ++control.copies;
  const bool async = direction == EG_COPY_WITHIN || IsPinned(direction == EG_COPY_IN ? from : to);
  if (async) {
    context->Ask(
        lane,
        [=] {
          if (lane == EG_LANE_IN && !context->lanes[EG_LANE_COMPUTE].empty()) ++control.overlapped;
          return std::memcpy(to, from, bytes), true;
        },
        kCopyCost);
    return EG_CUDA_OK;
  }
  ++control.pageable_copies;
  bool done = false;
  const Running running;
  context->Ask(
      lane, [=, &done] { return std::memcpy(to, from, bytes), done = true, true; }, kCopyCost);
  while (!done && context->Step()) {
  }
  return done ? EG_CUDA_OK : Fail(EG_CUDA_FAILED, error, "a copy waits for ever");
}
int32_t MakeEvent(EgContext*, int32_t, EgEvent** event, EgCudaError*) {
  events.insert(*event = new EgEvent);
  ++control.events;
  return EG_CUDA_OK;
}
void DropEvent(EgEvent* event) {
  if (captures != nullptr &&
      std::any_of(captures->captured.begin(), captures->captured.end(), [event](const Node& node) {
        return node.record == event || node.await == event;
      }))
    static_cast<void>(Refused("an event went whose capture is under way"));
  // Queued work may still use the event.
  const Running running;
  while (event->state->passed < event->state->recorded && StepAny()) {
  }
  for (EgGraph* const graph : graphs) {
    const auto names = [event](const Node& node) {
      return node.record == event || node.await == event;
    };
    if (graph->orphaned || std::none_of(graph->nodes.begin(), graph->nodes.end(), names)) continue;
    graph->orphaned = true;
    ++control.orphans;
  }
  events.erase(event);
  --control.events;
  delete event;
}
int32_t Record(EgContext* context, int32_t lane, EgEvent* event, EgCudaError* error) {
  if (IsGone(event)) return Fail(EG_CUDA_FAILED, error, kGone);
  if (context->capturing && lane == EG_LANE_COMPUTE) {
    context->captured.push_back({nullptr, 0, event, nullptr});
    return EG_CUDA_OK;
  }
  const std::uint64_t version = ++event->state->recorded;
  context->Ask(
      lane,
      [context, lane, asked = host_clock, state = event->state, version] {
        state->at = std::max(context->clock[lane], asked);
        return state->passed = std::max(state->passed, version), true;
      },
      0);
  return EG_CUDA_OK;
}
int32_t Await(EgContext* context, int32_t lane, EgEvent* event, EgCudaError* error) {
  if (IsGone(event)) return Fail(EG_CUDA_FAILED, error, kGone);
  if (context->capturing && lane == EG_LANE_COMPUTE) {
    context->captured.push_back({nullptr, 0, nullptr, event});
    return EG_CUDA_OK;
  }
  // If the event was recorded in this capture, nothing of the capture has been launched yet. The
  // other lane would therefore await the event's earlier record.
  if (const char* const refused = Refused("another lane was told to wait while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  const std::uint64_t version = event->state->recorded;
  context->Ask(
      lane,
      [context, lane, state = event->state, version] {
        if (state->passed < version) return false;
        context->clock[lane] = std::max(context->clock[lane], state->at);
        return true;
      },
      0);
  return EG_CUDA_OK;
}
int32_t Wait(EgEvent* event, EgCudaError* error) {
  if (const char* const refused = Refused("the host waited while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  const Running running;
  if (control.fail_waits)
    return Fail(EG_CUDA_FAILED, error, "an illegal memory access was encountered");
  if (IsGone(event)) return Fail(EG_CUDA_FAILED, error, kGone);
  const std::uint64_t version = event->state->recorded;
  while (event->state->passed < version && StepAny()) {
  }
  if (event->state->passed < version) return Fail(EG_CUDA_FAILED, error, "the host waits for ever");
  host_clock = std::max(host_clock, event->state->at);
  return EG_CUDA_OK;
}
int32_t Passed(EgEvent* event, int32_t* yes, EgCudaError* error) {
  if (const char* const refused = Refused("an event was asked for while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  const Running running;
  if (IsGone(event)) return Fail(EG_CUDA_FAILED, error, kGone);
  if (Draw() % 2 == 0) StepAny();
  *yes = event->state->passed >= event->state->recorded ? 1 : 0;
  return EG_CUDA_OK;
}
int32_t Milliseconds(EgEvent* from, EgEvent* to, float* milliseconds, EgCudaError* error) {
  for (const EgEvent* const event : {from, to})
    if (IsGone(event) || event->state->recorded == 0 ||
        event->state->passed < event->state->recorded)
      return Fail(EG_CUDA_FAILED, error, "an event has not passed");
  *milliseconds = static_cast<float>(to->state->at - from->state->at);
  return EG_CUDA_OK;
}
int32_t BeginCapture(EgContext* context, EgCudaError* error) {
  if (const char* const refused = Refused("a capture was begun within another"))
    return Fail(EG_CUDA_FAILED, error, refused);
  captures = context;
  context->capturing = true;
  context->spoilt = false;
  context->captured.clear();
  return EG_CUDA_OK;
}
int32_t EndCapture(EgContext* context, EgGraph** graph, EgCudaError* error) {
  *graph = nullptr;
  context->capturing = false;
  captures = nullptr;
  if (context->spoilt || control.fail_captures)
    return Fail(EG_CUDA_FAILED, error, "the capture was invalidated");
  graphs.insert(*graph = new EgGraph{std::move(context->captured)});
  ++control.graphs;
  return EG_CUDA_OK;
}
int32_t LaunchGraph(EgContext* context, EgGraph* graph, EgCudaError* error) {
  if (const char* const refused = Refused("a graph was launched while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  if (graph->orphaned) {
    ++control.illegal;
    return Fail(EG_CUDA_FAILED, error, "a graph was launched whose events are gone");
  }
  ++control.launches;
  for (const Node& node : graph->nodes) {
    if (node.record != nullptr && control.late_graph_events)
      context->Ask(
          EG_LANE_COMPUTE,
          [state = node.record->state] { return state->passed = ++state->recorded, true; }, 0);
    else if (node.record != nullptr)
      Record(context, EG_LANE_COMPUTE, node.record, error);
    else if (node.await != nullptr)
      Await(context, EG_LANE_COMPUTE, node.await, error);
    else
      context->Ask(EG_LANE_COMPUTE, node.task, node.cost);
  }
  return EG_CUDA_OK;
}
void DropGraph(EgGraph* graph) {
  graphs.erase(graph);
  --control.graphs;
  delete graph;
}

// Returns the number of plans that the library offers. It is 0 for some keys, so that both branches
// of the backend are tested.
std::int32_t Offered(const EgPlanKey& key) {
  if (control.no_plans) return 0;
  // Imitates libraries whose 16-bit products need an even number of columns or filters, and whose
  // tensor cores need other multiples.
  const bool narrow = key.type != EG_FLOAT32,
             odd = key.kind == EG_PLAN_MATMUL ? key.n % 2 != 0 : key.filters % 2 != 0;
  if (narrow && odd && control.choosy) return 0;
  if (key.tf32 != 0 && (key.kind == EG_PLAN_MATMUL ? key.n : key.filters) % 3 == 0 &&
      control.choosy)
    return 0;
  if (key.kind != EG_PLAN_MATMUL) {
    const bool fits =
        (key.in_h + key.pad_top + key.pad_bottom - key.kernel_h) / key.stride_h + 1 == key.out_h &&
        key.in_h + key.pad_top + key.pad_bottom >= key.kernel_h &&
        (key.in_w + key.pad_left + key.pad_right - key.kernel_w) / key.stride_w + 1 == key.out_w &&
        key.in_w + key.pad_left + key.pad_right >= key.kernel_w;
    // In this case cuDNN has only one engine, which takes ten times as long as the others. The real
    // library therefore offers no plan, and neither does this one.
    const bool writes =
        key.type == EG_FLOAT32 || key.kind != EG_PLAN_CONV_FILTER || key.d_type != EG_FLOAT32;
    const bool even = key.pad_top == key.pad_bottom && key.pad_left == key.pad_right;
    return key.relu != 0 || !fits || !writes || (!even && control.choosy) ? 0 : 3;
  }
  return key.bias_gradient != 0 && key.n % 2 != 0 ? 0 : 3;
}
int32_t Plans(EgContext*, const EgPlanKey* key, EgPlanInfo* infos, int32_t infos_max,
              int32_t* count, EgCudaError* error) {
  if (const char* const refused = Refused("plans were asked for while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  if (Offered(*key) == 0 && key->type != EG_FLOAT16)
    return Fail(EG_CUDA_BAD_SHAPE, error,
                "not such a one");  // some libraries return an error, and some an empty list
  *count = std::min(infos_max, Offered(*key));
  for (std::int32_t i = 0; i < *count; ++i)
    infos[i] = {static_cast<std::uint64_t>(i) * 4096, i == 0 ? 0 : 1, 0};
  return EG_CUDA_OK;
}
int32_t MakePlan(EgContext*, const EgPlanKey* key, int32_t index, EgPlan** plan,
                 EgCudaError* error) {
  if (const char* const refused = Refused("a plan was made while capturing"))
    return Fail(EG_CUDA_FAILED, error, refused);
  if (control.no_plan_memory) return Fail(EG_CUDA_NO_MEMORY, error, "out of memory");
  if (index >= Offered(*key)) return Fail(EG_CUDA_BAD_SHAPE, error, "no such plan");
  *plan = new EgPlan{*key, index};
  ++control.plans;
  return EG_CUDA_OK;
}
void DropPlan(EgPlan* plan) {
  --control.plans;
  delete plan;
}

// The elements of one operand of a plan.
struct Elements {
  const void* at;
  std::int32_t type;
  float operator[](std::int64_t i) const {
    if (type == EG_FLOAT16) return static_cast<const evergrad::cuda::Float16*>(at)[i];
    if (type == EG_BFLOAT16) return static_cast<const evergrad::cuda::BFloat16*>(at)[i];
    return static_cast<const float*>(at)[i];
  }
};
void Store(void* to, std::int32_t type, std::int64_t i, float value) {
  if (type == EG_FLOAT16)
    static_cast<evergrad::cuda::Float16*>(to)[i] = value;
  else if (type == EG_BFLOAT16)
    static_cast<evergrad::cuda::BFloat16*>(to)[i] = value;
  else
    static_cast<float*>(to)[i] = value;
}

void Multiply(const EgPlanKey& key, const EgPlanArguments& p) {
  const Elements a{p.a, key.type}, b{p.b, key.type};
  std::vector<double> row(static_cast<std::size_t>(key.n));
  for (std::int64_t m = 0; m < key.m; ++m) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::int64_t k = 0; k < key.k; ++k) {
      const double x = key.transpose_a != 0 ? a[k * key.m + m] : a[m * key.k + k];
      for (std::int64_t n = 0; n < key.n; ++n)
        row[static_cast<std::size_t>(n)] +=
            x * (key.transpose_b != 0 ? b[n * key.k + k] : b[k * key.n + n]);
    }
    for (std::int64_t n = 0; n < key.n; ++n)
      Store(p.d, key.d_type, m * key.n + n,
            static_cast<float>(row[static_cast<std::size_t>(n)] +
                               (key.bias != 0 ? static_cast<const float*>(p.bias)[n] : 0.0f)));
  }
  if (key.bias_gradient == 0) return;
  for (std::int64_t n = 0; n < key.n; ++n) {
    double sum = 0;
    for (std::int64_t k = 0; k < key.k; ++k) sum += b[k * key.n + n];
    static_cast<float*>(p.sums)[n] = static_cast<float>(sum);
  }
}

void Convolve(const EgPlanKey& s, const EgPlanArguments& p) {
  const Elements a{p.a, s.type}, b{p.b, s.type};
  const std::int64_t outputs = s.batch * s.out_h * s.out_w * s.filters,
                     inputs = s.batch * s.in_h * s.in_w * s.in_c;
  const std::int64_t weights = s.kernel_h * s.kernel_w * s.in_c * s.filters;
  std::vector<double> d(static_cast<std::size_t>(s.kind == EG_PLAN_CONV        ? outputs
                                                 : s.kind == EG_PLAN_CONV_DATA ? inputs
                                                                               : weights));
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t y = 0; y < s.out_h; ++y)
      for (std::int64_t x = 0; x < s.out_w; ++x)
        for (std::int64_t i = 0; i < s.kernel_h; ++i)
          for (std::int64_t j = 0; j < s.kernel_w; ++j) {
            const std::int64_t r = y * s.stride_h - s.pad_top + i,
                               c = x * s.stride_w - s.pad_left + j;
            if (r < 0 || c < 0 || r >= s.in_h || c >= s.in_w) continue;
            for (std::int64_t f = 0; f < s.filters; ++f)
              for (std::int64_t k = 0; k < s.in_c; ++k) {
                const std::int64_t out = ((n * s.out_h + y) * s.out_w + x) * s.filters + f,
                                   in = ((n * s.in_h + r) * s.in_w + c) * s.in_c + k;
                // Filters have the layout KRSC.
                const std::int64_t w = ((f * s.kernel_h + i) * s.kernel_w + j) * s.in_c + k;
                if (s.kind == EG_PLAN_CONV)
                  d[static_cast<std::size_t>(out)] += static_cast<double>(a[in]) * b[w];
                if (s.kind == EG_PLAN_CONV_DATA)
                  d[static_cast<std::size_t>(in)] += static_cast<double>(a[out]) * b[w];
                if (s.kind == EG_PLAN_CONV_FILTER)
                  d[static_cast<std::size_t>(w)] += static_cast<double>(a[out]) * b[in];
              }
          }
  for (std::size_t i = 0; i < d.size(); ++i) {
    const double bias =
        s.bias != 0 ? static_cast<const float*>(p.bias)[static_cast<std::int64_t>(i) % s.filters]
                    : 0.0;
    Store(p.d, s.d_type, static_cast<std::int64_t>(i), static_cast<float>(d[i] + bias));
  }
}

int32_t RunPlan(EgContext* context, EgPlan* plan, const EgPlanArguments* arguments,
                EgCudaError* error) {
  if (arguments->workspace_bytes < static_cast<std::uint64_t>(plan->index) * 4096)
    return Fail(EG_CUDA_FAILED, error, "the workspace is too small");
  for (const void* const pointer :
       {arguments->a, arguments->b, static_cast<const void*>(arguments->d)})
    if (reinterpret_cast<std::uintptr_t>(pointer) %
            static_cast<std::uintptr_t>(plan->key.alignment) !=
        0)
      return Fail(EG_CUDA_FAILED, error, "misaligned");
  ++control.plan_runs;
  if (plan->key.tf32 != 0) ++control.tf32_runs;
  context->Ask(
      EG_LANE_COMPUTE,
      [key = plan->key, p = *arguments, wrong = Wrong()] {
        if (p.workspace_bytes > 0) std::memset(p.workspace, 0xFF, p.workspace_bytes);
        key.kind == EG_PLAN_MATMUL ? Multiply(key, p) : Convolve(key, p);
        if (wrong) *static_cast<float*>(p.d) += 1;
        return true;
      },
      kKernelCost * (1 + plan->index));
  return EG_CUDA_OK;
}

template <typename Arguments>
int32_t RunOp(EgContext* context, const void* arguments, uint64_t bytes, EgCudaError* error) {
  if (bytes != sizeof(Arguments))
    return Fail(EG_CUDA_FAILED, error, "an operation's arguments are from another version");
  if (control.fail_after_ops > 0 && --control.fail_after_ops == 0)
    return Fail(control.fail_kind, error, "made to fail");
  ++control.ops;
  context->Ask(
      EG_LANE_COMPUTE,
      [a = *static_cast<const Arguments*>(arguments), wrong = Wrong()] {
        HostLauncher launcher;
        // A wrong operation does nothing and leaves the old contents.
        if (!wrong) evergrad::cuda::Launch(launcher, a);
        return true;
      },
      kKernelCost);
  return EG_CUDA_OK;
}

int32_t Compute(EgContext* context, int32_t op, const void* arguments, uint64_t bytes,
                EgCudaError* error) {
  switch (op) {
#define EG_CASE_(name, type) \
  case name: return RunOp<type>(context, arguments, bytes, error);
    EG_OPS(EG_CASE_)
#undef EG_CASE_
    default: return Fail(EG_CUDA_FAILED, error, "unknown operation");
  }
}

int32_t DeviceCount(int32_t* count, EgCudaError*) {
  *count = control.devices;
  return EG_CUDA_OK;
}
int32_t Device(int32_t ordinal, EgCudaDevice* device, EgCudaError*) {
  *device = EgCudaDevice{};
  device->ordinal = ordinal;
  device->major = control.major;
  device->memory_bytes = control.memory_bytes;
  std::snprintf(device->name, sizeof device->name, "emulated");
  return EG_CUDA_OK;
}

}  // namespace

extern "C" const EgCudaApi* evergrad_cuda_api() {
  static const EgCudaApi api = [] {
    EgCudaApi t{};
    t.abi_version = EG_CUDA_ABI_VERSION;
    t.table_bytes = sizeof(EgCudaApi);
    t.build = [] { return "no CUDA"; };
    t.device_count = &DeviceCount;
    t.device = &Device;
    t.open = &Open;
    t.close = &Close;
    t.memory = &Memory;
    t.allocate = &Allocate;
    t.release = &Release;
    t.allocate_host = &AllocateHost;
    t.release_host = &ReleaseHost;
    t.copy = &Copy;
    t.make_event = &MakeEvent;
    t.drop_event = &DropEvent;
    t.record = &Record;
    t.await = &Await;
    t.wait = &Wait;
    t.passed = &Passed;
    t.milliseconds = &Milliseconds;
    t.begin_capture = &BeginCapture;
    t.end_capture = &EndCapture;
    t.launch = &LaunchGraph;
    t.drop_graph = &DropGraph;
    t.plans = &Plans;
    t.make_plan = &MakePlan;
    t.run_plan = &RunPlan;
    t.drop_plan = &DropPlan;
    t.check_plan = [](const EgPlanKey*, EgCudaError*) -> int32_t { return EG_CUDA_OK; };
    t.compute = &Compute;
    t.sort_bytes = [](EgContext*, int64_t) -> int64_t { return 256; };
    t.push_range = [](const char*) -> int32_t {
      ++control.ranges_asked;
      if (!control.profiled) return 0;
      ++control.ranges;
      return 1;
    };
    t.pop_range = [] { --control.ranges; };
    t.utilization = [](EgContext*, float* share, EgCudaError* error) -> int32_t {
      if (control.utilization < 0) return Fail(EG_CUDA_NO_LIBRARY, error, "no driver to be asked");
      *share = control.utilization;
      return EG_CUDA_OK;
    };
    return t;
  }();
  return &api;
}

extern "C" EmulatedControl* emulated_control() { return &control; }
