// Which ids pushes name most, in fixed memory: Space-Saving (Metwally et al., "Efficient
// computation of frequent and top-k elements in data streams", ICDT'05) over every 127th id that is
// pushed. An id that is more than 1/512 of what is sampled is always among them. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace evergrad::ps_server::storage {

class HotIds {
 public:
  static constexpr std::size_t kIds = 512;
  // Odd and prime, so that it does not keep step with how requests are made up.
  static constexpr std::uint32_t kSampledEvery = 127;

  // The ids of one push.
  template <class IdAt>
  void Add(std::size_t count, IdAt id_at) {
    for (; next_ < count; next_ += kSampledEvery)
      AddOne(id_at(next_));  // 9 KiB are made with the first.
    next_ -= count;
  }
  std::size_t size() const { return size_; }
  std::int64_t id(std::size_t i) const { return kept_->ids[i]; }
  std::uint64_t count(std::size_t i) const { return kept_->counts[i]; }  // of the sample
  std::uint64_t error(std::size_t i) const {
    return kept_->errors[i];
  }  // of count(), which is never too low

 private:
  void AddOne(std::int64_t id);

  static constexpr std::size_t kBlock = 128;

  std::size_t next_ = 0;  // place of the next sampled id, from the first of the next push
  std::size_t size_ = 0;
  struct Kept {
    std::int64_t ids[kIds] = {};
    std::uint32_t counts[kIds] = {}, errors[kIds] = {};
    std::uint16_t tags[kIds] = {};
  };
  std::uint32_t least_ = 0;        // count, once all are in use
  std::size_t next_least_ = kIds;  // before it none has that count
  std::unique_ptr<Kept> kept_;
};

}  // namespace evergrad::ps_server::storage
