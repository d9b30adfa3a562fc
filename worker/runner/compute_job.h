// What the compute thread holds of one job: data sets, graph, whole weights. Used from the compute
// thread only, but for the data sets once they are open (immutable). Weights, batches, rows and
// gradients are host memory; where the backend's is another, HostStep brings them over and back.
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

// The backend, made on the compute thread at first use and kept for all jobs: its pools belong to
// that thread.
class ComputeBackend {
 public:
  using Make = std::function<absl::StatusOr<std::unique_ptr<Backend>>()>;
  explicit ComputeBackend(BackendOptions options);
  explicit ComputeBackend(Make make) : make_(std::move(make)) {}
  absl::StatusOr<Backend*> Get();
  // Its memory is not the host's; false until it is made. Any thread.
  bool on_device() const { return on_device_; }
  // Memory of its host() for what the device will read; empty where there is no device, it is not
  // made yet, or there is none. Any thread.
  tensor::AlignedBuffer Stage(std::size_t bytes) const;
  std::uint64_t staging_refused() const { return staging_refused_; }  // times that there was none
  // What its device has measured up to the last step; none of a CPU. Any thread.
  std::optional<DeviceUse> use() const;
  // Takes it, after a step; the driver is asked if somebody has read since the last time.
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

// Batches on their way to the compute thread: the step that runs takes the first, or a task of its
// own does, whichever comes first. Thread-safe.
class NextBatch {
 public:
  void Put(std::shared_ptr<const ReadyBatch> batch) {
    MutexLock lock(&mu_);
    batches_.push_back(std::move(batch));
  }
  // The first; this very one, unless null. Null: it was taken.
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
      ABSL_GUARDED_BY(mu_);  // shared with the run and the compute thread; two at most
};

// Adds what a step measured to a closure's sums, both in the order of the model's metrics.
void AddMetrics(const std::vector<MetricSum>& step, std::vector<MetricSum>* total);
// What a closure measured, in the order of the model's metrics, as the coordinator adds it up. A
// metric of many counts only `with_counts`.
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
  // The rows of embedding tables that a batch reads: which, and where they lie.
  struct BatchRows {
    std::vector<TableRows> lookup;
    std::shared_ptr<const SlotRows> slots;
    std::vector<tensor::AlignedBuffer> values;  // [ids, dimension] of each table: float32, or,
                                                // where that is said, as they were pulled
    bool as_pulled =
        false;  // each table's in its wire type, at the end of the buffer (tensor::NarrowHome)
  };
  // `overflowed`: not "": the first variable or table with a gradient that its wire type cannot
  // say, and the type. Gradients of a device come in their wire types: it has narrowed them.
  // `loss_scale`: of the step; 0 where losses are not scaled. `too_large`: it is why the step is
  // not finite, and the next one's is smaller.
  struct Step {
    float loss_scale = 0;
    bool too_large = false;
    StepResult result;
    std::shared_ptr<GradientBuffer> gradients;  // as on the wire
    std::shared_ptr<std::vector<tensor::AlignedBuffer>>
        row_gradients;  // likewise, of each table, for SlotRows::Gather; null without tables
    std::string overflowed;
    bool ahead = false;  // the batch was on the device before the step began
  };

  ComputeJob(std::shared_ptr<const config::JobSpec> spec, std::uint64_t seed,
             std::shared_ptr<ComputeBackend> backend, DataOptions data_options,
             metrics::Limit* data_limit);

  // Opens what is needed and not yet open. User errors: files, shapes that do not fit the model,
  // the model itself.
  absl::Status Open(const Needs& needs);
  void CloseData() {
    train_ = eval_ = nullptr;
  }  // they are not the plan's: the next Open reads them anew
  const std::shared_ptr<const Dataset>& train() const { return train_; }
  const std::shared_ptr<const Dataset>& eval() const { return eval_; }

