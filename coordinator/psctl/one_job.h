// The verbs of `psctl job` that name one job of a coordinator and need no output of a watch: wait,
// cancel, delete.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"

namespace evergrad::psctl {

// The job and the connection that these verbs, show and watch need.
struct OneJob {
  Connection connection;
  std::string output = "text", job;
  std::unique_ptr<ControlClient> client;
};
// Declares the arguments, parses them and connects. Returns an exit code if the verb has ended.
std::optional<int> OpenJob(Context& context, daemon::OptionTable* table,
                           const std::vector<std::string>& args, OneJob* one);

int WaitForJob(Context& context, const std::vector<std::string>& args);
int CancelJob(Context& context, const std::vector<std::string>& args);
int DeleteJob(Context& context, const std::vector<std::string>& args);

}  // namespace evergrad::psctl
