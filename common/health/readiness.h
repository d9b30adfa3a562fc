// Readiness: the named conditions under which this process can do its work, each with the reason
// why it is not met. The roles set the conditions (ARCHITECTURE, "Vocabulary": ready).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/health/unmet.h"

namespace evergrad::health {

class Readiness;

// Sets one condition. Copies set the same condition. A default-constructed object belongs to no
// process, and its calls have no effect. Thread-safe, and may outlive its Readiness.
class Condition {
 public:
  Condition() = default;
  void Meet() const;
  // `reason` is for people. The reason may contain text from peers, so it is made one line of valid
  // UTF-8 of at most 500 bytes.
  void Fail(absl::string_view reason) const;

 private:
  friend class Readiness;
  struct State;
  Condition(std::shared_ptr<State> state, std::string name)
      : state_(std::move(state)), name_(std::move(name)) {}

  std::shared_ptr<State> state_;  // shared with Readiness and the other conditions
  std::string name_;
};

// Thread-safe.
class Readiness {
 public:
  Readiness();
  // Adds a condition that is not met for `reason`. If the condition `name` exists already, that
  // condition is returned with the new reason.
  Condition Add(absl::string_view name, absl::string_view reason);
  // Returns the conditions that are not met, in the order of Add.
  std::vector<Unmet> Missing() const;

 private:
  const std::shared_ptr<Condition::State> state_;
};

}  // namespace evergrad::health
