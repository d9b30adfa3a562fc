// `format: idx`, the files of MNIST and of similar data sets: images and labels.
#include "absl/strings/str_cat.h"
#include "common/data_formats/all_formats.h"
#include "common/data_formats/source_keys.h"
#include "common/data_formats/transform_type.h"

namespace evergrad::config {
namespace {

// Returns the key `transforms`, which only the image may have.
Key<FieldSpec> ImageTransformsKey(const std::vector<std::string>& transforms) {
  Key<FieldSpec> key = TransformsKey(transforms);
  key.read = [read = key.read](Reader& r, const Node& n, FieldSpec* t) {
    read(r, n, t);
    if (t->name == "label" && !t->transforms.empty())
      r.Report(n.where(), "not built yet: transforms of `label` of an idx source");
  };
  return key;
}

}  // namespace

const DataFormat& IdxFormat() {
  static const std::vector<std::string> transforms = {"scale"};
  static const DataFormat format{
      .name = "idx",
      .defaults = {},
      .source = {"an idx source",
                 {PathKey("images", &SourceSpec::images,
                          "path, s3:// or gs:// URI of an IDX file, .gz or plain",
                          "file of images; a relative path starts at the job file's folder",
                          "\"${EVERGRAD_DATA:-../data}/fashion-mnist/train-images-idx3-ubyte.gz\""),
                  PathKey("labels", &SourceSpec::labels,
                          "path, s3:// or gs:// URI of an IDX file, .gz or plain",
                          "file of labels: one class number per example",
                          "\"${EVERGRAD_DATA:-../data}/fashion-mnist/"
                          "train-labels-idx1-ubyte.gz\"")},
                 SourceKeysNotBuilt()},
      .files = {{"images", &SourceSpec::images}, {"labels", &SourceSpec::labels}},
      .field = {"a field of an idx source",
                {ImageTransformsKey(transforms)},
                {"column", "type", "default", "missing", "vocabulary", "hash_buckets"}},
      .own_fields = {"image", "label"},
      .transforms = transforms,
      .check_field = nullptr,
      .kind = [](const FieldSpec&) { return std::optional(ValueKind::kReal); },
      .wrote = [](const FieldSpec& field) { return field.type.empty(); },
      .explain_field =
          [](std::string* out) {
            absl::StrAppend(out, "image: {transforms: [{scale: 0.00392156862}]}\n");
          },
      .describe_source = nullptr,
      .describe_field = nullptr};
  return format;
}

}  // namespace evergrad::config
