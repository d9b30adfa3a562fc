// `spec.data` of a job as typed values: sources, fields, transforms.
//
// One struct holds the settings of all formats, and another struct the settings of all transforms.
// The descriptor of a format (data_format.h) or of a transform (transform_type.h) states which
// members belong to it. Plain values without threads or errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/schema/location.h"

namespace evergrad::config {

// Divides the examples of one file into training and evaluation data. Example n (from 0) belongs to
// the evaluation data if n % modulo == equals, otherwise to the training data.
struct SplitSpec {
  std::uint64_t modulo = 0;  // 0 for no split
  std::uint64_t equals = 0;
  bool taken = false;  // whether the source is the evaluation data of the split
  // Returns whether the source of this split contains example n of the file.
  bool Takes(std::uint64_t n) const { return modulo == 0 || (n % modulo == equals) == taken; }
  friend bool operator==(const SplitSpec&, const SplitSpec&) = default;
};

struct SourceSpec {
  std::string format = "idx";  // the name of a DataFormat
  // idx
  std::string images, labels;  // absolute paths after resolution
  // Formats that read one file per source
  std::string path;  // absolute after resolution
  bool header = true;
  std::string separator = ",";
  bool quoting = true;  // whether values may be quoted as in RFC 4180; if not, a quote is text
  std::vector<std::string> missing{""};  // texts that mark a missing value
  SplitSpec split;
  // synthetic: examples skip … skip + examples - 1 of the endless sequence of (seed, fields)
  std::uint64_t examples = 0, seed = 0, skip = 0;
  Location where;
  friend bool operator==(const SourceSpec&, const SourceSpec&) = default;
};

// One step between a value of the file and a value that the model reads. The comment beside a
// member names the transforms that use the member.
struct Transform {
  std::string type;                                     // the name of a TransformType
  double value = 1.0;                                   // scale, offset
  std::vector<double> bounds;                           // bucketize: the bounds, in rising order
  std::uint64_t buckets = 0;                            // hash
  std::uint64_t min_count = 1;                          // vocabulary
  std::vector<std::pair<std::string, double>> entries;  // map, in the order of the job file
  friend bool operator==(const Transform&, const Transform&) = default;
};

// The largest number of ids of a field with distribution zipf. The limit bounds the table that a
// worker keeps for the ids of such a field.
inline constexpr std::uint64_t kZipfIdsMax = 1u << 24;

struct FieldSpec {
  std::string name;
  // Formats with typed columns
  std::vector<std::string> columns;  // numbers from 0, or names
  bool list = false;                 // if true, the shape is [number of columns] instead of []
  std::string type;  // typed columns: int | float | string; synthetic: ids | float | label
  std::optional<std::string> default_text;  // the text that replaces a missing value
  std::uint64_t size = 0;  // the shape is [size]; 0 means [], or [columns] for a list
  // synthetic
  std::vector<std::uint64_t> shape;      // float; replaces `size` if it is not empty
  std::uint64_t classes = 2;             // label
  std::uint64_t ids = 0;                 // element j is drawn from [j * ids, (j + 1) * ids)
  std::string distribution = "uniform";  // uniform | zipf
  double exponent = 1.05;                // zipf
  std::vector<Transform> transforms;
  friend bool operator==(const FieldSpec&, const FieldSpec&) = default;
};

// All sources of a job have the same format.
struct DataSpec {
  std::optional<SourceSpec> train, eval;  // a `split` sets eval, too
  std::vector<FieldSpec> fields;
  std::uint32_t batch_size = 128;
  bool shuffle = true;
  std::uint64_t shuffle_seed = 0;
  friend bool operator==(const DataSpec&, const DataSpec&) = default;
};

}  // namespace evergrad::config
