#include "worker/data/batch_reader.h"

#include <deque>
#include <list>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/runtime/executor.h"

namespace evergrad::worker {
namespace {

std::uint64_t BytesOf(const ReadyBatch& batch) {
  std::uint64_t bytes = 0;
  for (const tensor::AlignedBuffer& field : batch.fields) bytes += field.size();
  return bytes;
}

absl::StatusOr<ReadyBatch> ReadBatch(const Dataset& data, std::uint32_t update,
                                     std::vector<std::uint64_t> indices,
                                     const BatchReader::Options& options) {
  ReadyBatch batch;
  batch.update = update;
  batch.size = static_cast<std::int64_t>(indices.size());
  std::vector<std::span<std::byte>> to;
  for (const Field& field : data.fields()) {
    const std::size_t bytes = indices.size() * field.example_bytes();
    tensor::AlignedBuffer buffer;
    if (options.allocate && field.dtype == tensor::DType::kFloat32 && bytes > 0)
      buffer = options.allocate(bytes);
    if (buffer.size() < bytes) buffer = tensor::AlignedBuffer(bytes);
    to.emplace_back(buffer.data(), buffer.size());
    batch.fields.push_back(std::move(buffer));
  }
  EG_RETURN_IF_ERROR(data.Read(indices, to));
  batch.examples = std::move(indices);
  return batch;
}

}  // namespace

struct BatchReader::Impl {
  struct Stream {
    StreamId id;
    std::shared_ptr<const Dataset> data;
    std::uint32_t batches;
    Indices indices;
    std::uint32_t next_read = 0, next_taken = 0;
    std::deque<ReadyBatch> ready;
    absl::Status error;
    Taken waiter;
  };
  struct Job {
    StreamId stream;
    std::shared_ptr<const Dataset> data;
    std::uint32_t batch;
    Indices indices;
  };

  explicit Impl(const Options& o) : options(o) {}

  Stream* Find(StreamId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    for (Stream& stream : streams) {
      if (stream.id == id) return &stream;
    }
    return nullptr;
  }
  static bool HasMore(const Stream& stream) {
    return stream.error.ok() && stream.next_read < stream.batches;
  }

  std::optional<Job> Pick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Stream* chosen = nullptr;
    for (Stream& stream : streams) {
      if (stream.waiter && HasMore(stream)) {
        chosen = &stream;
        break;
      }
    }
    if (chosen == nullptr) {
      const bool too_many = batches >= options.batches_max;
      const bool full = too_many || bytes >= options.bytes_max;
      for (Stream& stream : streams) {
        if (!HasMore(stream)) continue;
        if (full) {
          metrics::Counter* refused = too_many ? refused_batches : refused_bytes;
          if (refused != nullptr && !was_full) refused->Add();
          was_full = true;
          return std::nullopt;
        }
        chosen = &stream;
        break;
      }
    }
    if (chosen == nullptr) return std::nullopt;
    was_full = false;
    return Job{chosen->id, chosen->data, chosen->next_read++, chosen->indices};
  }

  void Account(std::int64_t more_batches, std::int64_t more_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    batches = static_cast<std::uint32_t>(batches + more_batches);
    bytes = static_cast<std::uint64_t>(static_cast<std::int64_t>(bytes) + more_bytes);
    if (batches_gauge != nullptr) batches_gauge->Set(batches);
    if (bytes_gauge != nullptr) bytes_gauge->Set(static_cast<double>(bytes));
  }

  void Run() {
    while (true) {
      std::optional<Job> job;
      {
        MutexLock lock(&mu);
        while (!stopping && !(job = Pick())) changed.Wait(&mu);
        if (stopping) return;
      }
      absl::StatusOr<ReadyBatch> batch =
          ReadBatch(*job->data, job->batch, job->indices(job->batch), options);
      Taken waiter;
      {
        MutexLock lock(&mu);
        Stream* stream = Find(job->stream);
        if (stopping || stream == nullptr) continue;
        if (!batch.ok()) stream->error = batch.status();
        if (!stream->waiter) {
          if (!batch.ok()) continue;
          Account(1, static_cast<std::int64_t>(BytesOf(*batch)));
          stream->ready.push_back(*std::move(batch));
          continue;
        }
        waiter = std::exchange(stream->waiter, nullptr);
        if (batch.ok()) ++stream->next_taken;
      }
      waiter(std::move(batch));
    }
  }

