#include "common/transport/credit.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace evergrad::transport {

CreditCore::Answer CreditCore::AskLarge(std::uint64_t peer, std::uint64_t request, std::uint64_t bytes) {
  if (bytes > options_.budget_bytes_max) return Answer::kOverBudget;
  if (waiting_.empty() && bytes <= options_.budget_bytes_max - used_) {
    used_ += bytes;
    return Answer::kGranted;
  }
  if (waiting_.size() >= options_.waiting_max) return Answer::kFull;
  waiting_.push_back({peer, request, bytes});
  waiting_bytes_ += bytes;
  return Answer::kWaiting;
}

void CreditCore::ReleaseLarge(std::uint64_t bytes) {
  EG_CHECK_MSG(bytes <= used_, "credit released twice");
  used_ -= bytes;
  Admit();
}

bool CreditCore::TakeSmall(std::uint64_t peer, std::uint64_t bytes) {
  if (bytes == 0) return true;
  const auto it = peer_small_.find(peer);
  const std::uint64_t peer_used = it == peer_small_.end() ? 0 : it->second;
  if (bytes > options_.peer_small_bytes_max || peer_used > options_.peer_small_bytes_max - bytes) return false;
  if (bytes > options_.small_reserve_bytes_max || small_used_ > options_.small_reserve_bytes_max - bytes) return false;
  peer_small_[peer] = peer_used + bytes;
  small_used_ += bytes;
  return true;
}

void CreditCore::ReleaseSmall(std::uint64_t peer, std::uint64_t bytes) {
  if (bytes == 0) return;
  const auto it = peer_small_.find(peer);
  EG_CHECK_MSG(it != peer_small_.end() && bytes <= it->second && bytes <= small_used_, "small credit released twice");
  it->second -= bytes;
  if (it->second == 0) peer_small_.erase(it);
  small_used_ -= bytes;
}

std::uint64_t CreditCore::peer_small_used_max() const {
  std::uint64_t most = 0;
  for (const auto& [peer, bytes] : peer_small_) most = std::max(most, bytes);
  return most;
}

void CreditCore::Withdraw(std::uint64_t peer, std::uint64_t request) {
  const auto same = [&](const Admitted& a) { return a.peer == peer && a.request == request; };
  if (const auto it = std::find_if(waiting_.begin(), waiting_.end(), same); it != waiting_.end()) {
    waiting_bytes_ -= it->bytes;
    waiting_.erase(it);
  } else if (const auto ready = std::find_if(admitted_.begin(), admitted_.end(), same); ready != admitted_.end()) {
    used_ -= ready->bytes;
    admitted_.erase(ready);
  }
  Admit();
}

void CreditCore::DropPeer(std::uint64_t peer) {
  const auto of_peer = [&](const Admitted& a) { return a.peer == peer; };
  for (const auto& a : waiting_) waiting_bytes_ -= of_peer(a) ? a.bytes : 0;
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), of_peer), waiting_.end());
  for (const auto& a : admitted_) used_ -= of_peer(a) ? a.bytes : 0;
  admitted_.erase(std::remove_if(admitted_.begin(), admitted_.end(), of_peer), admitted_.end());
  Admit();
}

std::vector<CreditCore::Admitted> CreditCore::TakeAdmitted() { return std::exchange(admitted_, {}); }

void CreditCore::Admit() {
  while (!waiting_.empty() && waiting_.front().bytes <= options_.budget_bytes_max - used_) {
    used_ += waiting_.front().bytes;
    waiting_bytes_ -= waiting_.front().bytes;
    admitted_.push_back(waiting_.front());
    waiting_.pop_front();
  }
}

}  // namespace evergrad::transport
