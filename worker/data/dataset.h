// Random access to the examples of one source. BatchReader reads batches ahead in plan order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/data_formats/data_spec.h"
#include "common/fs/roots.h"
#include "common/tensor/tensor.h"
#include "worker/data/object_cache.h"

namespace evergrad::worker {

// One named value of every example, with its transforms applied.
struct Field {
  std::string name;
  tensor::DType dtype = tensor::DType::kFloat32;  // kFloat32 or kInt64
  tensor::Shape shape;  // shape of one example: (28, 28, 1), or () for one number
  std::uint64_t example_bytes() const { return shape.elements() * tensor::DTypeBytes(dtype); }
};

inline std::span<const std::int64_t> Int64s(const tensor::AlignedBuffer& buffer) {
  return {reinterpret_cast<const std::int64_t*>(buffer.data()),
          buffer.size() / sizeof(std::int64_t)};
}

// The words that a field's `vocabulary` transform found in the training data. words[i] has id i +
// 1.
struct FieldVocabulary {
  std::string field;
  std::vector<std::string> words;
};

// A data set does not change after it was opened, and is therefore thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::uint64_t examples() const = 0;
  virtual const std::vector<Field>& fields() const = 0;
  // Copies the examples `indices`. to[f] receives [n, …] values of field f, row-major, and is
  // aligned for the dtype of the field. Returns InvalidArgument for an index outside of the source,
  // or for spans of another size.
  virtual absl::Status Read(const std::vector<std::uint64_t>& indices,
                            const std::vector<std::span<std::byte>>& to) const = 0;
  virtual std::uint64_t bytes_held() const = 0;  // memory in use
  // Returns a text that identifies the contents (fingerprint.h). The text has one line per file,
  // and the settings that the plan does not contain.
  virtual std::string Fingerprint() const = 0;
  // Returns warnings about a readable source, as sentences for the user that name the file.
  virtual std::vector<std::string> Warnings() const { return {}; }
  // Returns copies of the vocabularies built from the training data.
  virtual std::vector<FieldVocabulary> Vocabularies() const { return {}; }

  std::optional<std::size_t> FindField(const std::string& name) const;
};

// Returns InvalidArgument if `to`, an argument of Read, does not have the sizes of `n` examples.
absl::Status CheckBatchBuffers(const Dataset& data, std::size_t n,
                               const std::vector<std::span<std::byte>>& to);

inline constexpr std::uint64_t kDataBytesMax = 8ull << 30;
struct DataOptions {
  std::uint64_t bytes_max = kDataBytesMax;  // memory limit of one data source
  fs::Roots roots = {};                     // folders that may hold its files
  // Holds copies of the files that lie in an object store. If null, such files are refused.
  ObjectCache* cache = nullptr;
};

// Opens a source of any format (openers.h). `train` is null for the training data. For other data,
// `train` is the training data of the same job, and its vocabularies are used. Returns UserError
// for an unknown format.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const config::SourceSpec& source,
                                                     const std::vector<config::FieldSpec>& fields,
                                                     const Dataset* train,
                                                     const DataOptions& options = {});
// Returns whether a field has a vocabulary. Other data of the job then needs the training data.
bool NeedsTrain(const std::vector<config::FieldSpec>& fields);

struct ReadyBatch {
  std::uint32_t update = 0;
  std::int64_t size = 0;
  std::vector<std::uint64_t> examples;        // indices, in batch order
  std::vector<tensor::AlignedBuffer> fields;  // in the data set's order
};

}  // namespace evergrad::worker
