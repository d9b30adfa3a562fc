// The objects of one job on the compute thread: data sets, graph, whole weights. Used on the
// compute thread only, except for open data sets (immutable). Weights, batches, rows and gradients
// are in host memory; if the backend's memory differs, HostStep copies them in both directions.
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
#include "worker/sdk/function_call.h"

namespace evergrad::worker {

// The backend, created on the compute thread at first use and kept for all jobs, because its pools
// belong to that thread.
class ComputeBackend {
 public:
  using Make = std::function<absl::StatusOr<std::unique_ptr<Backend>>()>;
  explicit ComputeBackend(BackendOptions options);
  explicit ComputeBackend(Make make) : make_(std::move(make)) {}
  absl::StatusOr<Backend*> Get();
  // True if its memory is not the host's; false until it is created. Any thread.
  bool on_device() const { return on_device_; }
  // Memory of its host() for data that the device will read; empty without a device, before the
  // backend is created, or if out of memory. Any thread.
  tensor::AlignedBuffer Stage(std::size_t bytes) const;
  // number of requests that failed
  std::uint64_t staging_refused() const { return staging_refused_; }
  // Its device's measurements up to the last step; nullopt for a CPU. Any thread.
  std::optional<DeviceUse> use() const;
  // Takes the measurements after a step. The driver is only asked if they have been read since the
  // last time.
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

// Batches to be copied ahead. The running step or a separate task takes the first one, whichever
// comes first. Thread-safe.
class NextBatch {
 public:
  void Put(std::shared_ptr<const ReadyBatch> batch) {
    MutexLock lock(&mu_);
    batches_.push_back(std::move(batch));
  }
  // Takes the first batch; if `which` is not null, only that one. Returns nullptr if it was taken.
  std::shared_ptr<const ReadyBatch> Take(const ReadyBatch* which) {
    MutexLock lock(&mu_);
    if (batches_.empty() || (which != nullptr && batches_.front().get() != which)) return nullptr;
    std::shared_ptr<const ReadyBatch> batch = std::move(batches_.front());
    batches_.pop_front();
    return batch;
  }

 private:
  Mutex mu_;
  std::deque<std::shared_ptr<const ReadyBatch>> batches_
      ABSL_GUARDED_BY(mu_);  // shared with the run and the compute thread; at most two
};

// Adds the metrics of a step to a closure's sums, both in the order of the model's metrics.
void AddMetrics(const std::vector<MetricSum>& step, std::vector<MetricSum>* total);
// Writes a closure's metrics, in the order of the model's metrics, as the coordinator adds them. A
// metric with many counts is written only if `with_counts`.
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
    // [ids, dimension] of each table: float32, or as pulled if `as_pulled`
    std::vector<tensor::AlignedBuffer> values;
    bool as_pulled =
        // each table's values have its wire type and are at the end of the buffer
        // (tensor::NarrowHome)
        false;
  };
  // `overflowed` is "", or the first variable or table with a gradient that its wire type cannot
  // represent, and the type. A device's gradients are already narrowed to their wire types.
  // `loss_scale` is the scale of the step; 0 if losses are not scaled. `too_large`: the scale is
  // the reason why the step is not finite, and the next one's is smaller.
  struct Step {
    float loss_scale = 0;
    bool too_large = false;
    StepResult result;
    std::shared_ptr<GradientBuffer> gradients;  // in wire types
    std::shared_ptr<std::vector<tensor::AlignedBuffer>>
        row_gradients;  // in wire types, of each table, for SlotRows::Gather; null without tables
    std::string overflowed;
    bool ahead = false;  // the batch had been copied to the device before the step
  };

  ComputeJob(std::shared_ptr<const config::JobSpec> spec, std::uint64_t seed,
             std::shared_ptr<ComputeBackend> backend, DataOptions data_options,
             metrics::Limit* data_limit);

  // Opens everything that is needed and not yet open. User errors for files, shapes that do not
  // match the model, and the model itself.
  absl::Status Open(const Needs& needs);
  void CloseData() {
    train_ = eval_ = nullptr;
  }  // the data differ from the plan's, so the next Open reads them again
  const std::shared_ptr<const Dataset>& train() const { return train_; }
  const std::shared_ptr<const Dataset>& eval() const { return eval_; }

