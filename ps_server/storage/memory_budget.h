// The bytes that the tables of one server may hold: one number for all of them, whatever shard or
// executor they are of; and the pages that they share. A part of them, a job's, is counted beside.
//
// Thread-safe, no lock. Tables charge it in blocks, not for each row, so that the count costs
// nothing where rows are made.
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
  // `limit_bytes` 0: none. `refuse`: of the page pool.
  explicit MemoryBudget(std::uint64_t limit_bytes,
                        std::function<bool(std::size_t)> refuse = nullptr)
      : limit_(limit_bytes), pages_(std::move(refuse)) {}
  // A part of `whole`: counts what its own tables hold; all else is the whole's.
  explicit MemoryBudget(std::shared_ptr<MemoryBudget> whole)
      : limit_(0), whole_(std::move(whole)) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // False, and counted: it would be above the limit; nothing has changed.
  bool TryReserve(std::uint64_t bytes);
  // Whatever the limit says: for bytes that are there already, and whose owner asks over_limit()
  // before it takes more.
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
  std::uint64_t used_by_part() const {
    return used_.load(std::memory_order_relaxed);
  }  // of the whole: used()
  bool over_limit() const { return limit() != 0 && used() > limit(); }
  std::uint64_t refusals() const { return whole().refusals_.load(std::memory_order_relaxed); }
  PagePool& pages() { return whole_ != nullptr ? whole_->pages() : pages_; }

 private:
  const MemoryBudget& whole() const { return whole_ != nullptr ? *whole_ : *this; }

  const std::uint64_t limit_;
  const std::shared_ptr<MemoryBudget>
      whole_;  // shared with its other parts; null: this is the whole
  std::atomic<std::uint64_t> used_{0}, refusals_{0};
  PagePool pages_;
};

// What one owner has charged; given back when it goes. Not thread-safe.
class BudgetShare {
 public:
  explicit BudgetShare(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {}
  ~BudgetShare() { budget_->Release(bytes_); }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

  // Grows the share to `bytes` if it is smaller. False: above the limit; the share is as it was.
  bool TryGrowTo(std::uint64_t bytes);
  // Sets it, whatever the limit says.
  void SetTo(std::uint64_t bytes);
  std::uint64_t bytes() const { return bytes_; }
  bool over_limit() const { return budget_->over_limit(); }
  const MemoryBudget& budget() const { return *budget_; }

 private:
  const std::shared_ptr<MemoryBudget> budget_;  // shared by all tables of a server
  std::uint64_t bytes_ = 0;
};

}  // namespace evergrad::ps_server::storage
