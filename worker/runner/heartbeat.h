// The contents of heartbeats: the worker's state and progress, traffic, device use, and step
// records. Used on the control executor.
#pragma once

#include <cstdint>
#include <string>

#include "common/client/parameter_client.h"
#include "common/log/log.h"
#include "evergrad/v1/session.pb.h"
#include "worker/runner/attempt_run.h"
#include "worker/runner/device_report.h"
#include "worker/runner/step_log.h"

namespace evergrad::worker {

class Heartbeat {
 public:
  // All objects outlive the heartbeat.
  Heartbeat(client::ParameterClient* client, DeviceReport* device, StepLog* steps,
            log::Logger* logger)
      : client_(client), device_(device), steps_(steps), logger_(logger) {}

  // Attributes the traffic from now on to the job that begins.
  void BeginJob();

  // The current state of the runner; a pointer is null if its object does not exist.
  struct Present {
    bool computing = false;
    std::string waiting_for;          // the reason for waiting between two attempts
    const JobContext* job = nullptr;  // the job that is served
    const AttemptRun* run = nullptr;  // the running attempt
    const Work* next = nullptr;       // the attempt that begins next
    log::Context about;               // for warnings
  };
  // Returns the contents, with the step records since the last call.
  v1::WorkerProgress Take(const Present& present);

 private:
  client::ParameterClient* const client_;
  DeviceReport* const device_;
  StepLog* const steps_;
  log::Logger* const logger_;
  std::uint64_t stint_ = 0;             // number of jobs begun in this process
  std::uint64_t bytes_before_job_ = 0;  // bytes sent and received by this process before the job
};

}  // namespace evergrad::worker