  // Describes the open objects.
  absl::StatusOr<v1::DescribeResult> Describe() const;
  // Sets the partitioning of the weights. Internal if its variables differ from the graph's.
  absl::Status UseLayout(std::shared_ptr<const Layout> layout);
  void Absorb(std::vector<PulledShard> pulled);
  // Internal if weights of some shard have not been absorbed.
  absl::Status CheckWeights() const;
  // The weights in float32, after this check; those of another type are converted into `widened`.
  absl::StatusOr<std::vector<std::span<const float>>> Weights(
      std::vector<tensor::AlignedBuffer>* widened) const;
  // Starts the copies of a batch to the device before its step, rows of tables left out. Does
  // nothing on the CPU. An error in the batch is returned by its step.
  void CopyAhead(std::shared_ptr<const ReadyBatch> batch);
  bool on_device() const { return backend_->on_device(); }  // any thread
  // The rows of tables that the batch reads; nullptr if the model has no tables. After Open, on any
  // thread, concurrently with a step of another batch.
  absl::StatusOr<std::shared_ptr<BatchRows>> RowsOf(const ReadyBatch& batch,
                                                    const std::shared_ptr<const Layout>& layout,
                                                    UniqueIds* scratch) const;
  // `rows` is the result of RowsOf for this batch, with values; null without tables. `next` (also
  // of Evaluate) holds the batch to copy while the device computes; may be null.
  absl::StatusOr<Step> Train(const ReadyBatch& batch, BatchRows* rows, std::uint64_t dropout_key,
                             NextBatch* next = nullptr);
  // Computes the next step of a user's function; it has gradients only for variables that were
  // pushed.
  struct FunctionStep {
    sdk::FunctionCall::Outcome outcome;
    std::shared_ptr<GradientBuffer> gradients;
    bool finite = true;
    std::string overflowed;  // as in Step
    std::string result;      // with the last step
  };
  absl::StatusOr<FunctionStep> RunFunction(sdk::FunctionCall& call);
  absl::StatusOr<StepResult> Evaluate(const ReadyBatch& batch, const BatchRows* rows,
                                      NextBatch* next = nullptr);
  // The files of an export, valid until the next Absorb: dense variables (none if there are only
  // tables), and vocabularies of the training data.
  struct Exported {
    std::vector<tensor::AlignedBuffer>
        widened;  // memory of the files for variables that are not held as float32
    std::vector<ExportFile> files;
  };
  absl::StatusOr<Exported> Export() const;

 private:
  absl::StatusOr<std::vector<AnyIn>> StepWeights() const;
  // Memory into which the backend writes gradients for the servers, with at most one copy.
  std::shared_ptr<GradientBuffer> MakeGradients(Backend& backend) const;
  std::vector<tensor::AlignedBuffer> MakeRowGradients(Backend& backend,
                                                      const BatchRows& rows) const;
  tensor::AlignedBuffer StageOrHeap(std::size_t bytes) const;
  // The graph's inputs from a batch: views, and `labels`. UserError for an integer label that
  // float32 cannot represent.
  absl::StatusOr<Batch> InputsOf(const ReadyBatch& batch, tensor::AlignedBuffer* labels) const;
  // The same for a step that follows at once; for the prefetched batch, the same spans as before.
  absl::StatusOr<Batch> StepInputs(const ReadyBatch& batch);
  void ForgetPrefetch();
  HostStep::Meanwhile CopyingNext(NextBatch* next);
  std::vector<Values> ModelInputs(const ReadyBatch& batch) const;
  // Converts gradients from float32 to their wire types, in place.
  void ToWire(const BatchRows* rows, Step* step) const;
  absl::StatusOr<std::shared_ptr<const Dataset>> OpenSource(const config::SourceSpec& source,
                                                            const Dataset* train) const;
  // Finds the graph's inputs in a data set. User errors for a missing field, or one of another
  // shape or type.
  absl::Status Bind(const Dataset& data, absl::string_view which);

  const std::shared_ptr<const config::JobSpec> spec_;
  const std::uint64_t seed_;
  const std::shared_ptr<ComputeBackend> backend_;  // shared by all jobs of the runner
  const DataOptions data_options_;
  // the largest source in memory, and refused sources; outlives the job
  metrics::Limit* const data_limit_;
  std::shared_ptr<const Dataset> train_, eval_;
  // Before steps_, whose destructor waits for copies from them.
  tensor::AlignedBuffer
      labels_[2];        // of a step and of the batch copied ahead, if the field is int64
  int labels_side_ = 0;  // of the last step
  std::shared_ptr<const ReadyBatch>
      ahead_;           // copied ahead, before its step has begun; shared with the run
  Batch ahead_inputs_;  // views of it
  Precision precision_ = Precision::kFloat32;  // of graph_
  std::unique_ptr<Graph> graph_;
  std::optional<HostStep> steps_;        // optional, because only float16 needs one
  std::optional<LossScale> loss_scale_;  // where the precision wants it: float16
  // Indices among the fields of the data sets (the same in both): of each graph input, and of the
  // labels.
  std::vector<std::size_t> input_fields_;
  // the graph's inputs are bound to the fields of the open data, also after a failed Open
  bool bound_ = false;
  std::size_t label_field_ = 0;
  bool integer_labels_ = false;
  std::shared_ptr<const Layout> layout_;
  std::optional<WeightBuffer> weights_;
};

}  // namespace evergrad::worker
