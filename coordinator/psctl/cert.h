// A certificate authority and certificates for tasks, as files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace evergrad::psctl {

struct CertRequest {
  std::string folder;  // ca.pem and ca.key lie here, and the results
  std::string name;    // common name and file name: NAME.pem, NAME.key
  std::vector<std::string>
      hosts;  // host names and addresses that it is dialed by; who dials a coordinator asks for his
  std::uint32_t days = 365;
  std::string task = {};  // whom it is for: coordinator, ps_server/N, worker/NAME, user/NAME, or a
                          // role alone for any of it; "": TaskOfName(name)
};
// coordinator -> coordinator, ps-server-0 -> ps_server/0, worker-0 -> worker/0; anything else is a
// person: user/NAME.
std::string TaskOfName(const std::string& name);
// Writes ca.pem and ca.key (0600). AlreadyExists, naming the file, when one of them is there:
// nothing is ever written over.
absl::Status InitAuthority(const std::string& folder, const std::string& name, std::uint32_t days);
// Writes NAME.pem and NAME.key (0600), signed by the folder's authority, for servers and clients.
// AlreadyExists as above; NotFound without an authority.
absl::Status IssueCertificate(const CertRequest& request);

}  // namespace evergrad::psctl
