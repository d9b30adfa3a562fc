// Announces pushes to the servers ahead of their requests, and keeps each announcement until its
// request is sent. Not thread-safe (the exchange uses it on the control executor).
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/client/parameter_client.h"
#include "worker/params/layout.h"
#include "worker/runner/attempt_book.h"

namespace evergrad::worker {

class PushAnnouncer {
 public:
  using Endpoints = std::map<std::string, v1::Endpoint>;  // by server identity
  // `client` and `endpoints` outlive the announcer.
  PushAnnouncer(client::ParameterClient* client, const Endpoints* endpoints,
                std::shared_ptr<const Layout> layout, std::chrono::milliseconds deadline)
      : client_(client), endpoints_(endpoints), layout_(std::move(layout)), deadline_(deadline) {}

  // Announces a push to each of `shards`. If `pulls`, also announces the next pull of every dense
  // shard of the same servers. Withdraws earlier announcements that were not taken.
  // `in_parts(server)` returns whether parts of an earlier request to that server are still in
  // flight.
  void Announce(const std::vector<ShardId>& shards, bool pulls, const ShardMap& map,
                const std::function<bool(const std::string&)>& in_parts);
  // Returns the announcement to the server, or nullptr.
  client::ParameterClient::Announced Take(const std::string& server);

 private:
  client::ParameterClient* const client_;
  const Endpoints* const endpoints_;
  const std::shared_ptr<const Layout> layout_;
  const std::chrono::milliseconds deadline_;
  std::map<std::string, client::ParameterClient::Announced> announced_;  // by server
};

}  // namespace evergrad::worker
