#include "common/transport/credit.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace evergrad::transport {

std::uint64_t CreditCore::Join(const std::string& name) {
  const auto [it, fresh] = names_.try_emplace(name, next_peer_);
  if (fresh) peers_[next_peer_++].name = name;
  ++peers_.at(it->second).streams;
  return it->second;
}

void CreditCore::Leave(std::uint64_t id, std::uint64_t stream) {
  Peer& peer = peers_.at(id);
  for (auto it = peer.waiting.begin(); it != peer.waiting.end();) {
    if (it->stream != stream) {
      ++it;
      continue;
    }
    waiting_bytes_ -= it->bytes;
    --waiting_;
    it = peer.waiting.erase(it);
  }
  const auto of_stream = [&](const Admitted& a) { return a.peer == id && a.stream == stream; };
  for (const Admitted& a : admitted_) {
    if (!of_stream(a)) continue;
    used_ -= a.bytes;
    peer.used -= a.bytes;
  }
  std::erase_if(admitted_, of_stream);
  --peer.streams;
  Note(id, peer);
  Admit();
}

std::uint64_t CreditCore::share() const { return options_.budget_bytes_max / std::max<std::size_t>(2, active_); }

bool CreditCore::MayHaveMore(const Peer& peer) const {
  return peer.used == 0 || turns_.size() == 1 || peer.used + peer.waiting.front().bytes <= share();
}

bool CreditCore::OthersWait(std::uint64_t id) const {
  const auto it = peers_.find(id);
  return turns_.size() > (it == peers_.end() || it->second.waiting.empty() ? 0u : 1u);
}

bool CreditCore::OverShare(std::uint64_t id) const {
  const auto it = peers_.find(id);
  return it != peers_.end() && it->second.used > share() && OthersWait(id);
}

CreditCore::Answer CreditCore::AskLarge(std::uint64_t id, std::uint64_t stream, std::uint64_t request, std::uint64_t bytes) {
  if (bytes > options_.budget_bytes_max) return Answer::kOverBudget;
  Peer& peer = peers_.at(id);
  if (waiting_ >= options_.waiting_max || peer.waiting.size() >= std::max<std::size_t>(1, options_.waiting_max / 8)) return Answer::kFull;
  if (peer.waiting.empty()) turns_.push_back(id);
  peer.waiting.push_back({id, stream, request, bytes});
  waiting_bytes_ += bytes;
  ++waiting_;
  Note(id, peer);
  Admit();
  if (admitted_.empty() || admitted_.back().stream != stream || admitted_.back().request != request) return Answer::kWaiting;
  admitted_.pop_back();
  return Answer::kGranted;
}

void CreditCore::ReleaseLarge(std::uint64_t id, std::uint64_t bytes) {
  Peer& peer = peers_.at(id);
  EG_CHECK_MSG(bytes <= peer.used && bytes <= used_, "credit released twice");
  used_ -= bytes;
  peer.used -= bytes;
  Note(id, peer);
  Admit();
}

bool CreditCore::TakeSmall(std::uint64_t id, std::uint64_t bytes) {
  if (bytes == 0) return true;
  Peer& peer = peers_.at(id);
  if (bytes > options_.peer_small_bytes_max || peer.small_used > options_.peer_small_bytes_max - bytes) return false;
  if (bytes > options_.small_reserve_bytes_max || small_used_ > options_.small_reserve_bytes_max - bytes) return false;
  peer.small_used += bytes;
  small_used_ += bytes;
  return true;
}

void CreditCore::ReleaseSmall(std::uint64_t id, std::uint64_t bytes) {
  if (bytes == 0) return;
  Peer& peer = peers_.at(id);
  EG_CHECK_MSG(bytes <= peer.small_used && bytes <= small_used_, "small credit released twice");
  peer.small_used -= bytes;
  small_used_ -= bytes;
  Note(id, peer);
}

std::uint64_t CreditCore::peer_small_used_max() const {
  std::uint64_t most = 0;
  for (const auto& [id, peer] : peers_) most = std::max(most, peer.small_used);
  return most;
}

void CreditCore::Withdraw(std::uint64_t id, std::uint64_t stream, std::uint64_t request) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  const auto same = [&](const Admitted& a) { return a.peer == id && a.stream == stream && a.request == request; };
  if (const auto it = std::find_if(peer.waiting.begin(), peer.waiting.end(), same); it != peer.waiting.end()) {
    waiting_bytes_ -= it->bytes;
    --waiting_;
    peer.waiting.erase(it);
  } else if (const auto ready = std::find_if(admitted_.begin(), admitted_.end(), same); ready != admitted_.end()) {
    used_ -= ready->bytes;
    peer.used -= ready->bytes;
    admitted_.erase(ready);
  }
  Note(id, peer);
  Admit();
}

std::vector<CreditCore::Admitted> CreditCore::TakeAdmitted() { return std::exchange(admitted_, {}); }

void CreditCore::Note(std::uint64_t id, Peer& peer) {
  if (peer.waiting.empty()) turns_.remove(id);
  const bool active = peer.used > 0 || !peer.waiting.empty();
  if (active != peer.active) active ? ++active_ : --active_;
  peer.active = active;
  if (peer.streams > 0 || active || peer.small_used > 0) return;
  names_.erase(peer.name);
  peers_.erase(id);
}

void CreditCore::Admit() {
  while (!turns_.empty()) {
    auto turn = std::find_if(turns_.begin(), turns_.end(), [&](std::uint64_t id) { return MayHaveMore(peers_.at(id)); });
    if (turn == turns_.end()) turn = turns_.begin();
    const std::uint64_t id = *turn;
    Peer& peer = peers_.at(id);
    const Admitted next = peer.waiting.front();
    if (next.bytes > options_.budget_bytes_max - used_) return;
    peer.waiting.pop_front();
    waiting_bytes_ -= next.bytes;
    --waiting_;
    used_ += next.bytes;
    peer.used += next.bytes;
    admitted_.push_back(next);
    turns_.erase(turn);
    if (!peer.waiting.empty()) turns_.push_back(id);
    Note(id, peer);
  }
}

}  // namespace evergrad::transport
