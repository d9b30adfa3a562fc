#include "coordinator/service/hello_check.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/client/task_identity.h"
#include "coordinator/service/task_reports.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kTermMax = 1ull << 62;  // higher terms are forged
// Largest distance of a reported term above the known term. A coordinator never restarts this often
// while a task is disconnected.
constexpr std::uint64_t kTermStepMax = 1ull << 32;
constexpr int kShardsHeldMax = 1 << 16;

}  // namespace

absl::Status CheckHello(const v1::Hello& hello, std::uint64_t known_term) {
  if (hello.role() != v1::ROLE_WORKER && hello.role() != v1::ROLE_PS_SERVER)
    return absl::InvalidArgumentError(
        absl::StrCat("the Hello has an unknown role: role=", hello.role()));
  // A task with a forged term must not raise the coordinator's term so far that the correct terms
  // of all other tasks are refused.
  const std::uint64_t term_max =
      known_term == 0 ? kTermMax
                      : std::max(known_term, std::min(kTermMax, known_term + kTermStepMax));
  if (hello.highest_term() > term_max)
    return absl::InvalidArgumentError(absl::StrCat(
        "the Hello has an impossible term: term=", hello.highest_term(), " known=", known_term));
  for (const std::string* text :
       {&hello.build_id(), &hello.host(), &hello.metrics_address(), &hello.endpoint().address(),
        &hello.endpoint().unix_path(), &hello.endpoint().host_id(), &hello.compute(),
        &hello.leaving(), &hello.lifeline()}) {
    if (text->size() > kTaskTextBytesMax)
      return absl::InvalidArgumentError(absl::StrCat(
          "a text of the Hello is too long: bytes=", text->size(), " max=", kTaskTextBytesMax));
  }
  if (hello.shards_size() > kShardsHeldMax || hello.attempts_size() > client::kHeldAttemptsMax)
    return absl::InvalidArgumentError("the Hello has too many shards or attempts");
  if (hello.role() == v1::ROLE_PS_SERVER && hello.endpoint().address().empty())
    return absl::InvalidArgumentError("the Hello of a server has no endpoint");
  for (const v1::HeldShard& shard : hello.shards()) {
    if (auto done = client::FromProto(shard.done()); !done.ok()) return done.status();
    if (auto refused = client::FromProto(shard.refused()); !refused.ok()) return refused.status();
    if (shard.epoch().term() > term_max)
      return absl::InvalidArgumentError(
          absl::StrCat("the Hello has a shard of an impossible term: term=", shard.epoch().term(),
                       " known=", known_term));
  }
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
