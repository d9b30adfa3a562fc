#include "common/transport/session/credit.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace evergrad::transport {

namespace {

// While more peers than this were active lately, a peer that leaves is forgotten at once. The limit
// is needed because clients without certificates can invent any number of names.
constexpr std::size_t kGoneRememberedMax = 4096;
// Each constant gives a time as a part of Options::lately. After a peer has left a grant unused,
// its limit is lowered for lately / kFirstDistrustPart. This time doubles with each further unused
// grant, up to `lately`. Several unused grants of a peer within lately / kUnusedOncePart count
// once. Every lately / kLookPart, the class searches for peers that have become inactive.
constexpr int kFirstDistrustPart = 5, kUnusedOncePart = 20, kLookPart = 10;
constexpr std::uint32_t kUnusedMax = 32;

}  // namespace

void CreditCore::Advance(MonoTime now) {
  now_ = std::max(now_, now);
  if (now_ < look_at_) return;
  look_at_ = now_ + options_.lately / kLookPart;
  for (auto it = lately_.begin(); it != lately_.end();) {
    const std::uint64_t id = *it;
    const Peer& peer = peers_.at(id);
    if (peer.active || now_ < peer.active_at + options_.lately) {
      ++it;
      continue;
    }
    it = lately_.erase(it);
    ForgetIfGone(id, peer);
  }
  Admit();
}

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

std::uint64_t CreditCore::share() const {
  return options_.budget_bytes_max / std::max<std::size_t>(2, active_);
}

bool CreditCore::OthersLately(std::uint64_t id) const {
  return std::any_of(lately_.begin(), lately_.end(), [&](std::uint64_t other) {
    const Peer& peer = peers_.at(other);
    return other != id && !Distrusted(peer) &&
           (peer.active || now_ < peer.active_at + options_.lately);
  });
}

bool CreditCore::InTurn(std::uint64_t id) const {
  const Peer& peer = peers_.at(id);
  const std::uint64_t bytes = peer.used + peer.waiting.front().bytes;
  if (Distrusted(peer) && bytes > half() >> peer.unused && OthersLately(id)) return false;
  return peer.used == 0 || bytes <= share();
}

bool CreditCore::MayGoBeyond(std::uint64_t id) const {
  const Peer& peer = peers_.at(id);
  return !OthersLately(id) ||
         (!Distrusted(peer) && peer.used + peer.waiting.front().bytes <= half());
}

bool CreditCore::OthersWait(std::uint64_t id) const {
  const auto it = peers_.find(id);
  return turns_.size() > (it == peers_.end() || it->second.waiting.empty() ? 0u : 1u);
}

bool CreditCore::OverShare(std::uint64_t id) const {
  const auto it = peers_.find(id);
  return it != peers_.end() && it->second.used > share() && OthersWait(id);
}

CreditCore::Answer CreditCore::AskLarge(std::uint64_t id, std::uint64_t stream,
                                        std::uint64_t request, std::uint64_t bytes) {
  if (bytes > options_.budget_bytes_max) return Answer::kOverBudget;
  Peer& peer = peers_.at(id);
  if (waiting_ >= options_.waiting_max ||
      peer.waiting.size() >= std::max<std::size_t>(1, options_.waiting_max / 8))
    return Answer::kFull;
  if (peer.waiting.empty()) turns_.push_back(id);
  peer.waiting.push_back({id, stream, request, bytes});
  waiting_bytes_ += bytes;
  ++waiting_;
  Note(id, peer);
  Admit();
  if (admitted_.empty() || admitted_.back().stream != stream || admitted_.back().request != request)
    return Answer::kWaiting;
  admitted_.pop_back();
  return Answer::kGranted;
}

void CreditCore::ReleaseLarge(std::uint64_t id, std::uint64_t bytes) {
  Peer& peer = peers_.at(id);
  EG_CHECK_MSG(bytes <= peer.used && bytes <= used_, "more credit is released than is held");
  used_ -= bytes;
  peer.used -= bytes;
  Note(id, peer);
  Admit();
}

