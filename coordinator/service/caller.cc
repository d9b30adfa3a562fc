#include "coordinator/service/caller.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/transport/certificate_task.h"
#include "coordinator/jobs/job.h"

namespace evergrad::coordinator {

Caller CallerOf(const transport::PeerInfo& peer) { return {peer.certificate_task, peer.address}; }

std::string JobText(const Job& job) {
  return absl::StrCat(job.name(), "/", JobUidString(job.uid()));
}

// The owner is compared as a whole. The certificate `user`, which has no name, is therefore an
// owner of its own, and not the owner of the jobs of every user.
absl::Status CheckOwner(const Caller& caller, const Job& job) {
  if (caller.task.empty() || job.owner().empty() || caller.task == job.owner() ||
      transport::RoleOfTask(caller.task) == "admin")
    return absl::OkStatus();
  return UserError(absl::PermissionDeniedError(
      absl::StrCat("the job belongs to another user: job=", JobText(job), " owner=", job.owner(),
                   " caller=", caller.task)));
}

}  // namespace evergrad::coordinator
