// The coordinator of one process: threads, listener and control plane.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/health/health.h"
#include "common/http/interruption.h"
#include "common/object_store/credentials.h"
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
    health::Health* health = nullptr;   // may be null
    object_store::Variables variables;  // environment variables; may be empty
    // Called once on the control executor, with the reason, if this process must end (LEDGER line
    // 18a). The function may be empty.
    std::function<void(const absl::Status&)> on_end;
  };
  // Starts to listen. Returns the errors of Transport::Listen, or an error for a runs folder that
  // cannot be created.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(Options options,
                                                             const transport::ServerOptions& server,
                                                             Parts parts);
  ~Coordinator();  // calls Stop()

  std::string address() const { return server_->address(); }  // the bound address
  // Begins to register tasks, and handles the calls that arrived before.
  void Start(const std::string& advertised_address, const std::string& metrics_address);
  // Ends sessions and calls, and joins the threads. Idempotent.
  void Stop();

 private:
  Coordinator() = default;
  // Opens the file systems of checkpoints and of the copies of runs.
  void OpenFiles(const Options& options, const Parts& parts, ControlPlane::Parts* plane_parts);
  // The folders where checkpoints may be written: the folders that jobs may name, and the runs
  // folder.
  fs::Roots written_;
  http::Interruption interruption_;  // ends retries of an object store in Stop()
  std::unique_ptr<fs::FileSystem> file_system_, copy_files_;
  std::unique_ptr<runtime::ThreadExecutor> files_, checkpoints_, copies_, control_;
  std::unique_ptr<ControlPlane> plane_;
  std::unique_ptr<transport::Server> server_;
  bool stopped_ = false;
};

}  // namespace evergrad::coordinator
