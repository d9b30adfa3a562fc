#include "coordinator/service/life.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"

namespace evergrad::coordinator {

absl::Status NoSuchJob(const Life& life, absl::string_view name_or_uid) {
  std::string text = name_or_uid.empty()
                         ? std::string("no job has been submitted")
                         : absl::StrCat("no such job: job=", name_or_uid.substr(0, 200));
  // With a journal the coordinator knows all jobs except old jobs that have ended.
  if (life.journaled)
    return UserError(
        absl::NotFoundError(absl::StrCat(text, " (psctl job list shows the known jobs)")));
  absl::StrAppend(&text, "; ",
                  life.term.value() > 1 ? "the coordinator was restarted at "
                                        : "this coordinator was started at ",
                  absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(life.started_ms),
                                   absl::UTCTimeZone()),
                  " without a journal (--state-dir) and does not know earlier jobs");
  return UserError(absl::NotFoundError(text));
}

absl::Status StoppingError() { return absl::UnavailableError("the coordinator is stopping"); }

}  // namespace evergrad::coordinator
