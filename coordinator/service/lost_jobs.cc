#include "coordinator/service/lost_jobs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/closures/term_rule.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kJobsNamedMax = 8, kServersNamedMax = 8, kHostBytesMax = 64;

}  // namespace

bool LostJobs::Add(const v1::Hello& hello) {
  if (hello.role() != v1::ROLE_PS_SERVER) return false;
  bool lost = false;
  for (const v1::HeldShard& shard : hello.shards()) {
    const JobUid uid(shard.job_uid());
    if (knows_.forgets || !JournalHasLost({.journaled = hello.journaled(),
                                           .known = knows_.known(uid),
                                           .removed = knows_.removed(uid)}))
      continue;
    Lost& job = jobs_[uid];
    ++job.shards;
    job.term = std::max(job.term, shard.epoch().term());
    job.servers[hello.identity()] =
        absl::StrCat("ps_server/", client::CleanText(hello.identity(), kHostBytesMax), " (pid ",
                     hello.pid(), " on ", client::CleanText(hello.host(), kHostBytesMax), ")");
    lost = true;
  }
  return lost;
}

std::string LostJobs::Text() const {
  std::string found;
  std::size_t named = 0;
  for (const auto& [uid, job] : jobs_) {
    if (named++ == kJobsNamedMax) {
      absl::StrAppend(&found, ", and ", jobs_.size() - kJobsNamedMax, " more jobs");
      break;
    }
    absl::StrAppend(&found, found.empty() ? "" : ", ", job.shards,
                    job.shards == 1 ? " shard" : " shards", " of job ", JobUidString(uid),
                    " (term ", job.term, ") at ");
    std::size_t servers = 0;
    for (const auto& [identity, text] : job.servers) {
      if (servers == kServersNamedMax) break;
      absl::StrAppend(&found, servers++ == 0 ? "" : ", ", text);
    }
    if (job.servers.size() > kServersNamedMax)
      absl::StrAppend(&found, " and ", job.servers.size() - kServersNamedMax, " more servers");
  }
  constexpr absl::string_view kGiveUp =
      "to give the job up and drop its shards, start with --forget-unknown-jobs (psctl checkpoint "
      "list RUNS shows the checkpoints to resume from)";
  if (!knows_.journals) {
    return absl::StrCat(
        "this coordinator was started without a journal (--state-dir), but parameter servers hold ",
        found,
        ", which a coordinator with a journal started. Nothing was changed, and the servers keep "
        "these shards. Start with --state-dir and the folder with which the job was started; or, ",
        kGiveUp);
  }
  return absl::StrCat(
      "the coordinator's journal (--state-dir) has lost jobs that still exist, or it belongs to "
      "another cluster: parameter servers hold ",
      found, ", but the journal is at term ", knows_.term, " and knows ", knows_.jobs,
      knows_.jobs == 1 ? " other job" : " other jobs",
      ". Nothing was changed, and the servers keep these shards. Restore the folder from a backup "
      "that knows the job; or, ",
      kGiveUp);
}

}  // namespace evergrad::coordinator
