// The places of a job's parts in the user's file, as a comment at the end of the effective YAML.
// Private to this room.
//
//   # Messages name the following places in the user's file: [file, line, column].
//   # places: {files: [my.yaml], train: [[0, 6, 12]], inputs: [[0, 9, 14]],
//   #   layers: [[0, 11, 9], [0, 12, 9]], losses: [[0, 13, 13]]}   (one line in the file)
//
// The comment is not hashed or compared: neither EmitGiven nor a plan's fingerprint contains it.
#pragma once

#include <string>

#include "common/config/job_spec.h"

namespace evergrad::config {

std::string PrintPlaces(const JobSpec& spec);
// Copies the places at the end of `yaml` into `spec`. Ignores unreadable places, and a list that is
// longer or shorter than the spec's list; messages then lack the user's line.
void ReadPlaces(absl::string_view yaml, JobSpec* spec);

}  // namespace evergrad::config
