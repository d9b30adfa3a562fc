// Checks a Hello before the other classes use it. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// Returns InvalidArgument for an unknown role, a text or a list beyond its limit, a malformed set,
// a server without an endpoint, or a term that no coordinator can have reached. `known_term` is the
// highest term that this coordinator or its journal knows.
absl::Status CheckHello(const v1::Hello& hello, std::uint64_t known_term);

}  // namespace evergrad::coordinator
