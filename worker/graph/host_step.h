// Steps on host memory, whatever the backend's is: brings over what a step reads, and back what it
// makes.
//
// Where the backend's memory is the host's, the graph is handed the very spans and nothing is
// copied. Else copies overlap with the step as far as its data allows: a layer waits for its own
// weights only, and a gradient leaves once its layer is through, while those before it still
// compute.
//
//   kIn       batch, rows ─▶ weights of layer 1 ─▶ of layer 2 …
//   kCompute              layer 1 ─▶ layer 2 ─▶ … loss … ─▶ layer 2 back ─▶ layer 1 back
//   kOut                                                                gradients of 2 ─▶ of 1
//
// The next step's batch may go over before that step begins (BringAhead), behind all that the
// present one still computes:
//
//   kIn       … weights of layer 2 ─▶ batch of step t + 1
//   kCompute        layer 1 ─▶ layer 2 ─▶ … loss … ─▶ layer 1 back     (step t + 1 finds it there)
//
// Rows of tables lie over there in room for a few more, which does not shrink: batches read almost
// as many rows as each other, never just as many, and a step whose sizes are those of another is
// one that a backend has recorded (Backend::BeginStep). What the room has more changes no bit.
//
// What has 16 bits here has 16 bits over there, where the graph makes float32 of it and back: half
// as many bytes travel.
//
// Not thread-safe; the compute thread. Holds the backend's memory: copies of weights, batch and
// gradients.
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

// How many rows to keep room for where `rows` are needed: a sixteenth more, rounded up to an eighth
// of a power of two, 64 at least.
std::size_t RoomForRows(std::size_t rows);

class HostStep {
 public:
  using Meanwhile = std::function<void()>;

  HostStep(Graph* graph, Backend* backend);  // both outlive it
  ~HostStep();

  // The variable has other values than in the last step: they are brought over again. At first, all
  // have. What a step is handed for the others may lie elsewhere, and is not looked at.
  void Changed(std::size_t variable) { current_[variable] = false; }
  void AllChanged() { current_.assign(current_.size(), false); }

  // Asks for the copies of the next step's batch, rows of tables left out, and waits for none. It
  // is for the step that is handed the very same spans, which live until then, or until
  // ForgetAhead, another BringAhead, the destructor or a step with another batch has returned. What
  // could not be brought that step brings itself. Within `meanwhile`, and between steps. Nothing is
  // done where the memory is the host's.
  void BringAhead(const Batch& batch);
  void ForgetAhead();
  std::uint64_t brought_ahead() const {
    return brought_ahead_;
  }  // steps that found their batch there

  // As Graph's, all of it host memory, which is read and written before they return only.
  // `meanwhile` is called when all of the step has been asked for and before it is waited for, and
  // not at all where the memory is the host's: there it has computed by then.
  absl::StatusOr<StepResult> TrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                       const Batch& batch, std::uint64_t dropout_key,
                                       const std::vector<AnyOut>& gradients,
                                       const std::vector<AnyOut>& row_gradients,
                                       const Meanwhile& meanwhile = nullptr);
  absl::StatusOr<StepResult> Evaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                      const Batch& batch, const Meanwhile& meanwhile = nullptr);

 private:
  // What a step reads, over there.
  struct Over {
    std::vector<AnyIn> weights;
    Rows rows;
    Batch batch;
  };
  // Where a batch lies over there. Two, for the next one goes over while the present one is read. A
  // step's signature has its side's addresses, so each side is captured by itself.
  struct Side {
    std::vector<Memory> inputs;
    Memory labels;
    std::unique_ptr<Event> there;
  };
  struct Ahead {
    int side = 0;
    Batch host, over;
  };
  absl::Status MakeEvents();
  // The first bytes of `memory`, grown if need be.
  template <typename T>
  absl::StatusOr<std::span<T>> Room(std::size_t elements, absl::string_view what, Memory* memory);
  absl::StatusOr<AnyOut> RoomOf(std::size_t elements, Element type, absl::string_view what,
                                Memory* memory);
  template <typename T>
  absl::StatusOr<std::span<const T>> Bring(std::span<const T> from, absl::string_view what,
                                           Memory* memory);
  absl::StatusOr<AnyIn> BringRows(std::size_t table, AnyIn rows);
  absl::StatusOr<Batch> BringBatch(const Batch& batch, Side* side);
  absl::StatusOr<Over> BringAll(const std::vector<AnyIn>& weights, const Rows& rows,
                                const Batch& batch);
  // Memory that was refused, told as how many examples may fit; all else as it is.
  absl::Status Told(const absl::Status& refused, const Batch& batch, bool with_gradients) const;
  absl::Status QueueTrain(const Over& over, std::uint64_t dropout_key,
                          const std::vector<AnyOut>& gradients,
                          const std::vector<AnyOut>& row_gradients);
  // Returns when nothing reads or writes the caller's memory any more.
  absl::StatusOr<StepResult> Finish(const absl::Status& queued, const Meanwhile& meanwhile);

  Graph& graph_;
  Backend& backend_;
  std::vector<bool> current_;   // by variable: what is over there is what the caller has …
  std::vector<Element> types_;  // … of this type
  std::vector<std::size_t> rows_room_;  // by table: rows
  std::vector<Memory> weights_, gradients_, row_values_, row_gradients_, positions_;
  Side sides_[2];
  int side_ = 0;          // of the last step
  bool in_step_ = false;  // `meanwhile`
  std::optional<Ahead> ahead_;
  std::uint64_t brought_ahead_ = 0;
  std::unique_ptr<Event> rows_there_, all_made_, all_in_, all_out_;
  std::vector<std::unique_ptr<Event>> there_, made_;  // by variable
  StepEvents train_events_, evaluate_events_;
};

}  // namespace evergrad::worker
