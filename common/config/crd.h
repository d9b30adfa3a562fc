// The Kubernetes CustomResourceDefinition of TrainingJob, generated from the tables of job files.
// evergrad-operator prints it (--print-crd).
#pragma once

#include <string>
#include <vector>

#include "common/schema/schema.h"

namespace evergrad::config {

// Returns the definition as YAML (apiextensions.k8s.io/v1). Its schema is structural, and describes
// the types of plain values and sections. It keeps unknown fields: if the API server dropped a
// mistyped key, nobody would be told; the operator reports it as a condition of the object. Values
// that OpenAPI cannot describe, such as a number or a mapping, are open. Pure.
std::string TrainingJobCrd();

// Returns the keys of a job whose value may be the word `off`, as "spec.checkpoint". kubectl reads
// this word as a boolean, as YAML 1.1 does, so in an object of the API server the value is false.
const std::vector<std::string>& KeysThatMayBeOff();

// Returns the OpenAPI schema of one key. Private to the room and its tests.
Node SchemaOf(const KeyDoc& key);

}  // namespace evergrad::config
