#include "common/transport/session/budget.h"

#include "common/base/check.h"

namespace evergrad::transport {

template <class Change>
void Budget::Apply(Change change) {
  bool admitted;
  {
    MutexLock lock(&mu_);
    change(core_);
    admitted = core_.HasAdmitted();
  }
  if (admitted) wake_();
}

void Budget::Token::Shrink(std::uint64_t bytes) {
  EG_CHECK(bytes <= bytes_);
  const std::uint64_t extra = bytes_ - bytes;
  bytes_ = bytes;
  if (extra > 0) budget_->Release(peer_, extra, small_);
}

std::uint64_t Budget::Join(const std::string& peer_name) {
  MutexLock lock(&mu_);
  return core_.Join(peer_name);
}

void Budget::Leave(std::uint64_t peer, std::uint64_t stream) {
  Apply([&](CreditCore& core) { core.Leave(peer, stream); });
}

void Budget::Advance(MonoTime now) {
  Apply([&](CreditCore& core) { core.Advance(now); });
}

std::uint32_t Budget::LeftUnused(std::uint64_t peer) {
  MutexLock lock(&mu_);
  return core_.LeftUnused(peer);
}

void Budget::Used(std::uint64_t peer, std::uint64_t bytes) {
  Apply([&](CreditCore& core) { core.Used(peer, bytes); });
}

CreditCore::Answer Budget::AskLarge(std::uint64_t peer, std::uint64_t stream, std::uint64_t request,
                                    std::uint64_t bytes) {
  MutexLock lock(&mu_);
  return core_.AskLarge(peer, stream, request, bytes);
}

bool Budget::TakeSmall(std::uint64_t peer, std::uint64_t bytes) {
  MutexLock lock(&mu_);
  return core_.TakeSmall(peer, bytes);
}

void Budget::Withdraw(std::uint64_t peer, std::uint64_t stream, std::uint64_t request) {
  Apply([&](CreditCore& core) { core.Withdraw(peer, stream, request); });
}

bool Budget::OthersWait(std::uint64_t peer) const {
  MutexLock lock(&mu_);
  return core_.OthersWait(peer);
}

bool Budget::OverShare(std::uint64_t peer) const {
  MutexLock lock(&mu_);
  return core_.OverShare(peer);
}

std::vector<CreditCore::Admitted> Budget::TakeAdmitted() {
  MutexLock lock(&mu_);
  return core_.TakeAdmitted();
}

Budget::Levels Budget::levels() const {
  MutexLock lock(&mu_);
  return {core_.used(), core_.waiting_bytes(), core_.small_used(), core_.peer_small_used_max()};
}

void Budget::Release(std::uint64_t peer, std::uint64_t bytes, bool small) {
  if (bytes == 0) return;
  Apply([&](CreditCore& core) {
    small ? core.ReleaseSmall(peer, bytes) : core.ReleaseLarge(peer, bytes);
  });
}

}  // namespace evergrad::transport
