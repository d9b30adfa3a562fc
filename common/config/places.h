// Where the parts of a job stand in its user's file, as a comment at the end of the effective YAML.
// Private to this room.
//
//   # Where this was written, for messages: [file, line, column].
//   # places: {files: [my.yaml], train: [[0, 6, 12]], inputs: [[0, 9, 14]], layers: [[0, 11, 9],
//   [0, 12, 9]], losses: [[0, 13, 13]]}
//
// A comment is part of nothing that is hashed or compared: not of EmitGiven, not of a plan's
// fingerprint.
#pragma once

#include <string>

#include "common/config/job_spec.h"

namespace evergrad::config {

std::string PrintPlaces(const JobSpec& spec);
// Puts the places that `yaml` has at its end into `spec`. A list of another length than the spec's
// own is passed over, and so is whatever cannot be read: messages are then a little worse, and
// nothing else is.
void ReadPlaces(absl::string_view yaml, JobSpec* spec);

}  // namespace evergrad::config
