#include "worker/runner/device_report.h"

#include <catch2/catch.hpp>

namespace evergrad::worker {
namespace {

TEST_CASE("without a device heartbeats and metrics have no sample of a device") {
  metrics::Registry registry;
  auto backend = std::make_shared<ComputeBackend>(BackendOptions{"cpu", 1, false, ""});
  REQUIRE(backend->Get().ok());
  backend->TakeUse();
  DeviceReport report(backend, &registry);
  report.AddWait(2);
  v1::WorkerProgress progress;
  report.Fill(&progress);
  CHECK_FALSE(progress.has_device());
  CHECK_THAT(registry.PrometheusText(), !Catch::Contains("evergrad_worker_device_seconds{"));
}

TEST_CASE("the loss scale is that of the last step whose losses were scaled; overflows add up") {
  metrics::Registry registry;
  DeviceReport report(std::make_shared<ComputeBackend>(BackendOptions{"cpu", 1, false, ""}),
                      &registry);
  ComputeJob::Step step;
  step.loss_scale = 16;
  report.AddStep(step);
  step.loss_scale = 8;
  step.too_large = true;
  report.AddStep(step);
  report.AddStep(ComputeJob::Step());  // a step of a job that does not scale its losses
  report.BeginJob();
  const std::string text = registry.PrometheusText();
  CHECK_THAT(text, Catch::Contains("evergrad_worker_loss_scale 8\n"));
  CHECK_THAT(text, Catch::Contains("evergrad_worker_loss_scale_overflows_total 1\n"));
}

}  // namespace
}  // namespace evergrad::worker
