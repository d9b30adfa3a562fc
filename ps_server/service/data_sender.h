// Finds the sender of a data request and checks the rights of the sender (LEDGER line 35). Pure.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "evergrad/v1/data.pb.h"

namespace evergrad::ps_server {

// The limit of a sender's name in a message.
inline constexpr std::size_t kSenderNameBytesMax = 100;

// Returns "gpu-7" for a request of "worker/gpu-7", and "" if the request names no worker.
absl::string_view WorkerOf(const v1::RequestHeader& header);

// Checks the sender of a request. `certificate_task` is the task of the sender's certificate, or ""
// without TLS. Without TLS the sender cannot be checked, and the result is OK. The result is
// PermissionDenied if the request names a sender other than its certificate, if a worker asks for
// an image of a shard, if a server asks for something other than an image, or if the sender is
// neither a worker nor a server.
absl::Status CheckSender(absl::string_view certificate_task, const v1::RequestHeader& header);

}  // namespace evergrad::ps_server
