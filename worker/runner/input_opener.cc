#include "worker/runner/input_opener.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/data_formats/data_format.h"
#include "worker/runner/failpoint_site.h"
#include "worker/runner/shortfall.h"

namespace evergrad::worker {
namespace {

constexpr MonoTime kReopenAfter = std::chrono::seconds(1);

absl::Status Differs(const std::string& how) {
  return WithShortfall(Shortfall::kInput,
                       absl::FailedPreconditionError(
                           absl::StrCat("the data have changed since the plan was made: ", how)));
}

absl::Status CompareExamples(const char* source, std::uint64_t want, const Dataset* data) {
  const std::uint64_t got = data == nullptr ? 0 : data->examples();
  if (got == want) return absl::OkStatus();
  return Differs(absl::StrCat("source=", source, " want=", want, " examples got=", got));
}

absl::Status CompareFingerprint(const JobContext& job, const Work& work, const Dataset& train) {
  const std::string& want = job.data_fingerprint();
  const std::string got = train.Fingerprint();
  if (want.empty() || got == want) return absl::OkStatus();
  const auto line = [](const std::string& text) {
    return absl::StrReplaceAll(text, {{"\n", ", "}});
  };
  std::string where;
  if (work.closure.value() < job.plan()->closures()) {
    const plan::ClosureRange range = job.plan()->Closure(work.closure);
    where = absl::StrCat(" closure=", work.closure.value(), " epoch=", range.epoch + 1,
                         " examples=[", range.begin, ",", range.end, ")");
  }
  const auto& source = job.spec()->data.train;
  const std::string file = source ? config::FirstFile(*source) : "";
  return Differs(absl::StrCat("file=", file, where, " want=", line(want), " got=", line(got)));
}

}  // namespace

absl::Status CompareWithPlan(const JobContext& job, const Work& work, const Dataset* train,
                             const Dataset* eval) {
  if (!job.reads_data()) return absl::OkStatus();
  const ComputeJob::Needs needs = job.NeedsOf(work.kind);
  if (needs.train) {
    EG_RETURN_IF_ERROR(CompareExamples("train", job.plan()->spec().train_examples, train));
    if (train != nullptr) EG_RETURN_IF_ERROR(CompareFingerprint(job, work, *train));
  }
  return needs.eval ? CompareExamples("eval", job.plan()->spec().eval_examples, eval)
                    : absl::OkStatus();
}

InputOpener::InputOpener(Environment environment, std::shared_ptr<ComputeJob> compute,
                         OnOpened on_opened)
    : env_(environment), compute_(std::move(compute)), on_opened_(std::move(on_opened)) {}

bool InputOpener::Open(const ComputeJob::Needs& needs, Attempt attempt) {
  if (opened_.Covers(needs)) return true;
  if (std::exchange(opening_, true)) return false;
  const ComputeJob::Needs all = {needs.train || opened_.train, needs.eval || opened_.eval,
                                 needs.graph || opened_.graph};
  AtFailpoint(env_.failpoints, "worker.open_data", env_.control,
              [weak = weak_from_this(), all, attempt,
               close_first = std::exchange(close_first_, false)](const absl::Status& hit) {
                const auto self = weak.lock();
                if (self == nullptr) return;
                if (!hit.ok()) return self->Opened(all, attempt, {hit, nullptr, nullptr});
                self->env_.compute->Run(
                    [compute = self->compute_, all, close_first]() -> Input {
                      if (close_first) compute->CloseData();
                      absl::Status status = compute->Open(all);
                      return {std::move(status), compute->train(), compute->eval()};
                    },
                    [weak, all, attempt](Input input) {
                      if (const auto opener = weak.lock())
                        opener->Opened(all, attempt, std::move(input));
                    });
              });
  return false;
}

void InputOpener::Opened(const ComputeJob::Needs& needs, Attempt attempt, Input input) {
  opening_ = false;
  if (env_.clock != nullptr) opened_at_ = env_.clock->Now();
  if (input.status.ok()) {
    opened_ = needs;
    train_ = std::move(input.train);
    eval_ = std::move(input.eval);
  }
  on_opened_(attempt, input.status);
}

absl::Status InputOpener::CheckData(const JobContext& job, const Work& work) {
  absl::Status status = CompareWithPlan(job, work, train_.get(), eval_.get());
  if (status.ok()) return status;
  if (env_.clock == nullptr || env_.clock->Now() - opened_at_ >= kReopenAfter) {
    opened_.train = opened_.eval = false;
    train_ = eval_ = nullptr;  // no batch is read ahead from the old data
    close_first_ = true;
  }
  return status;
}

}  // namespace evergrad::worker
