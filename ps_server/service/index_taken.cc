#include "ps_server/service/index_taken.h"

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/client/task_identity.h"

namespace evergrad::ps_server {

IndexTaken::Verdict IndexTaken::Judge(const v1::Rejected& rejected) {
  Verdict verdict;
  // If the holder has ended or is disconnected, the server waits until the index is free, because
  // the holder may be its own former process.
  if (rejected.kind() != "identity_taken" || !by_default_ || !rejected.holder_lives())
    return verdict;
  const std::string holder = client::CleanText(rejected.holder_host(), client::kHostBytesMax);
  const std::string free = client::CleanText(rejected.free_identity(), 32);
  verdict.ends = holder != host_;
  if (said_of_ == holder && !verdict.ends) return verdict;
  said_of_ = holder;
  verdict.say = absl::StrCat(
      "another running server has the index of this server: index=", index_, " host=", holder,
      "; this server took the index by default, because --index was not given and its host name `",
      host_, "` does not end in a number. To run both servers, start this server with --index ",
      free.empty() ? "N" : free,
      verdict.ends ? "" : ". Until then, this server waits for the other server to end");
  return verdict;
}

}  // namespace evergrad::ps_server
