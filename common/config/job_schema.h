// The tables of the job file. Private to this room.
#pragma once

#include "common/config/schema.h"

namespace evergrad::config {

inline constexpr char kApiVersion[] = "evergrad.dev/v1alpha1";
inline constexpr std::size_t kLayersMax = 512, kTablesMax = 512;
inline constexpr std::size_t kNameBytesMax = 64;

// A lower-case DNS label: letters, digits and inner dashes, at most 63.
bool IsDnsLabel(absl::string_view name);
// What a layer, an input or a field may be called: it becomes part of a variable's name
// ("dense1/kernel").
bool IsPartName(absl::string_view name);

const Table<DataSpec>& DataTable();
std::vector<Key<DataSpec>> CommonDataKeys();
extern const NotBuilt kDataKeysNotBuilt;
// `fields` of `spec.data`, once the sources are read: they decide what a field may have.
void ReadFields(Reader& reader, const Node& data, DataSpec* spec);
const Table<ModelSpec>& ModelTable();
const Table<StrategySpec>& StrategyTable();
const Table<TrainingSpec>& TrainingTable();
const Table<CountingSpec>& CountingTable();
const Table<FunctionsSpec>& FunctionsTable();
const Table<CheckpointSpec>& CheckpointTable();
const Table<ResourcesSpec>& ResourcesTable();
const Variant<LayerSpec>& LayerVariant();
const Variant<LossSpec>& LossVariant();
const Variant<OptimizerSpec>& OptimizerVariant();
const Variant<PartitionerSpec>& PartitionerVariant();
// `spec` of a training job, of a counting job, of a functions job.
const Table<JobSpec>& TrainingJobTable();
const Table<JobSpec>& CountingJobTable();
const Table<JobSpec>& FunctionsJobTable();
// Of the type of a job that was read.
const Table<JobSpec>& JobTableOf(const JobSpec& spec);

// `he_normal`, or `{type: constant, value: 0.5}`.
std::string InitializerType();
void ReadInitializer(Reader& reader, const Node& node, const std::string& key,
                     InitializerSpec* spec);
Node WriteInitializer(const InitializerSpec& spec);
// What a table cannot say: rules between an optimizer's values.
void CheckOptimizer(Reader& reader, const Node& node, const OptimizerSpec& spec);

}  // namespace evergrad::config
