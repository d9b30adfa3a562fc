#include "worker/runner/batch_streams.h"

#include <algorithm>

#include "common/base/check.h"

namespace evergrad::worker {
namespace {

// The number of open streams in addition to the stream of the running attempt.
constexpr int kStreamsAhead = 2;

}  // namespace

void BatchStreams::Open(const JobContext& job, const InputOpener& input, const Work& work,
                        const std::vector<AttemptBook::Held>& held) {
  OpenOne(job, input, work);
  int ahead = 0;
  for (const AttemptBook::Held& next : held) {
    if (next.begun || next.work.kind != WorkKind::kTrain ||
        next.work.closure.value() >= job.plan()->closures())
      continue;
    if (input.train() == nullptr || ++ahead > kStreamsAhead) return;
    OpenOne(job, input, next.work);
  }
}

void BatchStreams::OpenOne(const JobContext& job, const InputOpener& input, const Work& work) {
  if (open_.contains(work.attempt)) return;
  const BatchReader::StreamId stream = ++last_;
  open_[work.attempt] = stream;
  if (work.kind == WorkKind::kTrain) {
    reader_.Open(stream, input.train(), job.plan()->Closure(work.closure).steps,
                 [plan = job.plan(), closure = work.closure](std::uint32_t update) {
                   return plan->Batch(closure, UpdateIndex(update));
                 });
    return;
  }
  const plan::ClosureRange range = job.EvalRange(work);
  const std::uint64_t size = job.plan()->spec().eval_batch_size;
  reader_.Open(stream, input.eval(), range.steps, [range, size](std::uint32_t batch) {
    const std::uint64_t begin = range.begin + batch * size;
    const std::uint64_t end = std::min(range.end, begin + size);
    std::vector<std::uint64_t> indices;
    for (std::uint64_t i = begin; i < end; ++i) indices.push_back(i);
    return indices;
  });
}

void BatchStreams::Next(Attempt attempt, BatchReader::Taken taken) {
  const auto stream = open_.find(attempt);
  EG_CHECK(stream != open_.end());
  reader_.Next(stream->second, std::move(taken));
}

void BatchStreams::Close(Attempt attempt) {
  if (const auto stream = open_.extract(attempt)) reader_.Close(stream.mapped());
}

void BatchStreams::CloseAll() {
  for (const auto& [attempt, stream] : std::exchange(open_, {})) reader_.Close(stream);
}

}  // namespace evergrad::worker
