#include "common/transport/tls/tls_watch.h"

#include <optional>
#include <utility>

#include "common/base/status.h"

namespace evergrad::transport {
namespace {

// A reason that stays is reported again after this number of checks, which is an hour with a check
// every 5 s.
constexpr int kChecksPerReport = 720;

}  // namespace

absl::StatusOr<std::shared_ptr<TlsWatch>> TlsWatch::Open(const TlsFiles& files, Events events) {
  EG_ASSIGN_OR_RETURN(std::optional<TlsPems> pems, LoadTls(files));
  if (!pems) return absl::InvalidArgumentError("a watch needs TLS files");
  TlsFiles own = files;
  own.watch = nullptr;  // it could be this object, which would then own itself
  return std::shared_ptr<TlsWatch>(
      new TlsWatch(std::move(own), std::move(events), *std::move(pems)));
}

TlsWatch::TlsWatch(TlsFiles files, Events events, TlsPems pems)
    : files_(std::move(files)), events_(std::move(events)) {
  MutexLock lock(&mu_);
  stats_.expiry_seconds = ExpirySeconds(pems.cert);
  pems_ = std::make_shared<const TlsPems>(std::move(pems));
}

void TlsWatch::Check() {
  const std::shared_ptr<const TlsPems> before = pems();
  absl::StatusOr<TlsPems> read = ReadTls(files_);
  if (read.ok() && *read == *before) {
    MutexLock lock(&mu_);
    reason_.clear();
    return;
  }
  const absl::Status status = read.ok() ? CheckReload(*read, files_) : read.status();
  if (!status.ok()) {
    if (Refuse(before, status.message()) && events_.refused) events_.refused(status);
    return;
  }
  const auto after = std::make_shared<const TlsPems>(*std::move(read));
  if (Use(before, after) && events_.reloaded) events_.reloaded(*after);
}

bool TlsWatch::Refuse(const std::shared_ptr<const TlsPems>& before, absl::string_view reason) {
  MutexLock lock(&mu_);
  if (pems_ != before) return false;  // another thread has used newer contents meanwhile
  ++stats_.failures;
  if (reason_ == reason && ++same_reason_ % kChecksPerReport != 0) return false;
  if (reason_ != reason) same_reason_ = 0;
  reason_ = std::string(reason);
  return true;
}

bool TlsWatch::Use(const std::shared_ptr<const TlsPems>& before,
                   std::shared_ptr<const TlsPems> after) {
  const std::int64_t expiry_seconds = ExpirySeconds(after->cert);
  MutexLock lock(&mu_);
  if (pems_ != before) return false;
  pems_ = std::move(after);
  ++stats_.reloads;
  stats_.expiry_seconds = expiry_seconds;
  reason_.clear();
  return true;
}

std::shared_ptr<const TlsPems> TlsWatch::pems() const {
  MutexLock lock(&mu_);
  return pems_;
}

TlsWatch::Stats TlsWatch::stats() const {
  MutexLock lock(&mu_);
  return stats_;
}

}  // namespace evergrad::transport
