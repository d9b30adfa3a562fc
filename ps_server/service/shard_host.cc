#include "ps_server/service/shard_host.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/client/protocol.h"
#include "ps_server/service/data_sender.h"

namespace evergrad::ps_server {
namespace {

// A header of this size is parsed in about ten microseconds, which is less than the time that
// waking another thread takes.
constexpr std::uint32_t kParseInlineBytesMax = 16 * 1024;
// Running a request of at most this many bytes, including its answer, also takes less time than
// waking another thread. Pushes to tables are excluded, because they may evict rows.
constexpr std::uint64_t kRunInlineBytesMax = 16 * 1024;
constexpr std::chrono::seconds kSayEvery{10};

bool IsBrief(std::uint64_t request_bytes, const v1::RequestHeader& header) {
  return request_bytes <= kRunInlineBytesMax &&
         header.response_bytes_max() <= kRunInlineBytesMax - request_bytes &&
         std::none_of(header.pushes().begin(), header.pushes().end(),
                      [](const v1::PushSection& push) { return push.has_ids(); });
}

std::uint32_t HeaderBytes(const transport::ReceivedFrame& frame) {
  std::uint32_t bytes = 0;
  if (frame.bytes.size() >= sizeof bytes) std::memcpy(&bytes, frame.bytes.data(), sizeof bytes);
  return bytes;
}

SectionMetrics SectionMetricsOf(metrics::Registry& registry) {
  SectionMetrics metrics;
  const char* answers[8] = {"applied", "duplicate", "stale",       "superseded",
                            "refused", "busy",      "over_budget", "invalid"};
  for (int i = 0; i < 8; ++i) {
    metrics.updates[i] = &registry.GetCounter("evergrad_ps_server_updates_total",
                                              "Pushes of one update to one shard, by answer",
                                              {{"answer", answers[i]}});
  }
  const char* pulls[4] = {"values", "unchanged", "stale", "invalid"};
  for (int i = 0; i < 4; ++i) {
    metrics.pulls[i] = &registry.GetCounter(
        "evergrad_ps_server_pulls_total", "Pulls of one shard, by answer", {{"answer", pulls[i]}});
  }
  metrics.push_bytes =
      &registry.GetCounter("evergrad_ps_server_applied_bytes_total", "Bytes of gradients applied");
  metrics.pull_bytes = &registry.GetCounter("evergrad_ps_server_pulled_bytes_total",
                                            "Bytes of values sent in answers to pulls");
  return metrics;
}

}  // namespace

ShardHost::ShardHost(Options options)
    : options_(std::move(options)),
      pool_(std::make_shared<storage::ChunkPool>(options_.pool_bytes_max)),
      budget_(std::make_shared<storage::MemoryBudget>(options_.memory_bytes_max)),
      jobs_(std::make_shared<JobTable>(budget_)) {
  EG_CHECK(!options_.executors.empty());
  metrics::Registry& registry = *options_.registry;
  metrics_ = SectionMetricsOf(registry);
  malformed_ = &registry.GetCounter("evergrad_ps_server_malformed_requests_total",
                                    "Requests that were malformed as a whole");
  unproved_ = &registry.GetCounter(
      "evergrad_ps_server_unproved_pushes_total",
      "Pushes refused because the coordinator had not granted the attempt to their sender");
  senders_refused_ = &registry.GetCounter(
      "evergrad_ps_server_senders_refused_total",
      "Requests refused as a whole because the certificate of their sender does not allow them");
  AddGauges();
  for (runtime::Executor* executor : options_.executors) {
    ShardExecutor::Options shard_executor;
    shard_executor.executor = executor;
    shard_executor.jobs = jobs_.get();
    shard_executor.failpoints = options_.failpoints;
    shard_executor.metrics = &metrics_;
    shard_executor.pool = pool_;
    shard_executor.images = options_.images;
    shard_executor.on_unproved = [this](const v1::RequestHeader& header,
                                        const v1::PushSection& push) {
      unproved_->Add();
      Say(absl::StrCat(
          "refused a push, because the coordinator has not granted the pushed attempt to the "
          "sender: sender=",
          client::CleanText(header.client_name(), kSenderNameBytesMax),
          " job=", JobUidString(JobUid(header.job_uid())), " shard=", push.shard(), " closure=",
          push.closure(), " attempt=", push.attempt().term(), ".", push.attempt().n()));
    };
    shard_executors_.push_back(std::make_unique<ShardExecutor>(std::move(shard_executor)));
  }
}

void ShardHost::AddGauges() const {
  metrics::Registry& registry = *options_.registry;
  registry.AddCallbackGauge("evergrad_ps_server_pool_bytes_current",
                            "Spare memory for writing new values beside the old values", {},
                            [pool = pool_] { return static_cast<double>(pool->bytes()); });
  registry
      .GetGauge("evergrad_ps_server_pool_bytes_limit",
                "Spare memory for writing new values beside the old values: limit")
      .Set(static_cast<double>(options_.pool_bytes_max));
  registry.AddCallbackCounter("evergrad_ps_server_pool_bytes_refused_total",
                              "Spare memory for writing new values beside the old values: number "
                              "of blocks returned to the system because of the limit",
                              {}, [pool = pool_] { return pool->refused(); });
  const auto by_job = [&](const char* name, const char* help,
                          double (*read)(const JobTable::Job&)) {
    registry.AddCallbackGauges(name, help, [jobs = jobs_, read] {
      metrics::Registry::Samples samples;
      for (const auto& [uid, job] : jobs->All())
        samples.push_back({{{"job", job.name}, {"job_uid", JobUidString(uid)}}, read(job)});
      return samples;
    });
  };
  by_job("evergrad_ps_server_job_bytes",
         "Bytes of values and optimizer state, by job; for an embedding table, all memory of the "
         "table",
         [](const JobTable::Job& job) { return static_cast<double>(job.bytes); });
  by_job("evergrad_ps_server_job_shards", "Shards held, by job",
         [](const JobTable::Job& job) { return static_cast<double>(job.shards); });
  by_job(
      "evergrad_ps_server_job_updates_applied", "Updates applied, by job",
      [](const JobTable::Job& job) {
        return static_cast<double>(job.counters->updates_applied.load(std::memory_order_relaxed));
      });
  by_job("evergrad_ps_server_job_received_bytes", "Bytes of data requests, by job",
         [](const JobTable::Job& job) {
           return static_cast<double>(job.counters->bytes_received.load(std::memory_order_relaxed));
         });
  by_job("evergrad_ps_server_job_sent_bytes", "Bytes of answers to data requests, by job",
         [](const JobTable::Job& job) {
           return static_cast<double>(job.counters->bytes_sent.load(std::memory_order_relaxed));
         });
  registry.AddCallbackHistograms(
      "evergrad_ps_server_staleness_updates",
      "Staleness of applied gradients, by job: updates that a shard applied between the sender's "
      "last pull of the shard and its push",
      [jobs = jobs_] {
        metrics::Registry::Histograms histograms;
        for (const auto& [uid, job] : jobs->All()) {
          if (job.counters == nullptr) continue;
          histograms.push_back(
              {{{"job", job.name}, {"job_uid", JobUidString(uid)}}, job.counters->staleness});
        }
        return histograms;
      });
  registry.AddCallbackGauge("evergrad_ps_server_table_bytes_current",
                            "Memory of the rows of embedding tables, their indexes and their "
                            "counters",
                            {}, [budget = budget_] { return static_cast<double>(budget->used()); });
  registry
      .GetGauge("evergrad_ps_server_table_bytes_limit",
                "Memory of the rows of embedding tables, their indexes and their counters: limit")
      .Set(static_cast<double>(options_.memory_bytes_max));
  registry.AddCallbackCounter("evergrad_ps_server_table_bytes_refused_total",
                              "Memory of embedding tables: requests refused at the limit", {},
                              [budget = budget_] { return budget->refusals(); });
}

void ShardHost::Say(const std::string& what) {
  if (options_.logger == nullptr || options_.clock == nullptr) return;
  const MonoTime now = options_.clock->Now();
  std::uint64_t unsaid = 0;
  {
    MutexLock lock(&said_mu_);
    if (said_at_ && now - *said_at_ < kSayEvery) {
      ++unsaid_;
      return;
    }
    said_at_ = now;
    unsaid = std::exchange(unsaid_, 0);
  }
  options_.logger->Warning(
      unsaid == 0 ? what
                  : absl::StrCat(what, " (and ", unsaid, " refusals since the last such message)"));
}

void ShardHost::Handle(transport::ReceivedFrame frame,
                       std::unique_ptr<transport::DataResponder> responder,
                       const std::string& certificate_task) {
  DataCall::NoteFrame(frame.bytes.size(), largest_frame_.get());
  if (HeaderBytes(frame) <= kParseInlineBytesMax)
    return Parse(std::move(frame), std::move(responder), certificate_task);
  // Frame and responder are in a shared_ptr, because a posted task must be copyable.
  auto held = std::make_shared<
      std::pair<transport::ReceivedFrame, std::unique_ptr<transport::DataResponder>>>(
      std::move(frame), std::move(responder));
  options_
      .executors[next_parser_.fetch_add(1, std::memory_order_relaxed) % options_.executors.size()]
      ->Post([this, held, certificate_task] {
        Parse(std::move(held->first), std::move(held->second), certificate_task);
      });
}

void ShardHost::Parse(transport::ReceivedFrame frame,
                      std::unique_ptr<transport::DataResponder> responder,
                      absl::string_view certificate_task) {
  auto request = wire::ParseRequest({frame.bytes.data(), frame.bytes.size()});
  if (!request.ok()) {
    malformed_->Add();
    frame = {};
    return responder->Answer(DataCall::Refusal(request.status()));
  }
  absl::Status sender = CheckSender(certificate_task, *request->header);
  if (!sender.ok()) {
    senders_refused_->Add();
    Say(absl::StrCat("refused a request: ", sender.message()));
  } else if (request->header->grants_size() > grants::kProofsPerRequestMax) {
    malformed_->Add();
    sender = absl::InvalidArgumentError(
        absl::StrCat("too many proofs of grants in a request: max=", grants::kProofsPerRequestMax,
                     " got=", request->header->grants_size()));
  }
  if (!sender.ok()) {
    frame = {};
    return responder->Answer(DataCall::Refusal(sender));
  }
  const std::uint64_t request_bytes = frame.bytes.size();
  std::shared_ptr<JobCounters> counters = jobs_->CountersOf(JobUid(request->header->job_uid()));
  auto call = std::make_shared<DataCall>(
      std::move(frame), *std::move(request), std::move(responder),
      static_cast<std::uint32_t>(shard_executors_.size()), options_.frame_bytes_max, largest_frame_,
      std::move(counters), options_.failpoints);
  const v1::RequestHeader& header = *call->request().header;
  if (header.pushes_size() + header.pulls_size() == 0) return call->Answer();
  const bool here = IsBrief(request_bytes, header);
  std::vector<std::vector<RequestSection>> by_executor(shard_executors_.size());
  // Pushes come first, because the pull of a shard in the same request must follow its push.
  for (int i = 0; i < header.pushes_size(); ++i) {
    by_executor[header.pushes(i).shard() % shard_executors_.size()].push_back(
        {call, static_cast<std::uint32_t>(i), true});
  }
  for (int i = 0; i < header.pulls_size(); ++i) {
    by_executor[header.pulls(i).shard() % shard_executors_.size()].push_back(
        {call, static_cast<std::uint32_t>(i), false});
  }
  call.reset();
  for (std::size_t shard_executor = 0; shard_executor < by_executor.size(); ++shard_executor) {
    if (!by_executor[shard_executor].empty())
      shard_executors_[shard_executor]->Submit(std::move(by_executor[shard_executor]), here);
  }
}

void ShardHost::DropJob(JobUid job) {
  for (const auto& shard_executor : shard_executors_) shard_executor->DropJob(job);
}

void ShardHost::Report(JobUid job, bool digests,
                       std::function<void(std::vector<v1::ShardState>)> done) {
  struct Gathered {
    Mutex mu;
    std::vector<v1::ShardState> states ABSL_GUARDED_BY(mu);
    std::size_t missing ABSL_GUARDED_BY(mu) = 0;
    std::function<void(std::vector<v1::ShardState>)> done;
  };
  auto gathered = std::make_shared<Gathered>();
  {
    MutexLock lock(&gathered->mu);
    gathered->missing = shard_executors_.size();
  }
  gathered->done = std::move(done);
  for (const auto& shard_executor : shard_executors_) {
    shard_executor->Report(job, digests, [gathered](std::vector<v1::ShardState> states) {
      std::vector<v1::ShardState> all;
      {
        MutexLock lock(&gathered->mu);
        for (v1::ShardState& state : states) gathered->states.push_back(std::move(state));
        if (--gathered->missing > 0) return;
        all = std::move(gathered->states);
      }
      std::ranges::sort(all, [](const v1::ShardState& a, const v1::ShardState& b) {
        return std::pair(a.job_uid(), a.shard()) < std::pair(b.job_uid(), b.shard());
      });
      gathered->done(std::move(all));
    });
  }
}

}  // namespace evergrad::ps_server
