// Random access to the examples of one source. Batches in plan order, read ahead: batch_reader.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/tensor/tensor.h"

namespace evergrad::worker {

// Immutable, so thread-safe once open.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::uint64_t examples() const = 0;
  virtual tensor::Shape example_shape() const = 0;       // (28, 28, 1)
  virtual std::uint64_t label_classes_seen() const = 0;  // highest label + 1
  // Copies examples `indices` with transforms applied; images is [n, …], labels is [n]. InvalidArgument: an index that is not
  // in the source, spans of another size.
  virtual absl::Status Read(const std::vector<std::uint64_t>& indices, std::span<float> images, std::span<float> labels) const = 0;
  // What the contents are (fingerprint.h), one line a file.
  virtual std::string Fingerprint() const = 0;
};

inline constexpr std::uint64_t kDataBytesMax = 8ull << 30;

// Opens `source` (gz or plain IDX, unsigned bytes) and reads it whole into memory. User errors name file, offset (of the
// uncompressed bytes) and what was expected: wrong magic, short or overlong file, damaged gzip, counts that differ. A header
// that asks for more than `bytes_max`, or for more than the file can hold, is refused before anything is allocated.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const config::IdxSource& source, const std::vector<config::FieldSpec>& fields,
                                                 std::uint64_t bytes_max = kDataBytesMax);

struct ReadyBatch {
  std::uint32_t update = 0;
  std::int64_t size = 0;
  std::vector<std::uint64_t> examples;  // indices, in batch order
  tensor::AlignedBuffer images, labels;
};

}  // namespace evergrad::worker
