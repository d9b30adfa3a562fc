// The settings of evergrad-coordinator beside those that every daemon has.
#pragma once

#include "absl/status/status.h"
#include "common/daemon/option_table.h"
#include "coordinator/service/control_plane.h"
#include "coordinator/store/sqlite_state_store.h"

namespace evergrad::coordinator {

struct Options {
  ControlOptions control;
  SqliteStoreOptions store;  // an empty folder: nothing outlives the process
};

// Declares the settings as flags and keys; `options` outlives the table.
void AddOptions(Options* options, daemon::OptionTable* table);
// Rules between settings. InvalidArgument (a user's) names them.
absl::Status CheckOptions(const Options& options);

}  // namespace evergrad::coordinator
