// The folder `model` of a run: what a user needs to use the model without Evergrad. model.json
// (layers, fields, transforms, tables), load.py, README.md. The weights are in weights.npz beside
// the folder, vocabularies.json comes with the export, tables.npz: model_tables.h. Pure.
#pragma once

#include <string>

#include "common/config/job_spec.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

std::string ModelJson(const config::JobSpec& spec, const v1::Plan& plan);
std::string ModelReadme(const config::JobSpec& spec, bool has_tables, bool tables_written);
// coordinator/runs/model/load.py, as it was when this program was built.
std::string LoadPy();

}  // namespace evergrad::coordinator
