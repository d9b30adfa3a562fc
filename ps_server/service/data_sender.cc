#include "ps_server/service/data_sender.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/transport/certificate_task.h"

namespace evergrad::ps_server {
namespace {

constexpr absl::string_view kWorker = "worker/";

}  // namespace

absl::string_view WorkerOf(const v1::RequestHeader& header) {
  const absl::string_view name = header.client_name();
  return absl::StartsWith(name, kWorker) ? name.substr(kWorker.size()) : absl::string_view();
}

absl::Status CheckSender(absl::string_view certificate_task, const v1::RequestHeader& header) {
  if (certificate_task.empty()) return absl::OkStatus();
  const bool images = header.pushes().empty() &&
                      std::all_of(header.pulls().begin(), header.pulls().end(),
                                  [](const v1::PullSection& pull) { return pull.has_image(); });
  if (transport::CheckTask(certificate_task, "ps_server").ok()) {
    if (images) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        "a parameter server may only read the images of shards that move: certificate=",
        certificate_task));
  }
  if (absl::Status status = transport::CheckTask(certificate_task, "worker"); !status.ok())
    return status;
  const absl::string_view name = header.client_name();
  if (WorkerOf(header).empty() || !transport::CheckTask(certificate_task, name).ok()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the request and the sender's certificate name different senders: certificate=",
        certificate_task,
        " client_name=", client::CleanText(std::string(name), kSenderNameBytesMax)));
  }
  const bool any_image = std::any_of(header.pulls().begin(), header.pulls().end(),
                                     [](const v1::PullSection& pull) { return pull.has_image(); });
  if (any_image)
    return absl::PermissionDeniedError(
        "only a parameter server may read the image of a shard that moves");
  return absl::OkStatus();
}

}  // namespace evergrad::ps_server
