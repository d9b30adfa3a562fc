// Writes the sections of a request and the header that they share. Not thread-safe (the exchange
// uses it on the control executor).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/wire/data_frame.h"
#include "evergrad/v1/data.pb.h"
#include "worker/params/layout.h"
#include "worker/params/weights.h"
#include "worker/runner/exchange_sections.h"

namespace evergrad::worker {

class RequestWriter {
 public:
  // The fields that all requests of an attempt share.
  struct Identity {
    JobUid job;
    v1::Stamp registration;
    ClosureId closure;
    Attempt attempt;
    std::string proof, client_name;  // [LEDGER 35]
  };
  struct Written {
    wire::Packed<v1::RequestHeader> header;
    std::vector<tensor::SharedBytes> payloads;  // one for each push
    std::vector<tensor::SharedBytes> ids;       // one for each section; empty if none has ids
  };

  // `cache` outlives the writer.
  RequestWriter(Identity identity, std::shared_ptr<const Layout> layout, const PullCache* cache)
      : identity_(std::move(identity)), layout_(std::move(layout)), cache_(cache) {}

  // Writes a request. Every section of `group` must exist, and its shard must be in `map`.
  Written Write(const ExchangeSections& sections, const ExchangeSections::Group& group,
                const ShardMap& map) const;

 private:
  void FillPush(const ExchangeSections::PushKey& key, const ExchangeSections::Push& push,
                const ShardMap& map, Written* written) const;
  void FillPull(const ExchangeSections::PullKey& key, const ExchangeSections::PulledRows& rows,
                const ShardMap& map, Written* written) const;

  const Identity identity_;
  const std::shared_ptr<const Layout> layout_;
  const PullCache* const cache_;
};

}  // namespace evergrad::worker
