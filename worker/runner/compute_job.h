// The objects of one job on the compute thread: data sets, graph, assembled weights. The objects
// are used on the compute thread only, except open data sets, which are immutable. Weights,
// batches, rows and gradients are in host memory; if the backend has other memory, HostStep copies
// them in both directions.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/config/job_spec.h"
#include "common/metrics/metrics.h"
#include "common/plan/plan.h"
#include "evergrad/v1/session.pb.h"
#include "worker/backend/backend.h"
#include "worker/data/dataset.h"
#include "worker/graph/graph.h"
#include "worker/graph/host_step.h"
#include "worker/graph/loss_scale.h"
#include "worker/params/layout.h"
#include "worker/params/slot_rows.h"
#include "worker/params/weights.h"
#include "worker/runner/export_files.h"
#include "worker/runner/model_inputs.h"
#include "worker/sdk/function_call.h"

namespace evergrad::worker {

// Owns the backend. The compute thread creates the backend at first use and keeps it for all jobs,
// because the memory pools of the backend belong to that thread.
class ComputeBackend {
 public:
  using Make = std::function<absl::StatusOr<std::unique_ptr<Backend>>()>;
  explicit ComputeBackend(BackendOptions options);
  explicit ComputeBackend(Make make) : make_(std::move(make)) {}
  absl::StatusOr<Backend*> Get();
  // Returns whether the backend's memory differs from the host's; false until the backend exists.
  // May be called on any thread.
  bool on_device() const { return on_device_; }
  // Returns page-locked memory for data that the device will read. Returns an empty buffer without
  // a device, before the backend is created, or if out of memory. May be called on any thread.
  tensor::AlignedBuffer Stage(std::size_t bytes) const;
  // Returns the number of failed calls of Stage.
  std::uint64_t staging_refused() const { return staging_refused_; }
  // Returns measurements of the device up to the last step; nullopt for a CPU. Thread-safe.
  std::optional<DeviceUse> use() const;
  // Takes the measurements after a step. Asks the driver only if the last measurements have been
  // read.
  void TakeUse();

 private:
  const Make make_;
  mutable Mutex mu_;
  std::optional<DeviceUse> use_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<HostMemory> host_ ABSL_GUARDED_BY(mu_);  // shared with its buffers
  mutable std::atomic<std::uint64_t> staging_refused_{0};
  mutable std::atomic<bool> read_{true};
  std::atomic<bool> on_device_{false};
  std::unique_ptr<Backend> backend_;
};

// The batches to be copied to the device ahead of their step. Either the running step or a separate
// computation takes the first batch. Thread-safe.
class NextBatch {
 public:
  void Put(std::shared_ptr<const ReadyBatch> batch) {
    MutexLock lock(&mu_);
    batches_.push_back(std::move(batch));
  }
  // Takes the first batch. If `which` is not null, takes the first batch only if it equals `which`.
  // Returns nullptr if another caller took it.
  std::shared_ptr<const ReadyBatch> Take(const ReadyBatch* which) {
    MutexLock lock(&mu_);
    if (batches_.empty() || (which != nullptr && batches_.front().get() != which)) return nullptr;
    std::shared_ptr<const ReadyBatch> batch = std::move(batches_.front());
    batches_.pop_front();
    return batch;
  }

 private:
  Mutex mu_;
  // The run and the compute thread share the batches. There are at most two.
  std::deque<std::shared_ptr<const ReadyBatch>> batches_ ABSL_GUARDED_BY(mu_);
};

// Adds the metrics of a step to a closure's sums, both in the order of the model's metrics.
void AddMetrics(const std::vector<MetricSum>& step, std::vector<MetricSum>* total);
// Writes a closure's metrics, in the order of the model's metrics, as the sums that the coordinator
// adds up. A metric with many counts is written only if `with_counts`.
void FillSums(const std::vector<std::string>& names, const std::vector<MetricSum>& measured,
              bool with_counts, v1::ClosureMetrics* to);

class ComputeJob {
 public:
  struct Needs {
    bool train = false, eval = false, graph = false;
    bool Covers(const Needs& other) const {
      return (train || !other.train) && (eval || !other.eval) && (graph || !other.graph);
    }
  };
  // The rows of embedding tables that a batch reads: their ids and their values.
  struct BatchRows {
    std::vector<TableRows> lookup;
    std::shared_ptr<const SlotRows> slots;
    // The rows of each table, [ids, dimension], in float32, or as they were pulled if `as_pulled`.
    std::vector<tensor::AlignedBuffer> values;
    // If true, each table's values have the table's wire type, and are at the end of the buffer
    // (tensor::NarrowHome).
    bool as_pulled = false;
  };
  // `overflowed` names the first variable or table with a gradient that its wire type cannot
  // represent, and the type; "" if there is none. A device's gradients already have their wire
  // types. `loss_scale` is the scale of the step, 0 if losses are not scaled. `too_large` is true
  // if a gradient overflowed because of the scale. The next step then uses a smaller scale.
  struct Step {
    float loss_scale = 0;
    bool too_large = false;
    StepResult result;
    std::shared_ptr<GradientBuffer> gradients;  // in wire types
    // The gradients of each table in wire types, for SlotRows::Gather; null without tables.
    std::shared_ptr<std::vector<tensor::AlignedBuffer>> row_gradients;
    std::string overflowed;
    bool ahead = false;  // the batch was copied to the device before the step
  };

  ComputeJob(std::shared_ptr<const config::JobSpec> spec, std::uint64_t seed,
             std::shared_ptr<ComputeBackend> backend, DataOptions data_options,
             metrics::Limit* data_limit);

