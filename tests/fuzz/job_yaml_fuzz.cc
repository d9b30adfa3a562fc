// The input is the text of a job file.
//
// Property: if a job is accepted, reading the texts that EmitYaml and EmitSubmission write for it
// gives an equal job.
#include "common/base/check.h"
#include "common/config/job_spec.h"
#include "tests/fuzz/input.h"

namespace evergrad::config {
namespace {

// Removes the places (lines and columns) in the file. They differ between a job file and the text
// that is emitted for it.
void ForgetPlaces(JobSpec* spec) {
  for (auto* source : {&spec->data.train, &spec->data.eval})
    if (*source) (*source)->where = {};
  for (InputSpec& input : spec->model.inputs) input.where = {};
  for (LayerSpec& layer : spec->model.layers) layer.where = {};
  for (TableSpec& table : spec->model.tables) table.where = {};
  for (LossSpec& loss : spec->model.losses) loss.where = {};
  spec->optimizers_where = {};
}

std::string FirstMistake(const ParsedJob& parsed) {
  return parsed.mistakes.empty() ? "" : parsed.mistakes.front().ToString();
}

void CheckJob(absl::string_view text) {
  ParseOptions options;
  options.file_name = "job.yaml";
  options.base_folder = "/jobs";
  options.environment = {{"EVERGRAD_DATA", "/data"}};
  ParsedJob parsed = ParseJob(text, options);
  if (!parsed.spec) {
    EG_CHECK(!parsed.mistakes.empty());
    for (const Mistake& mistake : parsed.mistakes) EG_CHECK(!mistake.ToString().empty());
    return;
  }
  const std::string effective = EmitYaml(*parsed.spec);
  ParsedJob again = ParseJob(effective, {});
  EG_CHECK_MSG(again.spec.has_value(), FirstMistake(again));
  ParsedJob submitted = ParseJob(EmitSubmission(*parsed.spec), {.submission = true});
  EG_CHECK_MSG(submitted.spec.has_value(), FirstMistake(submitted));
  const std::string given = EmitGiven(*parsed.spec);
  for (JobSpec* spec : {&*parsed.spec, &*again.spec, &*submitted.spec}) ForgetPlaces(spec);
  EG_CHECK(*again.spec == *parsed.spec);
  EG_CHECK(*submitted.spec == *parsed.spec);
  EG_CHECK(EmitYaml(*again.spec) == effective);
  EG_CHECK(EmitGiven(*again.spec) == given);
}

}  // namespace
}  // namespace evergrad::config

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  evergrad::fuzz::Input input(data, size);
  evergrad::config::CheckJob(input.Rest());
  return 0;
}
