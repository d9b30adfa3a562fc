// The running operator: the thread `kube-watch` follows the objects, and the thread `kube-control`
// carries out the decisions about them.
#pragma once

#include <memory>

#include "common/http/interruption.h"
#include "common/runtime/executor.h"
#include "kubernetes/controller/controller.h"
#include "kubernetes/controller/object_feed.h"
#include "kubernetes/controller/object_watch.h"

namespace evergrad::kubernetes {

class Operator {
 public:
  // The objects outlive the operator. `interruption` ends the requests of `api`.
  struct Parts {
    Api* api = nullptr;
    CoordinatorCalls* coordinator = nullptr;
    http::Interruption* interruption = nullptr;
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    OperatorMetrics* metrics = nullptr;
    health::Condition api_ready, coordinator_ready;
  };
  // Starts both threads.
  Operator(ControllerOptions options, const Parts& parts);
  // Ends both threads. A call to the coordinator that is in progress ends first (10 s at most).
  ~Operator();
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

 private:
  void Control();

  const Parts parts_;
  ObjectFeed feed_;
  ObjectWatch watch_;
  Controller controller_;
  std::unique_ptr<runtime::Thread> watch_thread_, control_thread_;
};

}  // namespace evergrad::kubernetes
