// The limit of the bytes that the tables of one server hold together, and the pool of pages that
// the tables share. The bytes of each job are also counted separately.
//
// Thread-safe, without a lock. Tables charge memory in blocks and not for each row, so that a new
// row does not change the counter.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "ps_server/storage/page_pool.h"

namespace evergrad::ps_server::storage {

class MemoryBudget {
 public:
  // With a `limit_bytes` of 0 there is no limit. `refuse` is passed to PagePool.
  explicit MemoryBudget(std::uint64_t limit_bytes,
                        std::function<bool(std::size_t)> refuse = nullptr)
      : limit_(limit_bytes), pages_(std::move(refuse)) {}
  // Makes a part of `whole`. The part counts the bytes of its own tables, and uses the limit, the
  // pages and the count of refusals of `whole`.
  explicit MemoryBudget(std::shared_ptr<MemoryBudget> whole)
      : limit_(0), whole_(std::move(whole)) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Returns false, counts a refusal and reserves nothing if the limit would be exceeded.
  bool TryReserve(std::uint64_t bytes);
  // Charges memory that is held already, and ignores the limit. The owner must check over_limit()
  // before it takes more memory.
  void Charge(std::uint64_t bytes) {
    used_.fetch_add(bytes, std::memory_order_relaxed);
    if (whole_ != nullptr) whole_->Charge(bytes);
  }
  void Release(std::uint64_t bytes) {
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    if (whole_ != nullptr) whole_->Release(bytes);
  }

  std::uint64_t limit() const { return whole().limit_; }
  std::uint64_t used() const { return whole().used_.load(std::memory_order_relaxed); }
  // Returns the bytes that this part holds; for a whole budget, the same as used().
  std::uint64_t used_by_part() const { return used_.load(std::memory_order_relaxed); }
  bool over_limit() const { return limit() != 0 && used() > limit(); }
  std::uint64_t refusals() const { return whole().refusals_.load(std::memory_order_relaxed); }
  PagePool& pages() { return whole_ != nullptr ? whole_->pages() : pages_; }

 private:
  const MemoryBudget& whole() const { return whole_ != nullptr ? *whole_ : *this; }

  const std::uint64_t limit_;
  // Shared with the other parts; null if this object is the whole.
  const std::shared_ptr<MemoryBudget> whole_;
  std::atomic<std::uint64_t> used_{0}, refusals_{0};
  PagePool pages_;
};

// The bytes that one owner has charged; the destructor releases them. Not thread-safe.
class BudgetShare {
 public:
  explicit BudgetShare(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {}
  ~BudgetShare() { budget_->Release(bytes_); }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

  // Grows the share to `bytes` if it is smaller. If the limit would be exceeded, returns false and
  // leaves the share unchanged.
  bool TryGrowTo(std::uint64_t bytes);
  // Sets the share to `bytes`, and ignores the limit.
  void SetTo(std::uint64_t bytes);
  std::uint64_t bytes() const { return bytes_; }
  bool over_limit() const { return budget_->over_limit(); }
  const MemoryBudget& budget() const { return *budget_; }

 private:
  const std::shared_ptr<MemoryBudget> budget_;  // shared by all tables of a server
  std::uint64_t bytes_ = 0;
};

}  // namespace evergrad::ps_server::storage
