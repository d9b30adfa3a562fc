#include "ps_server/storage/memory_budget.h"

namespace evergrad::ps_server::storage {

bool MemoryBudget::TryReserve(std::uint64_t bytes) {
  if (whole_ != nullptr) {
    if (!whole_->TryReserve(bytes)) return false;
    used_.fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  std::uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (limit_ != 0 && (used > limit_ || bytes > limit_ - used)) {
      refusals_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

bool BudgetShare::TryGrowTo(std::uint64_t bytes) {
  if (bytes <= bytes_) return true;
  if (!budget_->TryReserve(bytes - bytes_)) return false;
  bytes_ = bytes;
  return true;
}

void BudgetShare::SetTo(std::uint64_t bytes) {
  if (bytes > bytes_) budget_->Charge(bytes - bytes_);
  if (bytes < bytes_) budget_->Release(bytes_ - bytes);
  bytes_ = bytes;
}

}  // namespace evergrad::ps_server::storage
