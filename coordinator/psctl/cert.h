// A certificate authority and certificates for tasks, as files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace evergrad::psctl {

struct CertRequest {
  std::string folder;              // ca.pem and ca.key lie here, and the results
  std::string name;                // common name and file name: NAME.pem, NAME.key
  std::vector<std::string> hosts;  // host names and addresses that peers dial it by
  std::uint32_t days = 365;
};
// Writes ca.pem and ca.key (0600). AlreadyExists, naming the file, when one of them is there: nothing is ever written over.
absl::Status InitAuthority(const std::string& folder, const std::string& name, std::uint32_t days);
// Writes NAME.pem and NAME.key (0600), signed by the folder's authority, for servers and clients. AlreadyExists as above;
// NotFound without an authority.
absl::Status IssueCertificate(const CertRequest& request);

}  // namespace evergrad::psctl
