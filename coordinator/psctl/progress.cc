#include "coordinator/psctl/progress.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/psctl/require.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

double Share(const v1::JobStatus& job) {
  return job.steps_total() == 0 ? 0
                                : std::min(1.0, static_cast<double>(job.steps_done()) /
                                                    static_cast<double>(job.steps_total()));
}

bool IsCounting(const v1::JobStatus& job) {
  return std::any_of(job.epoch_rows().begin(), job.epoch_rows().end(),
                     [](const v1::EpochRow& row) { return row.counting_sum() != 0; });
}

// Returns "epoch 2/5  step 612/2345 (26 %)  21300 examples/s  loss 0.4312  ETA 80 s", without the
// figures that are not known.
std::string Figures(const v1::JobStatus& job) {
  std::vector<std::string> parts;
  if (job.epoch() > 0) parts.push_back(absl::StrCat("epoch ", job.epoch(), "/", job.epochs()));
  if (job.steps_total() > 0)
    parts.push_back(absl::StrFormat("step %d/%d (%.0f %%)", job.steps_done(), job.steps_total(),
                                    std::floor(Share(job) * 100)));
  // A functions job shows the closures that its client has scheduled.
  if (job.steps_total() == 0 && job.closures_total() > 0)
    parts.push_back(
        absl::StrFormat("closure %d/%d  step %d",
                        job.closures_succeeded() + job.closures_failed() + job.closures_cancelled(),
                        job.closures_total(), job.steps_done()));
  // While the job waits for a task, or repeats lost work, the speed and the remaining time are
  // outdated, so they are left out.
  const bool stalled = !IsEnded(job) && (!job.waiting_for().empty() || job.phase() == "repairing");
  if (job.examples_per_second() > 0 && !stalled)
    parts.push_back(absl::StrFormat("%.0f examples/s", job.examples_per_second()));
  if (job.steps_done() > 0 && !std::isnan(job.loss()) && job.loss() != 0)
    parts.push_back(absl::StrCat("loss ", ShowNumber(job.loss(), 4)));
  if (!IsEnded(job) && !stalled && job.steps_done() > 0 && job.eta_seconds() >= 0)
    parts.push_back(absl::StrCat("ETA ", ShowSeconds(job.eta_seconds())));
  return absl::StrJoin(parts, "  ");
}

std::string WorkerText(const v1::WorkerRow& worker) {
  return absl::StrCat(
      "worker/", Printable(worker.identity()), " ", Printable(worker.state()),
      worker.state() == "running" ? absl::StrCat(" closure ", worker.closure()) : "", ", ",
      worker.steps(), " steps",
      worker.device().loss_scale() > 0
          ? absl::StrCat(", loss scale ", ShowNumber(worker.device().loss_scale(), 0))
          : "");
}

// Returns "nan" for a measured value that is not a number; "-" means that nothing was measured.
std::string ShowMeasured(double loss) { return std::isnan(loss) ? "nan" : ShowNumber(loss, 4); }

// Right-aligns the title to the width of a number.
std::string MetricTitle(const std::string& name) {
  const std::string title = name == "root_mean_squared_error" ? "rmse" : Printable(name);
  return title.size() >= 8 ? title : std::string(8 - title.size(), ' ') + title;
}

std::string Head(const v1::JobStatus& job) {
  std::string head = Printable(job.state());
  if (!job.phase().empty() && job.phase() != "training" && !IsEnded(job))
    absl::StrAppend(&head, " (", Printable(job.phase()), ")");
  return head;
}

}  // namespace

bool IsEnded(const v1::JobStatus& job) {
  return job.state() == "SUCCEEDED" || job.state() == "FAILED" || job.state() == "CANCELLED";
}

std::string ProgressLine(const v1::JobStatus& job) {
  std::vector<std::string> parts{Head(job)};
  if (const std::string figures = Figures(job); !figures.empty()) parts.push_back(figures);
  if (!job.waiting_for().empty())
    parts.push_back(absl::StrCat("waiting for ", Printable(job.waiting_for())));
  if (job.workers_size() > 0 && !IsEnded(job))
    parts.push_back(absl::StrCat(
        "workers: ",
        absl::StrJoin(job.workers(), ", ", [](std::string* out, const v1::WorkerRow& w) {
          absl::StrAppend(out, "worker/", Printable(w.identity()), " ", Printable(w.state()));
        })));
  return absl::StrJoin(parts, "  ");
}

