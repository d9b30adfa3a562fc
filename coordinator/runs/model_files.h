// The folder `model` of a run lets a user use the model without Evergrad: model.json (layers,
// fields, transforms, tables), load.py, README.md. The weights are in weights.npz beside the
// folder, vocabularies.json comes with the export, tables.npz: model_tables.h. Pure.
#pragma once

#include <string>

#include "common/config/job_spec.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

std::string ModelJson(const config::JobSpec& spec, const v1::Plan& plan);
std::string ModelReadme(const config::JobSpec& spec, bool has_tables, bool tables_written);
// Returns coordinator/runs/model/load.py as of the build of this program.
std::string LoadPy();

}  // namespace evergrad::coordinator
