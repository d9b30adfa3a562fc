// The rules between the parts of a model. Private to this room; pure.
#pragma once

#include "common/config/job_spec.h"
#include "common/schema/schema.h"

namespace evergrad::config {

// Fills in omitted inputs and outputs, then reports each wrong reference between the parts of the
// model. Examples are a reference to a layer below, a table that no layer reads, and a metric that
// does not fit the loss. `root` is the job file of `spec`.
void CheckModel(const Node& root, Reader* reader, JobSpec* spec);

// Reports layers and losses whose shapes do not match, at their lines. The job must have no other
// mistake, because a refused value would lead to unintended shapes. Layers that read a refused
// layer are not checked.
void CheckShapes(const JobSpec& spec, Reader* reader);

}  // namespace evergrad::config
