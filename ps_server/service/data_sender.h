// Who sent a data request, and what that sender may ask for (LEDGER line 35). Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "evergrad/v1/data.pb.h"

namespace evergrad::ps_server {

// "gpu-7" of "worker/gpu-7"; "" where the request names no worker.
absl::string_view WorkerOf(const v1::RequestHeader& header);

// `certificate_task`: the task that the sender's certificate is for, "" without TLS, where nobody
// can tell and OK is answered. PermissionDenied: the request names another sender than its
// certificate; or a worker asks for an image of a shard, or a server for anything else; or it is
// neither.
absl::Status CheckSender(absl::string_view certificate_task, const v1::RequestHeader& header);

}  // namespace evergrad::ps_server
