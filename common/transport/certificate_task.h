// The task that a certificate belongs to. The certificate has exactly one URI name
// `evergrad://ROLE[/IDENTITY]`, as `psctl cert issue` writes it. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::transport {

inline constexpr char kCertificateScheme[] = "evergrad://";

// "worker/0", or "worker" for any worker. PermissionDenied if the URIs contain no such name (a
// certificate of an older psctl or of another tool), more than one, or one with an invalid role or
// identity.
absl::StatusOr<std::string> TaskOfUris(const std::vector<std::string>& uris);

// Checks whether `name` can be the task of a certificate: a known role (coordinator, ps_server,
// worker, user), optionally followed by an identity.
absl::Status CheckTaskName(absl::string_view name);

// Compares a certificate's task `have` with `want`: "" for any task, "worker" for any worker,
// "worker/0" for one. PermissionDenied: "certificate is for worker/0, expected coordinator".
absl::Status CheckTask(absl::string_view have, absl::string_view want);

// Checks whether the leaf certificate `pem` is valid for the host of `host_port`. PermissionDenied
// names the certificate's hosts.
absl::Status CheckHost(const std::string& pem, const std::string& host_port);

}  // namespace evergrad::transport
