// Finds the ids that pushes name most often, in fixed memory, by the algorithm Space-Saving
// (Metwally et al., "Efficient computation of frequent and top-k elements in data streams",
// ICDT'05) over every 127th id that is pushed. An id that makes up more than 1/512 of the sample is
// always found. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace evergrad::ps_server::storage {

class HotIds {
 public:
  static constexpr std::size_t kIds = 512;
  // The number is a prime, so that the samples are not at the same position of every request.
  static constexpr std::uint32_t kSampledEvery = 127;

  // Counts the ids of one push. id_at(i) returns the i-th of `count` ids.
  template <class IdAt>
  void Add(std::size_t count, IdAt id_at) {
    for (; next_ < count; next_ += kSampledEvery)
      AddOne(id_at(next_));  // the first call allocates 9 KiB
    next_ -= count;
  }
  std::size_t size() const { return size_; }
  std::int64_t id(std::size_t i) const { return kept_->ids[i]; }
  // Returns the count of the i-th id in the sample. The count is never too low, and is too high by
  // at most error().
  std::uint64_t count(std::size_t i) const { return kept_->counts[i]; }
  std::uint64_t error(std::size_t i) const { return kept_->errors[i]; }

 private:
  void AddOne(std::int64_t id);

  static constexpr std::size_t kBlock = 128;

  std::size_t next_ = 0;  // position of the next sampled id in the next push
  std::size_t size_ = 0;
  struct Kept {
    std::int64_t ids[kIds] = {};
    std::uint32_t counts[kIds] = {}, errors[kIds] = {};
    std::uint16_t tags[kIds] = {};
  };
  std::uint32_t least_ = 0;        // the lowest count, once all kIds are in use
  std::size_t next_least_ = kIds;  // no id before this position has the count least_
  std::unique_ptr<Kept> kept_;
};

}  // namespace evergrad::ps_server::storage
