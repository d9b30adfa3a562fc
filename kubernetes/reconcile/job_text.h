// Makes the text of a job file from an object, and the submission from this text. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kubernetes/api/job_object.h"

namespace evergrad::kubernetes {

// An object as a job file in block style, with one value per line.
struct JobText {
  std::string yaml;
  // The key to which each line belongs: "spec.model.layers[2].units".
  std::vector<std::string> paths;
  // The same, except that a line with the first key of a section has the path of the section.
  std::vector<std::string> sections;
};
// Returns InvalidArgument if the spec is nested too deeply or too large for a job file. For the
// keys of config::KeysThatMayBeOff, `false` and the text "off" become the word `off`: JSON has no
// such word, so clients send one of the two.
absl::StatusOr<JobText> PrintJob(const JobObject& object);

struct Submission {
  std::string yaml;  // the effective YAML, for SubmitJobRequest; "" if there are mistakes
  // "" if the spec can be submitted. Otherwise all mistakes, each with its key:
  // "spec.training.epochs: expected …; spec.model: …".
  std::string mistakes;
};
// Reads the object as psctl reads a job file. `environment` has the values of ${NAME}. A relative
// path is a mistake, because an object is in no folder.
Submission PrepareSubmission(const JobObject& object,
                             const std::map<std::string, std::string>& environment);

}  // namespace evergrad::kubernetes
