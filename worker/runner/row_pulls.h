// The memory for rows of embedding tables that are being pulled. Each pull has a number. Answers
// fill the memory part by part. Not thread-safe (the exchange uses it on the control executor).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/tensor/tensor.h"
#include "worker/params/slot_rows.h"

namespace evergrad::worker {

class RowPulls {
 public:
  // `count` must be new. `values` is memory for the rows (SlotRows::MakeRows).
  void Begin(std::uint64_t count, std::shared_ptr<const SlotRows> rows,
             std::vector<tensor::AlignedBuffer> values);
  // Copies the values of one part of pull `count`. Each part is accepted once. Returns Internal and
  // changes nothing if the values have another size.
  absl::Status Accept(std::uint64_t count, const SlotRows::OfShard& part,
                      std::span<const std::byte> values);
  // Returns whether all parts were accepted; false if the pull has not begun.
  bool IsDone(std::uint64_t count) const;
  // Returns the rows of each table; IsDone(count) must be true. The values are float32 with
  // `widen`, otherwise as received.
  std::vector<tensor::AlignedBuffer> Take(std::uint64_t count, bool widen);

 private:
  struct Pull {
    std::shared_ptr<const SlotRows> rows;
    std::vector<tensor::AlignedBuffer> values;
    std::size_t missing = 0;  // number of missing parts
  };
  std::map<std::uint64_t, Pull> pulls_;
};

}  // namespace evergrad::worker