  // Of what is open.
  absl::StatusOr<v1::DescribeResult> Describe() const;
  // The weights are cut as `layout` says from now on. Internal: its variables are not the graph's.
  absl::Status UseLayout(std::shared_ptr<const Layout> layout);
  void Absorb(std::vector<PulledShard> pulled);
  // Internal: weights were not absorbed for every shard.
  absl::Status CheckWeights() const;
  // The weights in float32, after this check; those held in another type are put into `widened`.
  absl::StatusOr<std::vector<std::span<const float>>> Weights(
      std::vector<tensor::AlignedBuffer>* widened) const;
  // Starts the copies of a batch to the device before its step, rows of tables left out. Does
  // nothing on the CPU. An error in the batch is returned by its step.
  void CopyAhead(std::shared_ptr<const ReadyBatch> batch);
  bool on_device() const { return backend_->on_device(); }  // any thread
  // Which rows of tables the batch reads; null when the model has none. Once open, on any thread,
  // beside a step of another batch.
  absl::StatusOr<std::shared_ptr<BatchRows>> RowsOf(const ReadyBatch& batch,
                                                    const std::shared_ptr<const Layout>& layout,
                                                    UniqueIds* scratch) const;
  // `rows`: RowsOf's of this batch with their values; null without tables. `next`, of this and of
  // Evaluate: whose batch is brought over while the device computes; may be null.
  absl::StatusOr<Step> Train(const ReadyBatch& batch, BatchRows* rows, std::uint64_t dropout_key,
                             NextBatch* next = nullptr);
  // The next step of a user's function; gradients only of what it pushed.
  struct FunctionStep {
    sdk::FunctionCall::Outcome outcome;
    std::shared_ptr<GradientBuffer> gradients;
    bool finite = true;
    std::string overflowed;  // as Step's
    std::string result;      // with the last step
  };
  absl::StatusOr<FunctionStep> RunFunction(sdk::FunctionCall& call);
  absl::StatusOr<StepResult> Evaluate(const ReadyBatch& batch, const BatchRows* rows,
                                      NextBatch* next = nullptr);
  // The files of an export, good until the next Absorb: dense variables (none where there are only
  // tables), vocabularies of the training data.
  struct Exported {
    std::vector<tensor::AlignedBuffer>
        widened;  // what the files read where the variables are not held as float32
    std::vector<ExportFile> files;
  };
  absl::StatusOr<Exported> Export() const;

 private:
  absl::StatusOr<std::vector<AnyIn>> StepWeights() const;
  // Where the backend leaves them on its way to the servers: one copy at most.
  std::shared_ptr<GradientBuffer> MakeGradients(Backend& backend) const;
  std::vector<tensor::AlignedBuffer> MakeRowGradients(Backend& backend,
                                                      const BatchRows& rows) const;
  tensor::AlignedBuffer StageOrHeap(std::size_t bytes) const;
  // What the graph reads of a batch: views, and `labels`. UserError: an integer label that float32
  // cannot say.
  absl::StatusOr<Batch> InputsOf(const ReadyBatch& batch, tensor::AlignedBuffer* labels) const;
  // The same for a step, which follows at once; of the batch that was brought ahead, its very
  // spans.
  absl::StatusOr<Batch> StepInputs(const ReadyBatch& batch);
  void ForgetAhead();
  HostStep::Meanwhile CopyingNext(NextBatch* next);
  std::vector<Values> ModelInputs(const ReadyBatch& batch) const;
  // Of gradients in float32, where they lie.
  void ToWire(const BatchRows* rows, Step* step) const;
  absl::StatusOr<std::shared_ptr<const Dataset>> OpenSource(const config::SourceSpec& source,
                                                            const Dataset* train) const;
  // What the graph reads of a data set. User errors: a field that it does not have, or of another
  // shape or type.
  absl::Status Bind(const Dataset& data, absl::string_view which);

  const std::shared_ptr<const config::JobSpec> spec_;
  const std::uint64_t seed_;
  const std::shared_ptr<ComputeBackend> backend_;  // shared by all jobs of the runner
  const DataOptions data_options_;
  metrics::Limit* const data_limit_;  // the largest source held, sources refused; outlives the job
  std::shared_ptr<const Dataset> train_, eval_;
  // Before steps_, which waits for copies out of them when it ends.
  tensor::AlignedBuffer
      labels_[2];        // where the field is of int64: of a step, and of the batch ahead of it
  int labels_side_ = 0;  // the last step's
  std::shared_ptr<const ReadyBatch>
      ahead_;           // was brought over, and no step has come for it; shared with the run
  Batch ahead_inputs_;  // views of it
  Precision precision_ = Precision::kFloat32;  // of graph_
  std::unique_ptr<Graph> graph_;
  std::optional<HostStep> steps_;        // of graph_
  std::optional<LossScale> loss_scale_;  // where the precision wants it: float16
  // Positions among the fields of the data sets (both have the same): of each graph input, and of
  // the labels.
  std::vector<std::size_t> input_fields_;
  bool bound_ = false;  // the graph's inputs to the fields of what is open, also of what an Open
                        // that failed has opened
  std::size_t label_field_ = 0;
  bool integer_labels_ = false;
  std::shared_ptr<const Layout> layout_;
  std::optional<WeightBuffer> weights_;
};

}  // namespace evergrad::worker
