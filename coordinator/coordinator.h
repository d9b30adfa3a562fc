// The coordinator of one process: its threads, its listener, its control plane.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"
#include "coordinator/config.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

class Coordinator {
 public:
  struct Parts {  // all outlive the coordinator
    transport::Transport* transport = nullptr;
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    fault::Failpoints* failpoints = nullptr;
    StateStore* store = nullptr;
    // From the control executor, once: this process has to end, and why (line 18a). May be empty.
    std::function<void(const absl::Status&)> on_end;
  };
  // Listens. Errors are those of Transport::Listen, or of a runs folder that cannot be made.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(Options options,
                                                             const transport::ServerOptions& server,
                                                             Parts parts);
  ~Coordinator();  // Stop().

  std::string address() const { return server_->address(); }  // as bound
  // Begins to register tasks; calls made before are queued.
  void Start(const std::string& advertised_address, const std::string& metrics_address);
  // Ends sessions and calls, joins its threads. Idempotent.
  void Stop();

 private:
  Coordinator() = default;
  fs::Roots written_;  // where checkpoints may lie: what jobs may name, and the runs folder
  std::unique_ptr<fs::FileSystem> file_system_;
  std::unique_ptr<runtime::ThreadExecutor> files_, control_;
  std::unique_ptr<ControlPlane> plane_;
  std::unique_ptr<transport::Server> server_;
  bool stopped_ = false;
};

}  // namespace evergrad::coordinator
