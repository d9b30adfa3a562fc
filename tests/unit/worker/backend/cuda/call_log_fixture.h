// A function table (cuda_abi.h) without a device. Its functions record their calls, so that a test
// can check the order of the calls that one part of the backend makes. The emulated device
// (emulated_library.cc) computes results; this table computes nothing.
//
// Events, graphs and plans are named by their kind and the order in which they were made: e1, e2,
// g1, p1. Only one log may exist at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/cuda_ops.h"

namespace evergrad::worker {

class CallLog {
 public:
  CallLog() { now_ = this; }
  ~CallLog() { now_ = nullptr; }
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  static EgContext* context() { return nullptr; }
  static const EgCudaApi* api() {
    static const EgCudaApi table = [] {
      EgCudaApi made{};
      SetMemoryAndEvents(made);
      SetWork(made);
      return made;
    }();
    return &table;
  }
  // Returns the calls since the previous Take, such as "make_event e1, record 0 e1, …".
  std::string Take() {
    std::string all;
    for (const std::string& call : calls_) absl::StrAppend(&all, all.empty() ? "" : ", ", call);
    calls_.clear();
    return all;
  }

  // The keys are beginnings of calls. The next call with this beginning fails once, with this kind
  // of error.
  std::map<std::string, std::int32_t> fail;
  bool timed = false;               // whether events that measure time can be made
  bool all_passed = true;           // the answer to queries about events
  bool profiled = false;            // whether a profiler is attached
  std::vector<EgPlanInfo> offered;  // the answer to queries about plans

 private:
  template <typename T>
  static T* Named(std::uintptr_t number) {
    return reinterpret_cast<T*>(number);
  }
  template <typename T>
  static std::string NameOf(const char* kind, T* object) {
    return absl::StrCat(kind, reinterpret_cast<std::uintptr_t>(object));
  }
  static std::string E(EgEvent* event) { return NameOf("e", event); }
  static std::string G(EgGraph* graph) { return NameOf("g", graph); }
  static std::string P(EgPlan* plan) { return NameOf("p", plan); }

  static std::int32_t Call(const std::string& call, EgCudaError* error = nullptr) {
    now_->calls_.push_back(call);
    for (auto it = now_->fail.begin(); it != now_->fail.end(); ++it) {
      if (call.compare(0, it->first.size(), it->first) != 0) continue;
      const std::int32_t kind = it->second;
      now_->fail.erase(it);
      error->kind = kind;
      std::snprintf(error->text, sizeof error->text, "made to fail");
      now_->calls_.back() += " fails";
      return kind;
    }
    return EG_CUDA_OK;
  }

  static void SetMemoryAndEvents(EgCudaApi& t);
  static void SetWork(EgCudaApi& t);

