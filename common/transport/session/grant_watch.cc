#include "common/transport/session/grant_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace evergrad::transport {

void GrantWatch::OnGranted(std::uint64_t request, Grant* grant, MonoTime now) {
  if (granted_.empty()) check_at_ = now + options_.idle_max;
  grant->granted_at = grant->last_piece = now;
  granted_.insert({now, request, now, /*begun=*/false});
}

void GrantWatch::OnPiece(std::uint64_t request, Grant* grant, MonoTime now) {
  last_payload_ = now;
  auto node = granted_.extract({grant->last_piece, request});  // moved without an allocation
  EG_CHECK(!node.empty());
  grant->last_piece = node.value().last_piece = now;
  node.value().begun = true;
  granted_.insert(std::move(node));
}

void GrantWatch::OnComplete(std::uint64_t request, const Grant& grant, std::uint64_t bytes,
                            MonoTime now) {
  last_payload_ = now;
  unused_in_a_row_ = 0;
  budget_.Used(peer_, bytes);
  Remove(request, grant);
}

void GrantWatch::OnReturned(const Grant& grant, MonoTime now) {
  if (grant.granted_at + options_.idle_max / 4 > now || !budget_.OthersWait(peer_)) return;
  budget_.Advance(now);
  unused_in_a_row_ = std::max(unused_in_a_row_ + 1, budget_.LeftUnused(peer_));
}

void GrantWatch::OnEnd() {
  const bool unused =
      std::any_of(granted_.begin(), granted_.end(), [](const Entry& e) { return !e.begun; });
  if (unused && budget_.OthersWait(peer_)) (void)budget_.LeftUnused(peer_);
}

void GrantWatch::TakeBackOne(std::uint64_t request, const TakeBack& take_back) {
  ++taken_back_;
  unused_of_peer_ = budget_.LeftUnused(peer_);  // before the memory is freed
  take_back(request);
}

void GrantWatch::TakeBackForOthers(MonoTime now, const TakeBack& take_back) {
  // The newest grants come first, because a peer sends its oldest requests first.
  std::vector<Entry> late;
  for (const Entry& one : granted_)
    if (one.granted_at + (one.begun ? options_.unused_max : options_.idle_max) <= now)
      late.push_back(one);
  std::sort(late.begin(), late.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.granted_at, a.request) > std::pair(b.granted_at, b.request);
  });
  const bool silent = last_payload_ + options_.idle_max <= now;
  for (const Entry& one : late) {
    // If the stream is silent while other peers wait, its unused grants are taken back even if the
    // peer holds no more than its share.
    if (!one.begun && silent ? budget_.OthersWait(peer_) : budget_.OverShare(peer_))
      TakeBackOne(one.request, take_back);
  }
}

absl::Status GrantWatch::Tick(MonoTime now, const TakeBack& take_back) {
  const std::uint64_t before = taken_back_;
  while (!granted_.empty() && granted_.begin()->last_piece + options_.unused_max <= now)
    TakeBackOne(granted_.begin()->request, take_back);
  if (!granted_.empty() && check_at_ <= now) {
    TakeBackForOthers(now, take_back);
    check_at_ = now + options_.idle_max;
  }
  if (taken_back_ != before) unused_in_a_row_ = std::max(unused_in_a_row_ + 1, unused_of_peer_);
  if (unused_in_a_row_ < options_.unused_in_a_row_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the peer has left too many grants unused in a row: grants=", unused_in_a_row_));
}

MonoTime GrantWatch::Due() const {
  return std::min(check_at_, granted_.begin()->last_piece + options_.unused_max);
}

}  // namespace evergrad::transport
