#include "worker/runner/device_report.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::worker {

// The runner's own counts, in addition to the backend's measurements.
struct DeviceReport::Counts {
  std::atomic<std::uint64_t> batches_ahead{0}, waits{0};
  std::atomic<double> wait_seconds{0};
  // Both values belong to the current job. The values are 0 if the job's losses are not scaled.
  std::atomic<float> loss_scale{0};
  std::atomic<std::uint64_t> overflows{0};

  void Fill(const DeviceUse& use, v1::DeviceProgress* to) const {
    to->set_name(use.name);
    to->set_memory_used(use.memory.used);
    to->set_memory_peak(use.memory.peak);
    to->set_memory_reserved(use.memory.reserved);
    to->set_memory_free(use.memory.free);
    to->set_measured_steps(use.measured);
    to->set_in_seconds(use.in);
    to->set_kernel_seconds(use.kernels);
    to->set_out_seconds(use.out);
    to->set_stalled_seconds(use.stalled);
    to->set_waits(waits);
    to->set_wait_seconds(wait_seconds);
    to->set_batches_ahead(batches_ahead);
    const double measured = use.kernels + use.stalled + wait_seconds;
    if (use.utilization) {
      to->set_utilization(*use.utilization);
      to->set_utilization_from("nvml");
    } else if (measured > 0) {
      to->set_utilization(use.kernels / measured);
      to->set_utilization_from("kernels");
    }
    to->set_steps_eager(use.eager);
    to->set_graph_captures(use.captures);
    to->set_graph_replays(use.replays);
    for (const auto& [reason, count] : use.recaptures)
      (*to->mutable_graph_recaptures())[reason] = count;
    to->set_loss_scale(loss_scale);
    to->set_loss_scale_overflows(overflows);
  }
};

namespace {

using metrics::Labels;
using Samples = metrics::Registry::Samples;

const std::vector<metrics::Registry::Named>& GaugeNames() {
  static const auto* const names = new std::vector<metrics::Registry::Named>{
      {"evergrad_worker_device_memory_bytes",
       "Bytes of device memory: in use by arrays (used), the maximum of used (peak), reserved for "
       "arrays (reserved), and free (free)"},
      {"evergrad_worker_device_memory_fragmentation_ratio",
       "Fragmentation of the device memory kept for reuse: the share outside its largest piece"},
      {"evergrad_worker_device_seconds",
       "Seconds in copies to the device (in), in kernels, in copies from the device (out), "
       "in waits inside steps (stalled) and in waits between steps (wait)"},
      {"evergrad_worker_device_utilization_ratio",
       "Share of time in kernels, as the driver last sampled it (nvml) or as measured (kernels)"},
      {"evergrad_worker_device_steps",
       "Steps, by the way in which they were submitted. how=crowded counts steps that ran eagerly "
       "because of the limit of graphs; how=ahead counts steps whose batch was copied before the "
       "step began"},
      {"evergrad_worker_graph_recaptures", "Steps whose CUDA graph was captured again, by reason"},
      {"evergrad_worker_device_in_bytes",
       "Bytes copied to the device: directly from page-locked memory (direct), or after the "
       "compute thread had copied them into page-locked memory (staged)"},
      {"evergrad_worker_device_staging_refused",
       "Failed reservations of page-locked memory, for a batch or for data from or to servers"}};
  return *names;
}

// Returns the samples in the order of GaugeNames().
std::vector<Samples> GaugeSamples(const DeviceUse& use, const v1::DeviceProgress& d,
                                  std::uint64_t staging_refused) {
  const auto number = [](const auto& n) { return static_cast<double>(n); };
  Samples utilization, recaptures;
  if (!d.utilization_from().empty())
    utilization.emplace_back(Labels{{"from", d.utilization_from()}}, d.utilization());
  for (const auto& [reason, count] : d.graph_recaptures())
    recaptures.emplace_back(Labels{{"reason", reason}}, number(count));
  return {{{Labels{{"kind", "used"}}, number(d.memory_used())},
           {Labels{{"kind", "peak"}}, number(d.memory_peak())},
           {Labels{{"kind", "reserved"}}, number(d.memory_reserved())},
           {Labels{{"kind", "free"}}, number(d.memory_free())}},
          {{Labels{}, use.memory.fragmentation}},
          {{Labels{{"part", "in"}}, d.in_seconds()},
           {Labels{{"part", "kernels"}}, d.kernel_seconds()},
           {Labels{{"part", "out"}}, d.out_seconds()},
           {Labels{{"part", "stalled"}}, d.stalled_seconds()},
           {Labels{{"part", "wait"}}, d.wait_seconds()}},
          utilization,
          {{Labels{{"how", "measured"}}, number(d.measured_steps())},
           {Labels{{"how", "eager"}}, number(d.steps_eager())},
           {Labels{{"how", "captured"}}, number(d.graph_captures())},
           {Labels{{"how", "replayed"}}, number(d.graph_replays())},
           {Labels{{"how", "crowded"}}, number(use.crowded)},
           {Labels{{"how", "ahead"}}, number(d.batches_ahead())}},
          recaptures,
          {{Labels{{"how", "direct"}}, number(use.in_bytes - use.staged_bytes)},
           {Labels{{"how", "staged"}}, number(use.staged_bytes)}},
          {{Labels{}, number(staging_refused)}}};
}

}  // namespace

