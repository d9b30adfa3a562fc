// The rules between the parts of a model. Private to this room; pure.
#pragma once

#include "common/config/job_spec.h"
#include "common/schema/schema.h"

namespace evergrad::config {

// Fills the inputs and outputs that the job leaves out, then reports each part of the model that
// names something wrong: a layer below, a table that nothing reads, a metric of another loss.
// `root` is the job file that `spec` was read from.
void CheckModel(const Node& root, Reader* reader, JobSpec* spec);

// Reports layers and losses whose shapes do not fit, at their lines. The job has no other mistake:
// a value that was refused would lead to shapes that nobody asked for. Once a layer is refused,
// those that read it are not judged.
void CheckShapes(const JobSpec& spec, Reader* reader);

}  // namespace evergrad::config
