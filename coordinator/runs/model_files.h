// The folder `model` of a run lets a user use the model without Evergrad. The functions below make
// model.json (layers, fields, transforms, tables), load.py and README.md. The weights are in
// weights.npz beside the folder; the export adds vocabularies.json; model_tables.h makes
// tables.npz. Pure.
#pragma once

#include <string>

#include "common/config/job_spec.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

std::string ModelJson(const config::JobSpec& spec, const v1::Plan& plan);
std::string ModelReadme(const config::JobSpec& spec, bool has_tables, bool tables_written);
// Returns coordinator/runs/model/load.py as it was when this program was built.
std::string LoadPy();

}  // namespace evergrad::coordinator
