#include "coordinator/service/store_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::coordinator {

StoreWatch::StoreWatch(StateStore* store, runtime::Executor* control, log::Logger* logger)
    : store_(store), logger_(logger), listener_(std::make_shared<Listener>()) {
  MutexLock lock(&listener_->mu);
  listener_->control = control;
}

void StoreWatch::Listen(std::function<void()> on_change) {
  store_->SetListener([listener = listener_, on_change = std::move(on_change)] {
    MutexLock lock(&listener->mu);
    if (listener->control == nullptr || std::exchange(listener->posted, true)) return;
    listener->control->Post([listener, on_change] {
      {
        MutexLock inner(&listener->mu);
        listener->posted = false;
      }
      on_change();
    });
  });
}

StoreWatch::~StoreWatch() {
  store_->SetListener({});
  MutexLock lock(&listener_->mu);
  listener_->control = nullptr;
}

absl::Status StoreWatch::Refusal(absl::string_view what) const {
  return WithOrigin(absl::UnavailableError(absl::StrCat(what, ": ", no_new_jobs().message())),
                    "coordinator");
}

bool StoreWatch::CheckPlace() {
  absl::Status place = store_->place();
  if (place.ok() == place_.ok()) return false;
  place_ = std::move(place);
  return true;
}

bool StoreWatch::CheckHealth() {
  if (broken_) return false;
  const absl::Status health = store_->health();
  // Any error except a full disk is final.
  if (!health.ok() && !absl::IsResourceExhausted(health)) {
    Fail(health);
    return false;
  }
  if (health.ok() == status_.ok()) return false;
  status_ = health;
  if (health.ok())
    logger_->Info("the coordinator's journal has capacity again: new work is accepted");
  else
    logger_->Error(absl::StrCat("no new work is accepted: ", health.message()));
  return health.ok();
}

void StoreWatch::Fail(const absl::Status& status) {
  if (broken_) return;
  broken_ = true;
  status_ = status;
  logger_->Error(
      absl::StrCat("the state store failed; no new work is accepted: ", status.message()));
}

}  // namespace evergrad::coordinator