std::vector<std::string> ProgressBlock(const v1::JobStatus& job, std::size_t columns) {
  std::vector<std::string> lines;
  if (job.steps_total() > 0) {
    const std::size_t width = std::clamp<std::size_t>(columns / 3, 10, 40);
    const auto full = static_cast<std::size_t>(std::floor(Share(job) * static_cast<double>(width)));
    // Loss and remaining time are on a second line, because a single line would exceed 80 columns.
    lines.push_back(
        absl::StrCat(Head(job), " [", std::string(full, '#'), std::string(width - full, '.'), "]"));
    lines.push_back(Figures(job));
  } else {
    lines.push_back(absl::StrCat(Head(job), "  ", Figures(job)));
  }
  if (!job.waiting_for().empty())
    lines.push_back(absl::StrCat("  waiting for ", Printable(job.waiting_for())));
  constexpr int kWorkersShown = 12;
  for (int i = 0; i < std::min(job.workers_size(), kWorkersShown); ++i)
    lines.push_back(absl::StrCat("  ", WorkerText(job.workers(i))));
  if (job.workers_size() > kWorkersShown)
    lines.push_back(absl::StrCat("  and ", job.workers_size() - kWorkersShown, " more workers"));
  for (std::string& line : lines) {
    while (!line.empty() && line.back() == ' ') line.pop_back();
    line = Fit(line, columns == 0 ? 80 : columns - 1);
  }
  return lines;
}

std::vector<std::string> EpochMetrics(const v1::JobStatus& job) {
  std::set<std::string> names;
  for (const v1::EpochRow& row : job.epoch_rows())
    for (const auto& [name, value] : row.metrics()) names.insert(name);
  return {names.begin(), names.end()};
}

std::string EpochHeader(bool counting, const std::vector<std::string>& metrics) {
  std::string line = counting
                         ? "epoch  steps  samples counted  seconds"
                         : "epoch  steps  train loss  test loss  accuracy  examples/s  seconds";
  for (const std::string& name : metrics) absl::StrAppend(&line, "  ", MetricTitle(name));
  return line;
}

std::string EpochLine(const v1::EpochRow& row, bool counting,
                      const std::vector<std::string>& metrics) {
  if (!metrics.empty()) {
    std::string line = EpochLine(row, counting);
    for (const std::string& name : metrics) {
      const auto found = row.metrics().find(name);
      const std::string value = found == row.metrics().end() ? "-" : ShowMeasured(found->second),
                        title = MetricTitle(name);
      absl::StrAppend(&line, "  ",
                      std::string(title.size() - std::min(title.size(), value.size()), ' '), value);
    }
    return line;
  }
  if (counting)
    return absl::StrFormat("%5d  %5d  %15d  %7s", row.epoch(), row.steps(), row.counting_sum(),
                           ShowNumber(row.seconds(), 1));
  return absl::StrFormat("%5d  %5d  %10s  %9s  %8s  %10s  %7s", row.epoch(), row.steps(),
                         ShowMeasured(row.train_loss()),
                         std::isfinite(row.eval_accuracy()) ? ShowMeasured(row.eval_loss())
                                                            : ShowNumber(row.eval_loss(), 4),
                         ShowPercent(row.eval_accuracy()), ShowNumber(row.examples_per_second(), 0),
                         ShowNumber(row.seconds(), 1));
}

std::string UnreachedLine(const std::string& worker, const v1::UnreachedServer& unreached) {
  return absl::StrCat(
      "worker/", Printable(worker), " cannot reach ps_server/", Printable(unreached.server()),
      " at ", Printable(unreached.address()), " for ", unreached.for_ms() / 1000, " s",
      unreached.reason().empty() ? "" : absl::StrCat(": ", Printable(unreached.reason())));
}

std::vector<std::string> DeviceLines(const v1::WorkerRow& worker) {
  if (!worker.has_device()) return {};
  const v1::DeviceProgress& d = worker.device();
  std::string use =
      absl::StrCat("worker/", Printable(worker.identity()), " on ", Printable(d.name()), ": ");
  if (!d.utilization_from().empty())
    absl::StrAppend(&use, ShowPercent(d.utilization()),
                    d.utilization_from() == "nvml" ? " busy (reported by the driver)"
                                                   : " of the time in kernels",
                    ", ");
  absl::StrAppend(&use, "memory ", ShowBytes(d.memory_used()), " used, ",
                  ShowBytes(d.memory_peak()), " peak, ", ShowBytes(d.memory_reserved()),
                  " reserved");
  std::vector<std::string> lines{use};
  if (d.measured_steps() == 0) return lines;
  const auto ms = [](double seconds, std::uint64_t of) {
    return absl::StrFormat("%.3g ms", of == 0 ? 0.0 : 1e3 * seconds / static_cast<double>(of));
  };
  std::string step =
      absl::StrCat("  per step: kernels ", ms(d.kernel_seconds(), d.measured_steps()),
                   ", copies in ", ms(d.in_seconds(), d.measured_steps()), ", copies out ",
                   ms(d.out_seconds(), d.measured_steps()), ", waits within the step ",
                   ms(d.stalled_seconds(), d.measured_steps()));
  if (d.waits() > 0)
    absl::StrAppend(&step, ", waits before the step ", ms(d.wait_seconds(), d.waits()));
  absl::StrAppend(&step, "; batches copied ahead: ", d.batches_ahead(), "; steps ",
                  d.graph_replays(), " replayed, ", d.graph_captures(), " captured, ",
                  d.steps_eager(), " eager");
  const std::map<std::string, std::uint64_t> reasons(d.graph_recaptures().begin(),
                                                     d.graph_recaptures().end());
  for (const auto& [reason, count] : reasons)
    absl::StrAppend(&step, ", captured again: ", Printable(reason), " (", count, ")");
  lines.push_back(step);
  if (d.loss_scale() > 0)
    lines.push_back(absl::StrCat("  loss scale ", ShowNumber(d.loss_scale(), 0), ", too large in ",
                                 d.loss_scale_overflows(), " steps of this job"));
  return lines;
}