  const Options options;
  Mutex mu;
  CondVar changed;
  std::list<Stream> streams ABSL_GUARDED_BY(mu);  // in order of Open
  std::uint32_t batches ABSL_GUARDED_BY(mu) = 0;
  std::uint64_t bytes ABSL_GUARDED_BY(mu) = 0;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool was_full ABSL_GUARDED_BY(mu) = false;
  metrics::Gauge* batches_gauge = nullptr;
  metrics::Gauge* bytes_gauge = nullptr;
  metrics::Counter* refused_batches = nullptr;
  metrics::Counter* refused_bytes = nullptr;
  std::optional<runtime::Thread> thread;
};

BatchReader::BatchReader(const Options& options, metrics::Registry* registry)
    : impl_(std::make_shared<Impl>(options)) {
  if (registry != nullptr) {
    metrics::Limit batches(
        *registry, "evergrad_worker_prefetch_batches",
        "Batches read ahead and not yet consumed; at the limit the reader pauses",
        options.batches_max);
    metrics::Limit bytes(*registry, "evergrad_worker_prefetch_bytes",
                         "Bytes of batches read ahead; at the limit the reader pauses",
                         static_cast<double>(options.bytes_max));
    impl_->batches_gauge = &batches.current;
    impl_->bytes_gauge = &bytes.current;
    impl_->refused_batches = &batches.refused;
    impl_->refused_bytes = &bytes.refused;
  }
  impl_->thread.emplace("prefetch", [impl = impl_.get()] { impl->Run(); });
}

BatchReader::~BatchReader() {
  {
    MutexLock lock(&impl_->mu);
    impl_->stopping = true;
    impl_->changed.NotifyAll();
  }
  impl_->thread.reset();
}

void BatchReader::Open(StreamId stream, std::shared_ptr<const Dataset> data, std::uint32_t batches,
                       Indices indices) {
  MutexLock lock(&impl_->mu);
  if (impl_->Find(stream) != nullptr) return;
  Impl::Stream& added = impl_->streams.emplace_back();
  added.id = stream;
  added.data = std::move(data);
  added.batches = batches;
  added.indices = std::move(indices);
  impl_->changed.NotifyAll();
}

void BatchReader::Next(StreamId stream_id, Taken done) {
  absl::StatusOr<ReadyBatch> answer = absl::InternalError("not read");
  {
    MutexLock lock(&impl_->mu);
    Impl::Stream* stream = impl_->Find(stream_id);
    if (stream == nullptr) {
      answer = absl::NotFoundError(absl::StrCat("unknown stream of batches: stream=", stream_id));
    } else if (!stream->ready.empty()) {
      impl_->Account(-1, -static_cast<std::int64_t>(BytesOf(stream->ready.front())));
      answer = std::move(stream->ready.front());
      stream->ready.pop_front();
      ++stream->next_taken;
      impl_->changed.NotifyAll();
    } else if (!stream->error.ok()) {
      answer = stream->error;
    } else if (stream->next_taken >= stream->batches) {
      answer = absl::OutOfRangeError(
          absl::StrCat("no batch is left in the stream: batches=", stream->batches));
    } else {
      stream->waiter = std::move(done);
      impl_->changed.NotifyAll();
      return;
    }
  }
  done(std::move(answer));
}

void BatchReader::Close(StreamId stream) {
  std::list<Impl::Stream> dropped;  // destroyed after the lock is released
  MutexLock lock(&impl_->mu);
  for (auto it = impl_->streams.begin(); it != impl_->streams.end(); ++it) {
    if (it->id != stream) continue;
    for (const ReadyBatch& batch : it->ready)
      impl_->Account(-1, -static_cast<std::int64_t>(BytesOf(batch)));
    dropped.splice(dropped.begin(), impl_->streams, it);
    break;
  }
  impl_->changed.NotifyAll();
}

std::uint32_t BatchReader::buffered_batches() const {
  MutexLock lock(&impl_->mu);
  return impl_->batches;
}

}  // namespace evergrad::worker
