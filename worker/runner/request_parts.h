// Divides the sections for each server into requests (request_split.h), and limits the number of
// parts that are in flight at a server. A pure state machine, not thread-safe (the exchange uses it
// on the control executor).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/client/request_limits.h"
#include "worker/runner/exchange_sections.h"

namespace evergrad::worker {

class RequestParts {
 public:
  using Group = ExchangeSections::Group;
  struct Requests {
    // The requests to send now, in this order. Sections without a request are sent later, when a
    // part has been answered.
    std::vector<Group> now;
    bool in_parts = false;  // each request is a part; the caller calls Sent and Answered
    // A section that fits into no request, so that the attempt must end. `now` is then empty.
    std::optional<SectionSize> never_fits;
  };

  Requests Divide(const std::string& server, const Group& group, const ExchangeSections& sections,
                  const client::RequestLimits& limits) const;
  void Sent(const std::string& server) { ++in_flight_[server]; }
  // Declares that a part in flight has been answered, or that its call has failed.
  void Answered(const std::string& server);
  bool AnyInFlight(const std::string& server) const { return in_flight_.contains(server); }

 private:
  std::map<std::string, std::uint32_t> in_flight_;  // number of parts by server; never 0
};

}  // namespace evergrad::worker
