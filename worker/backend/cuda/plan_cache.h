// The plans of cuBLASLt and cuDNN that were made so far: one algorithm for each shape.
//
// ChooseAlgorithm (algorithm_choice.h) decides which algorithm is used. This class asks the library
// for its algorithms, makes and measures them, and keeps the result. Used on the context's thread;
// the arguments of the constructor outlive the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/first_error.h"
#include "worker/backend/cuda/step_recorder.h"
#include "worker/backend/cuda/work_memory.h"

namespace evergrad::worker {

class PlanCache {
 public:
  static constexpr std::size_t kPlansMax = 4096;
  // An allocation that failed because the device was out of memory is tried again after this number
  // of calls, or at once if this process has released some memory.
  static constexpr std::uint32_t kAskedAgain = 1000;

  struct Choice {
    // The plan, or nullptr if the library has none for this key or if there was not enough memory
    // for any plan.
    EgPlan* plan = nullptr;
    std::uint64_t workspace_bytes = 0;
    std::string refused = {};     // the library's reason for offering no plan, if it reports one
    std::string no_memory = {};   // the out-of-memory error, if there was one; the plan is then
                                  // requested again later, not at each call
    std::uint64_t used_then = 0;  // bytes in use when memory was refused
    std::uint32_t asked_since = 0;
  };
  struct Stats {
    std::uint64_t made = 0, measured = 0;
  };

  PlanCache(const EgCudaApi* api, EgContext* context, std::uint64_t workspace_bytes_max,
            WorkMemory* work, StepRecorder* recorder, FirstError* error)
      : api_(api),
        context_(context),
        workspace_bytes_max_(workspace_bytes_max),
        work_(work),
        recorder_(recorder),
        error_(error) {}
  ~PlanCache() { Drop(); }  // the queues must have done all work

  // With `yes`, plans use the first deterministic algorithm; otherwise they use the algorithm that
  // was measured as the fastest. A worker may serve deterministic and other jobs one after another,
  // so the cache keeps the choices of both settings.
  void SetReproducible(bool yes) { fastest_ = !yes; }
  bool reproducible() const { return !fastest_; }

  // Runs the plan of the key. Returns false if the library has no plan for the key. Returns true if
  // the plan was queued, or if an error was stored. `name` is the name of the primitive.
  bool Run(const char* name, EgPlanKey key, const EgPlanArguments& arguments);
  // Returns the choice for the key, or nullptr if there is none yet.
  const Choice* Find(EgPlanKey key) const;
  // A number that rises when plans are destroyed. A graph of an earlier generation may contain a
  // destroyed plan.
  std::uint64_t generation() const { return generation_; }
  const Stats& stats() const { return stats_; }

 private:
  struct Key {
    EgPlanKey key;  // zeroed before it is filled in
    friend bool operator<(const Key& a, const Key& b) {
      return std::memcmp(&a.key, &b.key, sizeof(EgPlanKey)) < 0;
    }
  };

  bool MakeChoice(const char* name, const EgPlanKey& key, const EgPlanArguments& arguments);
  absl::StatusOr<double> Measure(EgPlan* plan, std::uint64_t workspace_bytes,
                                 EgPlanArguments arguments);
  void Forget();
  void Drop();

  const EgCudaApi* const api_;
  EgContext* const context_;
  const std::uint64_t workspace_bytes_max_;
  WorkMemory* const work_;
  StepRecorder* const recorder_;
  FirstError* const error_;
  bool fastest_ = false;
  std::map<Key, Choice> choices_;
  std::uint64_t generation_ = 0;
  Stats stats_;
};

}  // namespace evergrad::worker
