// The backend's memory that a graph keeps from step to step: outputs of layers, their gradients,
// and copies of values, weights and rows in other types. The memory grows with the largest batch.
//
// The functions that return spans allocate nothing; the caller must have reserved the memory for
// the batch (Reserve). Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/backend.h"
#include "worker/graph/graph.h"
#include "worker/graph/graph_nodes.h"

namespace evergrad::worker {

class StepBuffers {
 public:
  StepBuffers(const GraphNodes& nodes, Backend& backend);  // both outlive the object

  // Allocates the 16-bit copies of the variables that products read as 16 bits. Must be called
  // once.
  absl::Status AllocateNarrowed();
  // Allocates memory for `batch` examples, unless it is large enough. If out of memory, frees all
  // memory for examples and returns ResourceExhausted with the number of examples that may fit.
  absl::Status Reserve(std::int64_t batch, bool with_gradients);
  // Allocates a float32 copy for each span of 16 bits. Returns ResourceExhausted if out of memory.
  // If there is not enough memory for the rows, the copies of all rows are freed.
  absl::Status ReserveWide(const std::vector<AnyIn>& weights, const Rows& rows,
                           const std::vector<AnyOut>& gradients,
                           const std::vector<AnyOut>& row_gradients);
  absl::Status NoMemory(const absl::Status& cause, std::int64_t examples, bool with_gradients,
                        const Graph::CallersMemory& callers) const;
  // Returns a number that changes whenever a span that was returned earlier may have become
  // invalid.
  std::uint64_t generation() const { return generation_; }

  // Returns the value in the type that its layer wrote.
  AnyIn DataOf(std::size_t value, const Batch& batch) const;
  // Returns the value in `type`, which is the value itself or its cast.
  AnyIn DataAs(std::size_t value, const Batch& batch, Element type) const;
  AnyOut OutputOf(std::size_t value, std::int64_t batch) {
    return FirstOf(MemoryOf(value).data, value, batch);
  }
  AnyOut GradientOf(std::size_t value, std::int64_t batch) {
    return FirstOf(MemoryOf(value).gradient, value, batch);
  }
  // Returns the memory of the value's converted copy, whose type is GraphNodes::CastTypeOf.
  AnyOut CastOf(std::size_t value, std::int64_t batch) {
    const GraphStorage& storage = nodes_.StorageOf(value);
    return {MemoryOf(value).cast.as<std::byte>().data(),
            static_cast<std::size_t>(storage.elements * batch), nodes_.CastTypeOf(storage)};
  }
  // Returns temporary memory for a gradient that is then converted, or added to the gradient of
  // another consumer.
  AnyOut Scratch(std::size_t size, Element type) {
    return {scratch_.as<std::byte>().data(), size, type};
  }

  // Returns the 16-bit copy that products read, if it differs from the variable.
  AnyOut NarrowedOf(std::size_t variable) {
    return {narrowed_[variable].as<std::byte>().data(),
            static_cast<std::size_t>(nodes_.variables[variable].shape.elements()), nodes_.narrow};
  }
  // These functions return the memory of the float32 copies of weights and rows.
  Out WeightCopyOf(std::size_t variable, std::size_t size) {
    return wide_[variable].as<float>().first(size);
  }
  Out RowsCopyOf(std::size_t table, std::size_t size) {
    return wide_rows_[table].as<float>().first(size);
  }
  // These functions return float32 values: the copy in this object if the caller's data has 16
  // bits, and otherwise the caller's data.
  In WideWeight(std::size_t variable, AnyIn given) const { return WideOf(given, wide_[variable]); }
  In WideRows(std::size_t table, AnyIn given) const { return WideOf(given, wide_rows_[table]); }
  Out WideGradient(std::size_t variable, AnyOut given) {
    return WideOf(given, wide_gradients_[variable]);
  }
  Out WideRowGradient(std::size_t table, AnyOut given) {
    return WideOf(given, wide_row_gradients_[table]);
  }

 private:
  // The memory of a storage for batch_max_ examples, and of its gradient for
  // gradient_batch_max_.
  struct StorageMemory {
    Memory data, gradient, cast;
  };
  static In WideOf(AnyIn given, const Memory& wide) {
    return given.is_float32() ? given.floats() : wide.as<float>().first(given.size());
  }
  static Out WideOf(AnyOut given, Memory& wide) {
    return given.is_float32() ? given.floats() : wide.as<float>().first(given.size());
  }
  StorageMemory& MemoryOf(std::size_t value) { return memory_[nodes_.values[value].storage]; }
  const StorageMemory& MemoryOf(std::size_t value) const {
    return memory_[nodes_.values[value].storage];
  }
  AnyOut FirstOf(Memory& memory, std::size_t value, std::int64_t batch) {
    const GraphStorage& storage = nodes_.StorageOf(value);
    return {memory.as<std::byte>().data(), static_cast<std::size_t>(storage.elements * batch),
            storage.type};
  }
  absl::Status Allocate(const std::string& what, std::int64_t elements, Element type,
                        Memory* memory);
  absl::Status GrowValues(std::int64_t batch);
  absl::Status GrowGradients(std::int64_t batch);

  const GraphNodes& nodes_;
  Backend& backend_;
  std::vector<StorageMemory> memory_;  // by storage
  std::int64_t batch_max_ = 0,
               gradient_batch_max_ = 0;  // the largest batch sizes that fit into the buffers
  Memory scratch_;
  std::vector<Memory> narrowed_;  // by variable
  std::vector<Memory> wide_,
      // By variable; allocated if values arrive, or gradients are requested, as 16 bits.
      wide_gradients_;
  std::vector<Memory> wide_rows_, wide_row_gradients_;  // by table
  std::uint64_t generation_ = 0;
};

}  // namespace evergrad::worker
