// The updates that the shards of a job must hold when it ends, by the job's type.
#include <algorithm>

#include "common/plan/counting_rows.h"
#include "coordinator/jobs/job.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

UpdateAccount::Finding Job::CompareUpdates() const {
  if (!book_) return {UpdateAccount::Verdict::kWithin, ""};
  if (functions_) {
    // How many updates a user's closure makes is in no plan: as in `psctl job audit` the claim is
    // that nothing was lost.
    const auto& lost = book_->durable().lost;
    const bool all_kept =
        functions_->queue().lost().empty() &&
        std::all_of(lost.begin(), lost.end(), [](const IntervalSet& of) { return of.empty(); });
    return {all_kept ? UpdateAccount::Verdict::kExact : UpdateAccount::Verdict::kWithin, ""};
  }
  return claims_.Compare(final_.shards, [this](const v1::ShardSpec& spec) {
    // Which rows a batch has is the data's to say; of a dense variable all rows are touched, but
    // for a counting job's samples.
    const bool samples =
        id_.spec.type == "counting" && spec.variable().name() == plan::kCountingSamples;
    return !spec.has_slot() && !samples;
  });
}

}  // namespace evergrad::coordinator