  // Opens the needed objects that are not open. Errors of files, shapes that do not match the
  // model, and errors of the model are user errors.
  absl::Status Open(const Needs& needs);
  // Drops the open data, because they differ from the data of the plan. The next Open reads the
  // data again.
  void CloseData() { train_ = eval_ = nullptr; }
  const std::shared_ptr<const Dataset>& train() const { return train_; }
  const std::shared_ptr<const Dataset>& eval() const { return eval_; }

  // Describes the open objects.
  absl::StatusOr<v1::DescribeResult> Describe() const;
  // Sets the layout of the weights, or returns Internal if its variables are not the graph's.
  absl::Status UseLayout(std::shared_ptr<const Layout> layout);
  void Absorb(std::vector<PulledShard> pulled);
  // Returns Internal if the weights of a shard have not been absorbed.
  absl::Status CheckWeights() const;
  // Calls CheckWeights and returns the weights in float32. Weights of another type are converted
  // into `widened`.
  absl::StatusOr<std::vector<std::span<const float>>> Weights(
      std::vector<tensor::AlignedBuffer>* widened) const;
  // Starts the copies of a batch, without its rows of tables, to the device before its step. Does
  // nothing on the CPU. If a copy fails, the step of the batch returns the error.
  void CopyAhead(std::shared_ptr<const ReadyBatch> batch);
  bool on_device() const { return backend_->on_device(); }  // on any thread
  // Returns the rows of tables that the batch reads, nullptr if the model has no tables. RowsOf may
  // be called after Open, on any thread; a step of another batch may run at the same time.
  absl::StatusOr<std::shared_ptr<BatchRows>> RowsOf(const ReadyBatch& batch,
                                                    const std::shared_ptr<const Layout>& layout,
                                                    UniqueIds* scratch) const;
  // Computes a step. `rows` is RowsOf's result for this batch with values, null without tables.
  // `next` (also of Evaluate) holds the batch to copy while the device computes; it may be null.
  absl::StatusOr<Step> Train(const ReadyBatch& batch, BatchRows* rows, std::uint64_t dropout_key,
                             NextBatch* next = nullptr);
  // Computes the next step of a user's function. The step has gradients only for the variables that
  // the function pushed.
  struct FunctionStep {
    sdk::FunctionCall::Outcome outcome;
    std::shared_ptr<GradientBuffer> gradients;
    bool finite = true;
    std::string overflowed;  // as Step::overflowed
    std::string result;      // set by the last step
  };
  absl::StatusOr<FunctionStep> RunFunction(sdk::FunctionCall& call);
  absl::StatusOr<StepResult> Evaluate(const ReadyBatch& batch, const BatchRows* rows,
                                      NextBatch* next = nullptr);
  // The files of an export: dense variables (none if there are only tables), and vocabularies of
  // the training data. The files are valid until the next Absorb.
  struct Exported {
    // Memory of the files for variables that are not held as float32.
    std::vector<tensor::AlignedBuffer> widened;
    std::vector<ExportFile> files;
  };
  absl::StatusOr<Exported> Export() const;

 private:
  absl::StatusOr<std::vector<AnyIn>> StepWeights() const;
  // Allocates memory into which the backend writes gradients for the servers, with at most one
  // copy.
  std::shared_ptr<GradientBuffer> MakeGradients(Backend& backend) const;
  std::vector<tensor::AlignedBuffer> MakeRowGradients(Backend& backend,
                                                      const BatchRows& rows) const;
  tensor::AlignedBuffer StageOrHeap(std::size_t bytes) const;
  // Returns the graph's inputs from a batch, as views of the batch and of `labels`. Returns
  // UserError for an integer label that float32 cannot represent.
  absl::StatusOr<Batch> InputsOf(const ReadyBatch& batch, tensor::AlignedBuffer* labels) const;
  // Returns the graph's inputs for the next step, which are the prefetched spans if the batch was
  // prefetched.
  absl::StatusOr<Batch> StepInputs(const ReadyBatch& batch);
  void ForgetPrefetch();
  HostStep::Meanwhile CopyingNext(NextBatch* next);
  // Converts gradients from float32 to their wire types, in place.
  void ToWire(const BatchRows* rows, Step* step) const;
  absl::StatusOr<std::shared_ptr<const Dataset>> OpenSource(const config::SourceSpec& source,
                                                            const Dataset* train) const;

  const std::shared_ptr<const config::JobSpec> spec_;
  const std::uint64_t seed_;
  const std::shared_ptr<ComputeBackend> backend_;  // shared by all jobs of the runner
  const DataOptions data_options_;
  // Shows the largest source in memory, and counts refused sources. The limit outlives the job.
  metrics::Limit* const data_limit_;
  std::shared_ptr<const Dataset> train_, eval_;
  // Labels of the current step and of the batch copied ahead, if the field is int64. The labels are
  // declared before steps_, because the destructor of steps_ waits for copies from them.
  tensor::AlignedBuffer labels_[2];
  int labels_side_ = 0;  // index in labels_ for the last step
  // The batch that is copied to the device before its step has begun; shared with the run.
  std::shared_ptr<const ReadyBatch> ahead_;
  Batch ahead_inputs_;                         // views of ahead_
  Precision precision_ = Precision::kFloat32;  // precision of graph_
  std::unique_ptr<Graph> graph_;
  std::optional<HostStep> steps_;        // set when the graph is open
  std::optional<LossScale> loss_scale_;  // set if the precision needs a loss scale (float16)
  ModelInputs inputs_;
  // Whether the graph's inputs are bound to the fields of the open data. It is false if Open has
  // failed after it had opened data. The next Open then binds the inputs.
  bool bound_ = false;
  std::shared_ptr<const Layout> layout_;
  std::optional<WeightBuffer> weights_;
};

}  // namespace evergrad::worker
