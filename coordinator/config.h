// The settings of evergrad-coordinator, except the settings that every daemon has.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/daemon/option_table.h"
#include "common/object_store/file_systems.h"
#include "coordinator/service/control_plane.h"
#include "coordinator/store/sqlite_state_store.h"

namespace evergrad::coordinator {

struct Options {
  ControlOptions control;
  SqliteStoreOptions store;  // without a folder the journal is in memory and ends with the process
  std::vector<std::string> checkpoint_roots;  // local folders and URIs of object stores
  object_store::StoreOptions stores;
};

// Declares the settings as flags and keys; `options` outlives the table.
void AddOptions(Options* options, daemon::OptionTable* table);
// Checks the rules between settings. Returns InvalidArgument (a user's error), which names the
// settings that break a rule.
absl::Status CheckOptions(const Options& options);
// Derives control.checkpoint_roots from --checkpoint-root. Without the flag any folder is allowed
// if `local_only` (daemon::IsLocalOnly), otherwise none. A missing folder is a user's error.
absl::Status ResolveRoots(bool local_only, Options* options);

}  // namespace evergrad::coordinator
