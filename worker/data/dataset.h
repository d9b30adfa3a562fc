// Random access to the examples of one source. Batches in plan order, read ahead: batch_reader.h.
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

namespace evergrad::worker {

// One named value of every example, with transforms applied.
struct Field {
  std::string name;
  tensor::DType dtype = tensor::DType::kFloat32;  // kFloat32 or kInt64
  tensor::Shape shape;  // of one example: (28, 28, 1), or () for one number
  std::uint64_t example_bytes() const { return shape.elements() * tensor::DTypeBytes(dtype); }
};

inline std::span<const std::int64_t> Int64s(const tensor::AlignedBuffer& buffer) {
  return {reinterpret_cast<const std::int64_t*>(buffer.data()),
          buffer.size() / sizeof(std::int64_t)};
}

// What a field's `vocabulary` transform has made of the training data: words[i] has id i + 1.
struct FieldVocabulary {
  std::string field;
  std::vector<std::string> words;
};

// Immutable, so thread-safe once open.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::uint64_t examples() const = 0;
  virtual const std::vector<Field>& fields() const = 0;
  // Copies examples `indices`: to[f] is [n, …] of field f, row-major, aligned for its dtype.
  // InvalidArgument: an index that is not in the source, spans of another size.
  virtual absl::Status Read(const std::vector<std::uint64_t>& indices,
                            const std::vector<std::span<std::byte>>& to) const = 0;
  virtual std::uint64_t bytes_held() const = 0;  // in memory
  // What the contents are (fingerprint.h), one line a file, and what was made of them where the
  // plan does not say it elsewhere.
  virtual std::string Fingerprint() const = 0;
  // What its user should look at although it can be read: sentences that name the file.
  virtual std::vector<std::string> Warnings() const { return {}; }
  // Of training data; those that were built of it. Copies.
  virtual std::vector<FieldVocabulary> Vocabularies() const { return {}; }

  std::optional<std::size_t> FindField(const std::string& name) const;
};

// For Read: InvalidArgument when `to` does not have the sizes of `n` examples.
absl::Status CheckBatchBuffers(const Dataset& data, std::size_t n,
                               const std::vector<std::span<std::byte>>& to);

inline constexpr std::uint64_t kDataBytesMax = 8ull << 30;
struct DataOptions {
  std::uint64_t bytes_max = kDataBytesMax;  // of one source in memory
  fs::Roots roots = {};                     // where its files may lie
};

// Opens a source of any format (openers.h). `train` is the training data of the same job if this is
// other data; its vocabularies are used. UserError: no format has the source's name.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const config::SourceSpec& source,
                                                     const std::vector<config::FieldSpec>& fields,
                                                     const Dataset* train,
                                                     const DataOptions& options = {});
// Whether data that is read beside the training data needs it (a vocabulary is built of it).
bool NeedsTrain(const std::vector<config::FieldSpec>& fields);

struct ReadyBatch {
  std::uint32_t update = 0;
  std::int64_t size = 0;
  std::vector<std::uint64_t> examples;        // indices, in batch order
  std::vector<tensor::AlignedBuffer> fields;  // in the data set's order
};

}  // namespace evergrad::worker
