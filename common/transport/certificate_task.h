// The task to which a certificate belongs. The certificate has exactly one URI name
// `evergrad://ROLE[/IDENTITY]`, as `psctl cert issue` writes it. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::transport {

inline constexpr char kCertificateScheme[] = "evergrad://";

// Returns "worker/0", or "worker" for any worker. Returns PermissionDenied if the URIs contain no
// such name (the certificate is from an older psctl or from another tool), more than one such name,
// or a name with an invalid role or identity.
absl::StatusOr<std::string> TaskOfUris(const std::vector<std::string>& uris);

// Checks whether `name` can be the task of a certificate: a known role (coordinator, ps_server,
// worker, user), optionally followed by an identity.
absl::Status CheckTaskName(absl::string_view name);

// Compares a certificate's task `have` with `want`, which is "" for any task, "worker" for any
// worker, or "worker/0" for one worker. The error is PermissionDenied: "certificate is for
// worker/0, expected coordinator".
absl::Status CheckTask(absl::string_view have, absl::string_view want);

// Checks whether the leaf certificate `pem` is valid for the host of `host_port`. The error is
// PermissionDenied and names the certificate's hosts.
absl::Status CheckHost(const std::string& pem, const std::string& host_port);

}  // namespace evergrad::transport
