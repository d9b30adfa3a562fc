// The settings of the watch for preemption notices, and their rules. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace evergrad::preemption {

struct Settings {
  std::string source = "none";          // none, file, gce, aws, azure or auto
  std::string notice_file;              // "" if no file is watched
  std::string metadata_url;             // "" for the address of all three clouds
  std::string on_rebalance = "ignore";  // ignore or drain
  bool source_is_set = false;           // by a flag or by the settings file
};

// Refuses settings that contradict each other or have no effect.
absl::Status CheckSettings(const Settings& settings);

// Returns the source of notices. A notice file alone means the source `file`. CheckSettings must
// have succeeded.
std::string SourceOf(const Settings& settings);

}  // namespace evergrad::preemption
