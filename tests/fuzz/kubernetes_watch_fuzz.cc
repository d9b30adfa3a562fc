// The input is one byte for the length of pieces, then the bytes of a watch of the API server of
// Kubernetes.
//
// Property: the same bytes give the same events, in whatever pieces they arrive. Each object that
// is read gets a decision. A spec that is submitted is one that the coordinator accepts, and its
// text is the same if the object is prepared again. A written status asks for no further write.
#include <algorithm>
#include <vector>

#include "common/base/check.h"
#include "common/config/job_spec.h"
#include "kubernetes/api/watch_reader.h"
#include "kubernetes/reconcile/decide.h"
#include "kubernetes/reconcile/job_text.h"
#include "tests/fuzz/input.h"

namespace evergrad::kubernetes {
namespace {

std::vector<WatchEvent> Read(absl::string_view bytes, std::size_t piece) {
  std::vector<WatchEvent> events;
  WatchReader reader([&](WatchEvent event) { events.push_back(std::move(event)); });
  while (!bytes.empty()) {
    if (!reader.Add(bytes.substr(0, piece))) break;
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  return events;
}

void CheckSubmission(const JobObject& object) {
  const Submission submission = PrepareSubmission(object, {{"EVERGRAD_DATA", "/data"}});
  EG_CHECK(submission.yaml.empty() == !submission.mistakes.empty());
  if (submission.yaml.empty()) return;
  config::ParseOptions options;
  options.submission = true;
  EG_CHECK(config::ParseJob(submission.yaml, options).spec.has_value());
  EG_CHECK(PrepareSubmission(object, {{"EVERGRAD_DATA", "/data"}}).yaml == submission.yaml);
}

void CheckDecisions(JobObject object) {
  Facts facts;
  facts.jobs_known = true;
  facts.now = "2026-01-01T00:00:00Z";
  facts.refusal = Refusal{"InvalidSpec", "wrong", false};
  object.status = Decide(object, facts).status;
  EG_CHECK(Decide(object, facts).status == object.status);
  EG_CHECK(!IsUrgent(object.status, object.status));
  EG_CHECK(ReportsOf(object.status, object.status).empty());
}

}  // namespace
}  // namespace evergrad::kubernetes

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace evergrad::kubernetes;
  evergrad::fuzz::Input input(data, size);
  const std::size_t piece = 1 + input.Choice(64);
  const absl::string_view bytes = input.Rest();
  const std::vector<WatchEvent> events = Read(bytes, piece);
  const std::vector<WatchEvent> whole = Read(bytes, std::max<std::size_t>(1, bytes.size()));
  EG_CHECK(events.size() == whole.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    EG_CHECK(events[i].kind == whole[i].kind);
    EG_CHECK(events[i].resource_version == whole[i].resource_version);
    EG_CHECK(events[i].object.has_value() == whole[i].object.has_value());
    if (!events[i].object) continue;
    CheckSubmission(*events[i].object);
    CheckDecisions(*events[i].object);
  }
  return 0;
}
