#include "coordinator/psctl/watch.h"

#include <csignal>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "coordinator/psctl/fetch.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

// The time between two checks of children, keyboard and job.
constexpr auto kTick = std::chrono::milliseconds(100);
constexpr int kWaitMs = 1000;  // a quiet job is polled once a second

class Watcher {
 public:
  Watcher(Context& context, ControlClient& client, const WatchOptions& options)
      : context_(context),
        client_(client),
        options_(options),
        printer_(options.json ? context.err : context.out, PrinterOptions(context, options)) {}

  WatchOutcome Run() {
    while (!code_) {
      Ask();
      if (auto happening = context_.inbox->Take(kTick)) {
        if (happening->signal != 0) OnSignal(happening->signal);
        if (happening->answer) OnAnswer(*std::move(happening->answer));
      }
      if (code_) break;
      CheckPatience();
      if (code_) break;
      if (asking_) ReadAnswer();
      if (options_.tick) {
        if (const auto broken = options_.tick(printer_)) End(broken->exit_code, broken->text);
      }
      if (cancel_until_ && Now() > *cancel_until_)
        End(kInterrupted, "the job did not end in time after its cancellation");
    }
    printer_.Clear();
    Finish();
    // The pending answer uses the inbox, which outlives this object, and the client, which the
    // caller keeps until the answer has arrived.
    return {*code_, last_};
  }

 private:
  static ProgressPrinter::Options PrinterOptions(const Context& context,
                                                 const WatchOptions& options) {
    ProgressPrinter::Options out;
    out.live = context.out_terminal && !options.json;
    out.columns = context.columns;
    return out;
  }
  MonoTime Now() const { return context_.clock->Now(); }
  std::chrono::milliseconds Patience() const {
    return last_ ? options_.reconnect_timeout : options_.unreachable_after;
  }

  void Ask() {
    if (outstanding_ || (last_asked_ && Now() - *last_asked_ < kTick)) return;
    v1::GetJobRequest request;
    request.set_job(options_.job);
    request.set_seen_revision(last_ ? last_->revision() : 0);
    request.set_wait_ms(last_ ? kWaitMs : 0);
    request.set_events_after(printer_.events_shown());
    outstanding_ = true;
    last_asked_ = Now();
    client_.GetJobAsync(request,
                        [inbox = context_.inbox](absl::StatusOr<v1::GetJobResponse> answer) {
                          Happening happening;
                          happening.answer = std::move(answer);
                          inbox->Put(std::move(happening));
                        });
  }

  void OnAnswer(absl::StatusOr<v1::GetJobResponse> answer) {
    outstanding_ = false;
    if (!answer.ok()) {
      OnError(answer.status());
      return;
    }
    if (failing_since_)
      printer_.Say(absl::StrCat("the coordinator answers again: ", client_.address()));
    failing_since_.reset();
    last_error_.clear();
    last_ = std::move(*answer->mutable_job());
    if (!asking_ && !options_.json) printer_.Update(*last_, Now());
    if (IsEnded(*last_)) {
      const int by_state = last_->state() == "SUCCEEDED" ? kSucceeded
                           : last_->state() == "FAILED"  ? kFailed
                                                         : kCancelled;
      code_ = interrupted_ ? kInterrupted : by_state;
    }
  }

  void OnError(const absl::Status& status) {
    const bool unreachable = status.code() == absl::StatusCode::kUnavailable ||
                             status.code() == absl::StatusCode::kDeadlineExceeded;
    if (!unreachable) {
      // The coordinator knew the job when the watch began. A coordinator that does not know the job
      // has restarted without a journal (no --state-dir).
      const bool forgotten = status.code() == absl::StatusCode::kNotFound && last_.has_value();
      if (forgotten)
        End(kUnreachable,
            absl::StrCat("the coordinator at ", client_.address(),
                         " restarted and does not know this job: ", status.message()));
      else
        End(Report(context_, status), "");
      return;
    }
    last_error_ = std::string(status.message());
    if (!failing_since_ && Patience().count() > 0) {
      failing_since_ = Now();
      printer_.Clear();  // the figures on the screen are outdated
      printer_.Say(absl::StrCat(Printable(status.message()), "; trying again for ",
                                ShowAge(Patience().count())));
    } else if (!failing_since_ || Now() - *failing_since_ > Patience()) {
      End(interrupted_ ? kInterrupted : kUnreachable, std::string(status.message()));
    }
  }

  // The check is independent of the calls, because a single call may last longer than the limit.
  void CheckPatience() {
    if (failing_since_ && Now() - *failing_since_ > Patience()) {
      End(interrupted_ ? kInterrupted : kUnreachable, last_error_);
    } else if (!failing_since_ && last_ && outstanding_ &&
               Now() - *last_asked_ > std::chrono::milliseconds(kWaitMs) + Patience()) {
      End(interrupted_ ? kInterrupted : kUnreachable,
          absl::StrCat("coordinator not reachable (it does not answer): address=",
                       client_.address()));
    }
  }

