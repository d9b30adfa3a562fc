#include "kubernetes/reconcile/job_text.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/escape.h"
#include "common/config/crd.h"
#include "common/config/job_spec.h"
#include "common/schema/schema.h"
#include "common/schema/yaml_tree.h"

namespace evergrad::kubernetes {
namespace {

constexpr std::size_t kMistakesBytesMax = 3000;
constexpr std::size_t kKeyCharactersMax = 60;
constexpr std::size_t kPathBytesMax = 8u << 20;

std::string TextOfString(const std::string& text) {
  return config::PrintFlow(config::MakeText(text));
}

// Writes values in block style, so that each line has at most one value.
class Printer {
 public:
  explicit Printer(JobText* out) : out_(out) {}

  // Writes "PREFIX VALUE", and the inner values on further lines. Stops at the limit of a job file,
  // because the text and the paths can be far longer than the object.
  void Value(const Json& value, const std::string& prefix, const std::string& indent,
             const std::string& path, int depth) {
    too_deep_ = too_deep_ || depth > config::kYamlDepthMax;
    if (too_deep_ || too_large_) return;
    if (value.is_object() && !value.empty()) {
      Line(prefix, path);
      const std::size_t first = out_->paths.size();
      for (const auto& [key, inner] : value.items())
        Value(inner, absl::StrCat(indent, TextOfString(key), ":"), indent + "  ",
              absl::StrCat(path, ".", Quoted(key, kKeyCharactersMax)), depth + 1);
      if (first < out_->sections.size()) out_->sections[first] = path;
    } else if (value.is_array() && !value.empty()) {
      Line(prefix, path);
      std::size_t i = 0;
      for (const Json& inner : value)
        Value(inner, indent + "-", indent + "  ", absl::StrCat(path, "[", i++, "]"), depth + 1);
    } else {
      Line(absl::StrCat(prefix, " ", Scalar(value, path)), path);
    }
  }
  void Line(absl::string_view line, const std::string& path) {
    path_bytes_ += 2 * path.size();
    too_large_ = too_large_ || out_->yaml.size() + line.size() >= config::kYamlBytesMax ||
                 path_bytes_ > kPathBytesMax || out_->paths.size() >= config::kYamlValuesMax;
    if (too_large_) return;
    absl::StrAppend(&out_->yaml, line, "\n");
    out_->paths.push_back(path);
    out_->sections.push_back(path);
  }
  bool too_deep() const { return too_deep_; }
  bool too_large() const { return too_large_; }

 private:
  static std::string Scalar(const Json& value, const std::string& path) {
    const auto& off = config::KeysThatMayBeOff();
    if ((value == false || value == "off") && std::find(off.begin(), off.end(), path) != off.end())
      return "off";
    if (value.is_string()) return TextOfString(value.get_ref<const std::string&>());
    return value.dump();  // a number, true, false, null, [] or {}
  }

  JobText* const out_;
  bool too_deep_ = false, too_large_ = false;
  std::size_t path_bytes_ = 0;
};

std::string PathOfLine(const std::vector<std::string>& paths, int line) {
  if (line < 1 || static_cast<std::size_t>(line) > paths.size()) return "spec";
  return paths[static_cast<std::size_t>(line - 1)];
}

void AddMistake(const std::string& path, absl::string_view mistake, std::string* out) {
  if (out->size() > kMistakesBytesMax) return;
  absl::StrAppend(out, out->empty() ? "" : "; ", path, ": ", Escaped(mistake));
}

// Adds a mistake if `file` is relative to a folder.
void CheckPath(const std::string& path, const std::string& file, std::string* out) {
  if (file.empty() || absl::StartsWith(file, "/") || absl::StrContains(file, "://")) return;
  AddMistake(path,
             absl::StrCat("expected an absolute path or a URI, because an object is in no folder, "
                          "got `",
                          Quoted(file, 200), "`"),
             out);
}

}  // namespace

absl::StatusOr<JobText> PrintJob(const JobObject& object) {
  JobText text;
  Printer printer(&text);
  printer.Line("apiVersion: evergrad.dev/v1alpha1", "apiVersion");
  printer.Line("kind: TrainingJob", "kind");
  printer.Line("metadata:", "metadata");
  printer.Line(absl::StrCat("  name: ", TextOfString(object.name)), "metadata.name");
  printer.Value(object.spec, "spec:", "  ", "spec", 1);
  if (printer.too_deep())
    return absl::InvalidArgumentError(
        absl::StrCat("spec: nested deeper than ", config::kYamlDepthMax, " levels"));
  if (printer.too_large())
    return absl::InvalidArgumentError(
        absl::StrCat("spec: too large for a job file: bytes_max=", config::kYamlBytesMax,
                     " values_max=", config::kYamlValuesMax));
  return text;
}

Submission PrepareSubmission(const JobObject& object,
                             const std::map<std::string, std::string>& environment) {
  Submission submission;
  const absl::StatusOr<JobText> text = PrintJob(object);
  if (!text.ok()) {
    submission.mistakes = std::string(text.status().message());
    return submission;
  }
  config::ParseOptions options;
  options.file_name = object.name;
  options.environment = environment;
  const config::ParsedJob parsed = config::ParseJob(text->yaml, options);
  for (const config::Mistake& mistake : parsed.mistakes) {
    // A section begins at its first key, which has nothing to do with a key that is missing.
    const bool missing = absl::StartsWith(mistake.text, "missing key ");
    AddMistake(PathOfLine(missing ? text->sections : text->paths, mistake.where.line), mistake.text,
               &submission.mistakes);
  }
  for (const config::DataPath& path : parsed.paths)
    CheckPath(PathOfLine(text->paths, path.where.line), path.path, &submission.mistakes);
  if (parsed.spec)
    CheckPath("spec.checkpoint.directory", parsed.spec->checkpoint.directory, &submission.mistakes);
  if (submission.mistakes.empty()) submission.yaml = config::EmitYaml(*parsed.spec);
  return submission;
}

}  // namespace evergrad::kubernetes
