// The results of a step, which are laid out once, filled by primitives in the backend's memory, and
// fetched in one piece at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

class ResultBlock {
 public:
  // The place of `count` values of one type in the block.
  template <typename T>
  struct ResultField {
    std::size_t word = 0, count = 0;
  };
  // Adds a field. All fields must be added before Allocate.
  template <typename T>
  ResultField<T> Add(std::size_t count = 1) {
    static_assert(sizeof(T) % kWord == 0 && alignof(T) <= kWord);
    const ResultField<T> field{words_, count};
    words_ += count * (sizeof(T) / kWord);
    return field;
  }
  absl::Status Allocate(Backend& backend) {
    EG_ASSIGN_OR_RETURN(memory_, backend.Allocate(words_ * kWord, "results of a step"));
    fetched_.resize(words_);
    return absl::OkStatus();
  }

  // Returns the memory of the field, which primitives fill.
  template <typename T>
  std::span<T> Of(const ResultField<T>& field) {
    return {reinterpret_cast<T*>(memory_.as<std::uint64_t>().data() + field.word), field.count};
  }
  // Ends the step with Backend::Finish and fetches the results.
  absl::Status Fetch(Backend& backend) {
    return backend.Finish(memory_.as<std::byte>().first(words_ * kWord),
                          std::as_writable_bytes(std::span(fetched_)));
  }
  // Returns the fetched value.
  template <typename T>
  T Get(const ResultField<T>& field, std::size_t i = 0) const {
    T value;
    std::memcpy(&value, fetched_.data() + field.word + i * (sizeof(T) / kWord), sizeof value);
    return value;
  }

 private:
  static constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::size_t words_ = 0;
  Memory memory_;
  std::vector<std::uint64_t> fetched_;
};

}  // namespace evergrad::worker