std::string BackoffLine(const v1::TaskBackoff& backoff) {
  std::string line =
      absl::StrCat(Printable(backoff.task()),
                   backoff.for_ms() == 0 ? " may be given work again" : " is given no work");
  if (backoff.for_ms() > 0)
    absl::StrAppend(&line, " for ", ShowSeconds(static_cast<double>(backoff.for_ms()) / 1000));
  absl::StrAppend(&line, ": ");
  if (backoff.deaths() > 0) {
    absl::StrAppend(&line, "it died ", backoff.deaths(),
                    " times in a row while it held work, without completing any");
    if (backoff.idle_deaths() > 0)
      absl::StrAppend(&line, ", then ", backoff.idle_deaths(), " times without work");
    absl::StrAppend(
        &line, "; last death",
        backoff.host().empty() ? "" : absl::StrCat(" on host ", Printable(backoff.host())), ": ");
  }
  return line + Printable(backoff.reason());
}

std::string EventLine(const v1::Event& event) {
  const std::string time = ShowTime(event.wall_ms());
  return absl::StrCat(time.size() > 11 ? time.substr(11) : time, "  ", Printable(event.kind()),
                      ": ", Printable(event.text()));
}

void ProgressPrinter::Update(const v1::JobStatus& job, MonoTime now) {
  std::vector<std::string> fresh;
  for (const v1::Event& event : job.events()) {
    if (event.number() <= events_shown_) continue;
    events_shown_ = event.number();
    // The progress line below the events shows the job's state, so state events are not printed.
    if (event.kind() != "state") fresh.push_back(EventLine(event));
  }
  const bool counting = IsCounting(job);
  for (; epochs_shown_ < job.epoch_rows_size(); ++epochs_shown_) {
    // The evaluation of an epoch comes between its last step and the next epoch's first step, and
    // the row is incomplete until then. An epoch that is never evaluated is shown when the job has
    // reached the next epoch.
    const v1::EpochRow& row = job.epoch_rows(epochs_shown_);
    const bool evaluated =
        !std::isnan(row.eval_loss()) || !std::isnan(row.eval_accuracy()) || counting;
    if (!evaluated && epochs_shown_ + 1 == job.epoch_rows_size() && job.epoch() <= row.epoch() &&
        !IsEnded(job))
      break;
    if (epochs_shown_ == 0) {
      epoch_metrics_ = EpochMetrics(job);
      fresh.push_back(EpochHeader(counting, epoch_metrics_));
    }
    fresh.push_back(EpochLine(job.epoch_rows(epochs_shown_), counting, epoch_metrics_));
  }
  if (options_.live) {
    const std::vector<std::string> block =
        IsEnded(job) ? std::vector<std::string>() : ProgressBlock(job, options_.columns);
    if (fresh.empty() && block == block_ && drawn_ == block_.size()) return;
    Erase();
    for (const std::string& line : fresh) out_ << line << "\n";
    block_ = block;
    Draw();
    return;
  }
  for (const std::string& line : fresh) out_ << line << "\n";
  const std::string line = ProgressLine(job);
  // A wait is printed when it begins, and not again each time its seconds change.
  std::string state = absl::StrCat(job.state(), "/", job.waiting_for());
  state.erase(
      std::remove_if(state.begin(), state.end(), [](char c) { return c >= '0' && c <= '9'; }),
      state.end());
  const bool due = !last_line_ || now - *last_line_ >= options_.plain_every;
  if (!IsEnded(job) && (state != state_shown_ || (due && line != line_shown_))) {
    out_ << line << "\n";
    state_shown_ = state;
    line_shown_ = line;
    last_line_ = now;
  }
  out_.flush();
}

void ProgressPrinter::Say(const std::string& line) {
  const std::vector<std::string> block = block_;
  Erase();
  out_ << line << "\n";
  block_ = block;
  if (options_.live) Draw();
  out_.flush();
}

void ProgressPrinter::Draw() {
  for (const std::string& line : block_) out_ << line << "\n";
  drawn_ = block_.size();
  out_.flush();
}

// Erases the block without a flush. The new block is then written together with the erasing text,
// so the screen does not flicker.
void ProgressPrinter::Erase() {
  if (drawn_ > 0) out_ << "\033[" << drawn_ << "A\r\033[J";
  drawn_ = 0;
  block_.clear();
}

void ProgressPrinter::Clear() {
  Erase();
  out_.flush();
}

}  // namespace evergrad::psctl
