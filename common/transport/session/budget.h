// The budget of a server: a CreditCore (credit.h) with tokens that may be released on any thread.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/session/credit.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

class Budget : public std::enable_shared_from_this<Budget> {
 public:
  // `wake` is called if TakeAdmitted has new entries, without a lock, on the thread that released
  // memory. The function may only post a task.
  Budget(CreditCore::Options options, std::function<void()> wake)
      : wake_(std::move(wake)), core_(options) {}

  // An owned share of the budget, which the destructor returns. The budget exists as long as its
  // last token, because tokens share its ownership.
  class Token final : public Reservation {
   public:
    Token(std::shared_ptr<Budget> budget, std::uint64_t peer, std::uint64_t bytes, bool small)
        : budget_(std::move(budget)), peer_(peer), bytes_(bytes), small_(small) {}
    ~Token() override { budget_->Release(peer_, bytes_, small_); }
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;
    // Returns the bytes above `bytes` to the budget.
    void Shrink(std::uint64_t bytes);
    std::uint64_t bytes() const { return bytes_; }

   private:
    const std::shared_ptr<Budget> budget_;
    const std::uint64_t peer_;
    std::uint64_t bytes_;
    const bool small_;
  };

  // These methods do the same as the methods of these names in CreditCore. After kGranted, or once
  // TakeAdmitted has returned a request, the caller makes tokens for exactly the bytes of the
  // request.
  std::uint64_t Join(const std::string& peer_name);
  void Leave(std::uint64_t peer, std::uint64_t stream);
  void Advance(MonoTime now);
  CreditCore::Answer AskLarge(std::uint64_t peer, std::uint64_t stream, std::uint64_t request,
                              std::uint64_t bytes);
  std::uint32_t LeftUnused(std::uint64_t peer);
  void Used(std::uint64_t peer, std::uint64_t bytes);
  bool TakeSmall(std::uint64_t peer, std::uint64_t bytes);
  std::unique_ptr<Token> MakeToken(std::uint64_t peer, std::uint64_t bytes, bool small) {
    return std::make_unique<Token>(shared_from_this(), peer, bytes, small);
  }
  void Withdraw(std::uint64_t peer, std::uint64_t stream, std::uint64_t request);
  bool OthersWait(std::uint64_t peer) const;
  bool OverShare(std::uint64_t peer) const;
  std::vector<CreditCore::Admitted> TakeAdmitted();

  struct Levels {
    std::uint64_t used = 0, waiting_bytes = 0, small_used = 0, peer_small_used = 0;
  };
  Levels levels() const;
  const CreditCore::Options& options() const { return core_options_; }

 private:
  void Release(std::uint64_t peer, std::uint64_t bytes, bool small);
  // Runs `change` under the lock, and then calls wake_ if requests were admitted.
  template <class Change>
  void Apply(Change change);

  const std::function<void()> wake_;
  mutable Mutex mu_;
  CreditCore core_ ABSL_GUARDED_BY(mu_);
  const CreditCore::Options core_options_ = core_.options();
};

}  // namespace evergrad::transport