  void OnSignal(int signal) {
    if (!options_.cancel_on_interrupt || cancel_until_) {
      // The command stops if it only watches, or if the user has pressed Ctrl-C a third time.
      End(kInterrupted, cancel_until_ ? "interrupted while the job was being cancelled" : "");
      return;
    }
    interrupted_ = true;
    if (signal == SIGINT && context_.in_terminal && !asking_) {
      printer_.Clear();
      context_.out << "\ncancel the job? [y/N] " << std::flush;
      asking_ = true;
      return;
    }
    Cancel();
  }

  void ReadAnswer() {
    const auto line = context_.read_line ? context_.read_line() : std::optional<std::string>("");
    if (!line) return;
    const std::string word = absl::AsciiStrToLower(absl::StripAsciiWhitespace(*line));
    asking_ = false;
    if (word == "y" || word == "yes") {
      Cancel();
    } else {
      interrupted_ = false;
      printer_.Say("the job continues");
    }
  }

  void Cancel() {
    asking_ = false;
    interrupted_ = true;
    cancel_until_ = Now() + options_.cancel_wait;
    printer_.Say("cancelling the job");
    v1::CancelJobRequest request;
    request.set_job(options_.job);
    const auto cancelled = client_.Call<v1::CancelJobResponse>(request);
    if (!cancelled.ok())
      End(kInterrupted,
          absl::StrCat("the job could not be cancelled: ", cancelled.status().message()));
  }

  void End(int code, const std::string& text) {
    printer_.Clear();
    if (!text.empty()) context_.err << "psctl: " << Printable(text) << "\n";
    code_ = code;
  }

  // Fetches the files of a run that this machine does not see. Returns the folder of the files, or
  // "" if there is none.
  std::string Fetch() {
    if (options_.fetch_to.empty() || *code_ == kInterrupted || *code_ == kUnreachable) return "";
    FetchOptions fetch;
    fetch.job = ShowHex(last_->job_uid());
    fetch.folder = absl::StrCat(options_.fetch_to, "/", fs::NameOf(last_->runs_folder()));
    const auto fetched = FetchRun(context_, client_, fetch);
    if (fetched.ok()) return fetch.folder;
    context_.err << "psctl: the files of the run could not be copied here\n";
    const int code = Report(context_, fetched.status());
    if (*code_ == kSucceeded) code_ = code;
    return "";
  }

  void Finish() {
    if (!last_) return;
    const bool ended = IsEnded(*last_);
    RunPlace place;
    place.here = !ended || options_.files_here || SeesRun(*last_);
    if (!place.here) place.fetched = Fetch();
    if (options_.json) {
      nlohmann::json json = JsonOf(*last_);
      if (!place.fetched.empty()) json["fetched_to"] = place.fetched;
      context_.out << Dump(json) << "\n";
    } else if (ended) {
      v1::JobStatus shown = *last_;
      const std::string folder = place.fetched.empty() ? shown.runs_folder() : place.fetched;
      if (place.here) {
        shown.set_runs_folder(ShowPath(context_, folder));
        if (shown.has_checkpoint())
          shown.mutable_checkpoint()->set_uri(ShowPath(context_, shown.checkpoint().uri()));
      }
      place.fetched = ShowPath(context_, place.fetched);
      std::function<bool(const std::string&)> there;
      if ((place.here || !place.fetched.empty()) && fs::Exists(folder))
        there = [&](const std::string& name) {
          return fs::Exists(absl::StrCat(folder, "/", name));
        };
      for (const std::string& line : SummaryLines(shown, there, place))
        context_.out << line << "\n";
    }
    if (last_->state() == "SUCCEEDED" && *code_ == kSucceeded) {
      const auto unmet = Unmet(options_.requirements, MetricsOf(last_->result_json()));
      for (const std::string& line : unmet) context_.err << "psctl: " << line << "\n";
      if (!unmet.empty()) code_ = kRequirementUnmet;
    }
    context_.out.flush();
  }

  Context& context_;
  ControlClient& client_;
  const WatchOptions& options_;
  ProgressPrinter printer_;
  std::optional<int> code_;
  std::optional<v1::JobStatus> last_;
  std::string last_error_;  // the newest error since the newest answer
  bool outstanding_ = false, asking_ = false, interrupted_ = false;
  std::optional<MonoTime> last_asked_, failing_since_, cancel_until_;
};

}  // namespace

WatchOutcome WatchJob(Context& context, ControlClient& client, const WatchOptions& options) {
  context.handles_signals->store(true);
  return Watcher(context, client, options).Run();
}

}  // namespace evergrad::psctl