  static inline CallLog* now_ = nullptr;
  std::vector<std::string> calls_;
  std::uintptr_t events_ = 0, graphs_ = 0, plans_ = 0;
  std::uint64_t next_address_ = 1 << 20;
};

inline void CallLog::SetMemoryAndEvents(EgCudaApi& t) {
  t.memory = [](EgContext*, std::uint64_t* free_bytes, std::uint64_t* total, EgCudaError*) {
    *free_bytes = *total = 1 << 30;
    return std::int32_t{EG_CUDA_OK};
  };
  t.allocate = [](EgContext*, std::uint64_t bytes, std::uint64_t* address, EgCudaError* error) {
    *address = now_->next_address_;
    now_->next_address_ += bytes;
    return Call("allocate", error);
  };
  t.release = [](EgContext*, std::uint64_t, EgCudaError* error) { return Call("release", error); };
  t.allocate_host = [](std::uint64_t bytes, void** memory, EgCudaError* error) {
    const std::int32_t kind = Call("allocate_host", error);
    if (kind == EG_CUDA_OK) *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return kind;
  };
  t.release_host = [](void* memory) { std::free(memory); };
  t.copy = [](EgContext*, std::int32_t lane, std::int32_t direction, void*, const void*,
              std::uint64_t bytes, EgCudaError* error) {
    return Call(absl::StrCat("copy ", lane, direction == EG_COPY_IN ? " in " : " out ", bytes),
                error);
  };
  t.make_event = [](EgContext*, std::int32_t timed, EgEvent** event, EgCudaError* error) {
    if (timed != 0 && !now_->timed) return std::int32_t{EG_CUDA_FAILED};
    *event = Named<EgEvent>(++now_->events_);
    return Call("make_event " + E(*event), error);
  };
  t.drop_event = [](EgEvent* event) { Call("drop_event " + E(event)); };
  t.record = [](EgContext*, std::int32_t lane, EgEvent* event, EgCudaError* error) {
    return Call(absl::StrCat("record ", lane, " ", E(event)), error);
  };
  t.await = [](EgContext*, std::int32_t lane, EgEvent* event, EgCudaError* error) {
    return Call(absl::StrCat("await ", lane, " ", E(event)), error);
  };
  t.wait = [](EgEvent* event, EgCudaError* error) { return Call("wait " + E(event), error); };
  t.passed = [](EgEvent*, std::int32_t* yes, EgCudaError*) {
    *yes = now_->all_passed ? 1 : 0;
    return std::int32_t{EG_CUDA_OK};
  };
  t.milliseconds = [](EgEvent* from, EgEvent*, float* milliseconds, EgCudaError*) {
    // The later an event was made, the shorter is the time that it measures.
    *milliseconds = 100 - static_cast<float>(reinterpret_cast<std::uintptr_t>(from));
    return std::int32_t{EG_CUDA_OK};
  };
}

inline void CallLog::SetWork(EgCudaApi& t) {
  t.begin_capture = [](EgContext*, EgCudaError* error) { return Call("begin_capture", error); };
  t.end_capture = [](EgContext*, EgGraph** graph, EgCudaError* error) {
    *graph = Named<EgGraph>(++now_->graphs_);
    return Call("end_capture " + G(*graph), error);
  };
  t.launch = [](EgContext*, EgGraph* graph, EgCudaError* error) {
    return Call("launch " + G(graph), error);
  };
  t.drop_graph = [](EgGraph* graph) { Call("drop_graph " + G(graph)); };
  t.plans = [](EgContext*, const EgPlanKey*, EgPlanInfo* infos, std::int32_t infos_max,
               std::int32_t* count, EgCudaError* error) {
    for (const EgPlanInfo& info : now_->offered)
      if (*count < infos_max) infos[(*count)++] = info;
    return Call("plans", error);
  };
  t.make_plan = [](EgContext*, const EgPlanKey*, std::int32_t index, EgPlan** plan,
                   EgCudaError* error) {
    const std::int32_t kind = Call(absl::StrCat("make_plan ", index), error);
    if (kind == EG_CUDA_OK) *plan = Named<EgPlan>(++now_->plans_);
    return kind;
  };
  t.run_plan = [](EgContext*, EgPlan* plan, const EgPlanArguments* arguments, EgCudaError* error) {
    return Call(absl::StrCat("run_plan ", P(plan), " ", arguments->workspace_bytes), error);
  };
  t.drop_plan = [](EgPlan* plan) { Call("drop_plan " + P(plan)); };
  t.compute = [](EgContext*, std::int32_t op, const void*, std::uint64_t, EgCudaError* error) {
#define EG_NAME_(name, type) #name,
    static constexpr const char* kNames[] = {EG_OPS(EG_NAME_)};
#undef EG_NAME_
    return Call(absl::StrCat("compute ", kNames[op]), error);
  };
  t.push_range = [](const char* name) {
    if (!now_->profiled) return 0;
    Call(absl::StrCat("push_range ", name));
    return 1;
  };
  t.pop_range = [] { Call("pop_range"); };
}

}  // namespace evergrad::worker
