// The contents of heartbeats: state and progress of the worker, traffic, use of the device, records
// of steps. Control executor.
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
  // All outlive the heartbeat.
  Heartbeat(client::ParameterClient* client, DeviceReport* device, StepLog* steps,
            log::Logger* logger)
      : client_(client), device_(device), steps_(steps), logger_(logger) {}

  // Traffic counts as the job's from here on.
  void BeginJob();

  // The runner at present; the pointers are null where there is nothing of the kind.
  struct Present {
    bool computing = false;
    std::string waiting_for;          // between two attempts
    const JobContext* job = nullptr;  // that is served
    const AttemptRun* run = nullptr;  // that runs
    const Work* next = nullptr;       // that begins next
    log::Context about;               // for warnings
  };
  // Takes the records of steps since the last call.
  v1::WorkerProgress Take(const Present& present);

 private:
  client::ParameterClient* const client_;
  DeviceReport* const device_;
  StepLog* const steps_;
  log::Logger* const logger_;
  std::uint64_t stint_ = 0;             // how often a job has begun here
  std::uint64_t bytes_before_job_ = 0;  // sent and received by this process until then
};

}  // namespace evergrad::worker
