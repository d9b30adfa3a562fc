// The settings of evergrad-coordinator beside those that every daemon has.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/daemon/option_table.h"
#include "coordinator/service/control_plane.h"
#include "coordinator/store/sqlite_state_store.h"

namespace evergrad::coordinator {

struct Options {
  ControlOptions control;
  SqliteStoreOptions store;  // without a folder the journal is in memory and ends with the process
  std::vector<std::string> checkpoint_roots;
};

// Declares the settings as flags and keys; `options` outlives the table.
void AddOptions(Options* options, daemon::OptionTable* table);
// Rules between settings. InvalidArgument (a user's) names them.
absl::Status CheckOptions(const Options& options);
// From --checkpoint-root to control.checkpoint_roots: without the flag any folder where
// `local_only` (daemon::IsLocalOnly), and none elsewhere. A folder that is not there is a user's
// error.
absl::Status ResolveRoots(bool local_only, Options* options);

}  // namespace evergrad::coordinator
