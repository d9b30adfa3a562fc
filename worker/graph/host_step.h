// Runs steps on host memory for any kind of backend: copies the inputs of a step to the backend,
// and its results back.
//
// If the backend uses host memory, the graph gets the caller's spans and nothing is copied.
// Otherwise copies overlap with the step as far as data dependencies allow. A layer waits only for
// its own weights. A gradient is copied once its layer is done, while earlier layers still compute.
//
//   kIn       batch, rows ─▶ weights of layer 1 ─▶ of layer 2 …
//   kCompute              layer 1 ─▶ layer 2 ─▶ … loss … ─▶ layer 2 back ─▶ layer 1 back
//   kOut                                                                gradients of 2 ─▶ of 1
//
// The next step's batch may be copied before that step begins (PrefetchBatch). The copy of the
// batch follows the copies of the current step:
//
//   kIn       … weights of layer 2 ─▶ batch of step t + 1
//   kCompute        layer 1 ─▶ layer 2 ─▶ … loss … ─▶ layer 1 back       (step t + 1 uses the copy)
//
// The memory for rows of tables has a capacity for a few more rows, and does not shrink. Batches
// read similar but rarely equal numbers of rows, and a backend can replay a recorded step only if
// its sizes are the same (Backend::BeginStep). The additional rows do not change any result.
//
// 16-bit data is copied as 16 bits, which halves the bytes. The graph converts the data to float32
// and back on the device.
//
// Not thread-safe; used on the compute thread. The object holds the copies of weights, batch and
// gradients in memory of the backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/graph/graph.h"

namespace evergrad::worker {

// Returns the number of rows to allocate for `rows`. The number is a sixteenth larger than `rows`,
// but at least 64, and is rounded up to a multiple of an eighth of the next lower power of two.
std::size_t CapacityForRows(std::size_t rows);

class HostStep {
 public:
  using Meanwhile = std::function<void()>;

  HostStep(Graph* graph, Backend* backend);  // both outlive the object
  ~HostStep();

  // Declares that the variable has new values since the last step, so the next step copies it
  // again. Initially all variables count as changed. The next step does not read the spans of
  // unchanged variables.
  void Changed(std::size_t variable) { current_[variable] = false; }
  void AllChanged() { current_.assign(current_.size(), false); }

  // Queues the copies of the next step's batch, without rows of tables, and does not wait. The next
  // step must get the same spans. The spans must live until that step has returned, or until
  // ForgetPrefetch, another PrefetchBatch, the destructor or a step with another batch has
  // returned. If a part could not be copied in advance, the step copies it. The caller may call
  // PrefetchBatch inside `meanwhile` or between steps. The call has no effect if the backend uses
  // host memory.
  void PrefetchBatch(const Batch& batch);
  void ForgetPrefetch();
  // Returns the number of steps whose batch had been copied before the step.
  std::uint64_t prefetched() const { return prefetched_; }

  // These methods do the same as the methods of Graph with the same names, but their arguments are
  // in host memory. They do not access this memory after they have returned. `meanwhile` is called
  // when the whole step is queued, before the wait for its end. If the backend uses host memory,
  // `meanwhile` is not called, because the step is complete when it is queued.
  absl::StatusOr<StepResult> TrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                       const Batch& batch, std::uint64_t dropout_key,
                                       const std::vector<AnyOut>& gradients,
                                       const std::vector<AnyOut>& row_gradients,
                                       const Meanwhile& meanwhile = nullptr);
  absl::StatusOr<StepResult> Evaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                      const Batch& batch, const Meanwhile& meanwhile = nullptr);

 private:
  // The inputs of a step, as copies in the backend's memory.
  struct Over {
    std::vector<AnyIn> weights;
    Rows rows;
    Batch batch;
  };
  // The copy of a batch. There are two copies, because the next batch is copied while the current
  // batch is read. The signature of a step contains the addresses of its copy, so steps on each
  // copy are captured separately.
  struct Side {
    std::vector<Memory> inputs;
    Memory labels;
    std::unique_ptr<QueueMark> there;
  };
  struct Ahead {
    int side = 0;
    Batch host, over;
  };
  absl::Status MakeQueueMarks();
  // Returns the first bytes of `memory`, which grows if necessary.
  template <typename T>
  absl::StatusOr<std::span<T>> Reserve(std::size_t elements, absl::string_view what,
                                       Memory* memory);
  absl::StatusOr<AnyOut> ReserveOf(std::size_t elements, Element type, absl::string_view what,
                                   Memory* memory);
  template <typename T>
  absl::StatusOr<std::span<const T>> Bring(std::span<const T> from, absl::string_view what,
                                           Memory* memory);
  absl::StatusOr<AnyIn> BringRows(std::size_t table, AnyIn rows);
  absl::StatusOr<Batch> BringBatch(const Batch& batch, Side* side);
  absl::StatusOr<Over> BringAll(const std::vector<AnyIn>& weights, const Rows& rows,
                                const Batch& batch);
  // Returns an out-of-memory error with the number of examples that may fit. Returns other errors
  // unchanged.
  absl::Status Told(const absl::Status& refused, const Batch& batch, bool with_gradients) const;
  absl::Status QueueTrain(const Over& over, std::uint64_t dropout_key,
                          const std::vector<AnyOut>& gradients,
                          const std::vector<AnyOut>& row_gradients);
  // Waits until the caller's memory is no longer accessed, and returns the result.
  absl::StatusOr<StepResult> Finish(const absl::Status& queued, const Meanwhile& meanwhile);

  Graph& graph_;
  Backend& backend_;
  std::vector<bool> current_;   // by variable: whether the copy equals the caller's values
  std::vector<Element> types_;  // by variable: the type of the copied values
  std::vector<std::size_t> rows_capacity_;  // by table: number of rows allocated
  std::vector<Memory> weights_, gradients_, row_values_, row_gradients_, positions_;
  Side sides_[2];
  int side_ = 0;          // index in sides_ for the last step
  bool in_step_ = false;  // true inside `meanwhile`
  std::optional<Ahead> ahead_;
  std::uint64_t prefetched_ = 0;
  std::unique_ptr<QueueMark> rows_there_, all_made_, all_in_, all_out_;
  std::vector<std::unique_ptr<QueueMark>> there_, made_;  // by variable
  StepMarks train_marks_, evaluate_marks_;
};

}  // namespace evergrad::worker