DeviceReport::DeviceReport(std::shared_ptr<ComputeBackend> backend, metrics::Registry* registry)
    : backend_(std::move(backend)),
      counts_(std::make_shared<Counts>()),
      loss_scale_(registry->GetGauge("evergrad_worker_loss_scale",
                                     "Loss scale of the last step (mixed_float16)")),
      overflows_(registry->GetCounter(
          "evergrad_worker_loss_scale_overflows_total",
          "Steps whose update was skipped because the loss scale was too large")) {
  registry->AddCallbackGauges(
      GaugeNames(),
      [weak = std::weak_ptr<ComputeBackend>(backend_), counts = counts_]() -> std::vector<Samples> {
        const auto compute = weak.lock();
        if (compute == nullptr) return {};
        const std::optional<DeviceUse> use = compute->use();
        if (!use) return {};
        v1::DeviceProgress progress;
        counts->Fill(*use, &progress);
        return GaugeSamples(*use, progress, compute->staging_refused());
      });
}

void DeviceReport::BeginJob() {
  counts_->loss_scale = 0;
  counts_->overflows = 0;
}

void DeviceReport::AddStep(const ComputeJob::Step& step) {
  if (step.ahead) counts_->batches_ahead.fetch_add(1);
  if (step.loss_scale <= 0) return;  // the job's losses are not scaled
  loss_scale_.Set(step.loss_scale);
  counts_->loss_scale = step.loss_scale;
  if (!step.too_large) return;
  overflows_.Add();
  counts_->overflows.fetch_add(1);
}

void DeviceReport::AddWait(double seconds) {
  counts_->waits.fetch_add(1);
  counts_->wait_seconds = counts_->wait_seconds + seconds;
}

void DeviceReport::Fill(v1::WorkerProgress* progress) const {
  if (const std::optional<DeviceUse> use = backend_->use())
    counts_->Fill(*use, progress->mutable_device());
}

void DeviceReport::WarnOnce(log::Logger* logger, const log::Context& context) {
  if (backend_->staging_refused() > 0 && !std::exchange(warned_of_staging_, true))
    logger->Warning(
        "out of page-locked memory: batches and data from the servers are copied one more time "
        "before they reach the device",
        context);
  const std::optional<DeviceUse> use = backend_->use();
  if (use && use->crowded > 0 && !std::exchange(warned_of_graphs_, true))
    logger->Warning(
        absl::StrCat("the steps have more shapes than the limit of CUDA graphs; steps of "
                     "further shapes run without a graph: graphs=",
                     use->graphs, " captures=", use->captures),
        context);
}

}  // namespace evergrad::worker
