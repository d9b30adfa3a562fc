#include "common/health/readiness.h"

#include <algorithm>
#include <cstddef>

#include "common/base/mutex.h"
#include "common/base/text.h"

namespace evergrad::health {
namespace {

constexpr std::size_t kReasonBytesMax = 500;

std::string OneLine(absl::string_view text) {
  std::string line = CleanText(text, kReasonBytesMax);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return line;
}

}  // namespace

struct Condition::State {
  Mutex mu;
  struct One {
    Unmet unmet;
    bool met = false;
  };
  std::vector<One> all ABSL_GUARDED_BY(mu);  // a few, in the order of Readiness::Add

  One* Find(absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto it = std::find_if(all.begin(), all.end(),
                                 [&](const One& one) { return one.unmet.name == name; });
    return it == all.end() ? nullptr : &*it;
  }
};

void Condition::Meet() const {
  if (state_ == nullptr) return;
  MutexLock lock(&state_->mu);
  state_->Find(name_)->met = true;
}

void Condition::Fail(absl::string_view reason) const {
  if (state_ == nullptr) return;
  std::string line = OneLine(reason);
  MutexLock lock(&state_->mu);
  *state_->Find(name_) = {{name_, std::move(line)}, false};
}

Readiness::Readiness() : state_(std::make_shared<Condition::State>()) {}

Condition Readiness::Add(absl::string_view name, absl::string_view reason) {
  const Condition condition(state_, std::string(name));
  {
    MutexLock lock(&state_->mu);
    if (state_->Find(name) == nullptr) state_->all.push_back({{std::string(name), ""}, false});
  }
  condition.Fail(reason);
  return condition;
}

std::vector<Unmet> Readiness::Missing() const {
  std::vector<Unmet> missing;
  MutexLock lock(&state_->mu);
  for (const Condition::State::One& one : state_->all)
    if (!one.met) missing.push_back(one.unmet);
  return missing;
}

}  // namespace evergrad::health
