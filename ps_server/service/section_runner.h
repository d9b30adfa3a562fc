// Runs the sections of requests on the shards of one executor, and sets their outcomes.
//
// The caller chooses the order of the sections and calls ContinuePush until an apply has ended.
// Runs on the shards' executor.
#pragma once

#include <cstdint>
#include <functional>

#include "common/fault/failpoints.h"
#include "common/metrics/metrics.h"
#include "evergrad/v1/data.pb.h"
#include "ps_server/service/hosted_shards.h"
#include "ps_server/service/job_table.h"
#include "ps_server/service/row_copies.h"
#include "ps_server/snapshot/images.h"

namespace evergrad::ps_server {

// The counters of the sections of a server; ShardHost creates them.
struct SectionMetrics {
  metrics::Counter* updates[8];  // by PushCode
  metrics::Counter* pulls[4];    // by result: values, unchanged, stale, invalid
  metrics::Counter* push_bytes;  // bytes of applied pushes
  metrics::Counter* pull_bytes;  // bytes of answered pulls
};

class SectionRunner {
 public:
  struct Options {
    JobTable* jobs = nullptr;                 // All pointers outlive the runner.
    fault::Failpoints* failpoints = nullptr;  // May be null.
    const SectionMetrics* metrics = nullptr;
    const Images* images = nullptr;  // images of stopped shards; null if the server makes no images
    RowCopies* copies = nullptr;     // gets the rows of pulls; the caller calls Finish
    // Called when a push was refused because the proof of its grant is missing or invalid (LEDGER
    // line 35). Must not block.
    std::function<void(const v1::RequestHeader&, const v1::PushSection&)> on_unproved = {};
  };
  explicit SectionRunner(Options options) : options_(std::move(options)) {}

  // Runs a push. If the push is admitted and its apply has not ended, the section becomes
  // hosted->applying.
  void BeginPush(HostedShard* hosted, RequestSection section);
  // Continues the apply, and returns the number of touched bytes. hosted->applying is empty when
  // the apply has ended.
  std::uint64_t ContinuePush(HostedShard* hosted);
  // Runs a pull, and returns the approximate number of touched bytes.
  std::uint64_t RunPull(HostedShard* hosted, RequestSection section);
  // Answers a section for a shard that is not held.
  void AnswerUnheld(const RequestSection& section);

 private:
  void CountApplied(HostedShard* hosted, const RequestSection& section);
  std::uint64_t ReadImage(const Shard& shard, const RequestSection& section);

  const Options options_;
};

// Returns whether the hit of a failpoint demands that the answer to a push is lost.
bool LosesAnswer(const fault::Hit& hit);

}  // namespace evergrad::ps_server
