// The health of one process: its liveness, its readiness, and the answers to probes about them.
//
// Each daemon owns one Health object (common/daemon). The daemon's role registers the executors to
// watch (liveness.h), and sets the conditions of readiness (readiness.h). Two listeners answer the
// probes: common/metrics over HTTP, and common/transport over gRPC.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/health/liveness.h"
#include "common/health/readiness.h"
#include "common/time/clock.h"

namespace evergrad::health {

enum class Question { kLive, kReady };
// Returns the question that a service name of the gRPC health protocol asks: "" and "live" ask for
// the liveness, "ready" asks for the readiness. Returns nullopt for other names.
std::optional<Question> QuestionOf(absl::string_view service);

// Thread-safe.
class Health {
 public:
  explicit Health(const Clock* clock, LivenessOptions options = {}) : liveness_(clock, options) {}

  Liveness& liveness() { return liveness_; }
  Readiness& readiness() { return readiness_; }

  struct Answer {
    bool ok = false;
    // "ok\n", or one line for each reason: "not ready: NAME: REASON\n".
    std::string text;
  };
  Answer Ask(Question question) const;

 private:
  Liveness liveness_;
  Readiness readiness_;
};

}  // namespace evergrad::health
