#include "common/object_store/renewing_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace evergrad::object_store {

RenewingSource::RenewingSource(std::string scheme, std::vector<Place> places, std::string hint,
                               const Clock* clock)
    : scheme_(std::move(scheme)),
      places_(std::move(places)),
      hint_(std::move(hint)),
      clock_(*clock) {}

absl::StatusOr<Credentials> RenewingSource::Get() {
  if (auto result = WaitOrBegin()) return *std::move(result);
  return End(Search());
}

std::optional<absl::StatusOr<Credentials>> RenewingSource::WaitOrBegin() {
  const MutexLock lock(&mu_);
  for (;;) {
    if (IsUsable() && (renewing_ || !IsDue())) return held_->credentials;
    if (!renewing_) break;
    const std::uint64_t attempt = attempts_;
    while (attempts_ == attempt) ended_.Wait(&mu_);
    // The threads that waited for one attempt share its error. Otherwise each of them would wait
    // for the timeout of its own attempt, one after the other.
    if (!last_error_.ok()) return last_error_;
  }
  renewing_ = true;
  return std::nullopt;
}

absl::StatusOr<RenewingSource::Held> RenewingSource::Search() const {
  for (const Place& place : places_) {
    FoundCredentials found = place.read();
    if (!found.ok()) return found.status();
    if (!found->has_value()) continue;
    const std::int64_t expires_ms = (*found)->expires_ms;
    if (expires_ms != 0 && expires_ms <= clock_.WallMillis())
      return absl::UnavailableError(absl::StrCat(
          "the credentials that a service gave out have already expired; compare this machine's "
          "clock: scheme=",
          scheme_, " place=", place.name));
    return Held{**std::move(found), place.read_each_time, false};
  }
  return absl::UnauthenticatedError(absl::StrCat(
      "no credentials for ", scheme_, "://; these places were searched: ",
      absl::StrJoin(places_, ", ",
                    [](std::string* out, const Place& place) { out->append(place.name); }),
      hint_));
}

absl::StatusOr<Credentials> RenewingSource::End(absl::StatusOr<Held> found) {
  const MutexLock lock(&mu_);
  renewing_ = false;
  ++attempts_;
  ended_.NotifyAll();
  last_error_ = found.status();
  next_attempt_ = clock_.Now() + kBetweenRenewals;
  if (found.ok()) {
    if (found->read_each_time) next_attempt_ = clock_.Now();
    held_ = *std::move(found);
    return held_->credentials;
  }
  if (IsUsable()) return held_->credentials;
  return last_error_;
}

void RenewingSource::Refused(const Credentials& used) {
  const MutexLock lock(&mu_);
  if (!held_) return;
  const Credentials& held = held_->credentials;
  // Another thread may have renewed them since.
  if (held.access_key_id == used.access_key_id && held.session_token == used.session_token &&
      held.secret_access_key == used.secret_access_key && held.bearer_token == used.bearer_token)
    held_->refused = true;
}

bool RenewingSource::IsUsable() const {
  if (!held_ || held_->refused) return false;
  const std::int64_t expires_ms = held_->credentials.expires_ms;
  return expires_ms == 0 || clock_.WallMillis() < expires_ms;
}

bool RenewingSource::IsDue() const {
  if (clock_.Now() < next_attempt_) return false;
  if (held_->read_each_time) return true;
  const std::int64_t expires_ms = held_->credentials.expires_ms;
  const auto before = std::chrono::duration_cast<std::chrono::milliseconds>(kRenewBefore).count();
  return expires_ms != 0 && expires_ms - clock_.WallMillis() <= before;
}

}  // namespace evergrad::object_store