bool CreditCore::TakeSmall(std::uint64_t id, std::uint64_t bytes) {
  if (bytes == 0) return true;
  Peer& peer = peers_.at(id);
  if (bytes > options_.peer_small_bytes_max ||
      peer.small_used > options_.peer_small_bytes_max - bytes)
    return false;
  if (bytes > options_.small_reserve_bytes_max ||
      small_used_ > options_.small_reserve_bytes_max - bytes)
    return false;
  peer.small_used += bytes;
  small_used_ += bytes;
  return true;
}

void CreditCore::ReleaseSmall(std::uint64_t id, std::uint64_t bytes) {
  if (bytes == 0) return;
  Peer& peer = peers_.at(id);
  EG_CHECK_MSG(bytes <= peer.small_used && bytes <= small_used_,
               "more small credit is released than is held");
  peer.small_used -= bytes;
  small_used_ -= bytes;
  Note(id, peer);
}

std::uint64_t CreditCore::peer_small_used_max() const {
  std::uint64_t most = 0;
  for (const auto& [id, peer] : peers_) most = std::max(most, peer.small_used);
  return most;
}

std::uint32_t CreditCore::LeftUnused(std::uint64_t id) {
  Peer& peer = peers_.at(id);
  if (peer.unused > 0 && now_ < peer.unused_at + options_.lately / kUnusedOncePart)
    return peer.unused_in_a_row;
  if (now_ >= peer.distrusted_to + options_.lately) peer.unused = peer.unused_in_a_row = 0;
  peer.unused = std::min(peer.unused + 1, kUnusedMax);
  peer.unused_at = now_;
  peer.distrusted_to = now_ + std::min(options_.lately, options_.lately / kFirstDistrustPart *
                                                            (1 << std::min(peer.unused - 1, 8u)));
  return ++peer.unused_in_a_row;
}

void CreditCore::Used(std::uint64_t id, std::uint64_t bytes) {
  Peer& peer = peers_.at(id);
  if (peer.unused == 0) return;
  peer.unused_in_a_row = 0;
  while (peer.unused > 0 && (half() >> peer.unused) / 4 < bytes) --peer.unused;
  Admit();
}

void CreditCore::Withdraw(std::uint64_t id, std::uint64_t stream, std::uint64_t request) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  const auto same = [&](const Admitted& a) {
    return a.peer == id && a.stream == stream && a.request == request;
  };
  if (const auto it = std::find_if(peer.waiting.begin(), peer.waiting.end(), same);
      it != peer.waiting.end()) {
    waiting_bytes_ -= it->bytes;
    --waiting_;
    peer.waiting.erase(it);
  } else if (const auto ready = std::find_if(admitted_.begin(), admitted_.end(), same);
             ready != admitted_.end()) {
    used_ -= ready->bytes;
    peer.used -= ready->bytes;
    admitted_.erase(ready);
  }
  Note(id, peer);
  Admit();
}

std::vector<CreditCore::Admitted> CreditCore::TakeAdmitted() {
  return std::exchange(admitted_, {});
}

void CreditCore::Note(std::uint64_t id, Peer& peer) {
  if (peer.waiting.empty()) turns_.remove(id);
  const bool active = peer.used > 0 || !peer.waiting.empty();
  if (active || peer.active) peer.active_at = now_;
  if (active != peer.active) active ? ++active_ : --active_;
  if (active && !peer.active) lately_.insert(id);
  peer.active = active;
  ForgetIfGone(id, peer);
}

void CreditCore::ForgetIfGone(std::uint64_t id, const Peer& peer) {
  if (peer.streams > 0 || peer.active || peer.small_used > 0) return;
  if (lately_.contains(id) && lately_.size() <= kGoneRememberedMax) return;
  lately_.erase(id);
  names_.erase(peer.name);
  peers_.erase(id);
}

void CreditCore::Admit() {
  while (!turns_.empty()) {
    auto turn =
        std::find_if(turns_.begin(), turns_.end(), [&](std::uint64_t id) { return InTurn(id); });
    if (turn == turns_.end())
      turn = std::find_if(turns_.begin(), turns_.end(),
                          [&](std::uint64_t id) { return MayGoBeyond(id); });
    if (turn == turns_.end()) return;
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
