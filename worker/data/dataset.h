// Random access to the examples of one source, and batches in plan order, read ahead on a thread of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "common/tensor/tensor.h"

namespace evergrad::worker {

// Thread-safe once open.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::uint64_t examples() const = 0;
  virtual tensor::Shape example_shape() const = 0;     // (28, 28, 1)
  virtual std::uint64_t label_classes_seen() const = 0; // highest label + 1
  // Copies examples `indices` with transforms applied; images is [n, …], labels is [n].
  virtual absl::Status Read(const std::vector<std::uint64_t>& indices, std::span<float> images, std::span<float> labels) const = 0;
  // Files: size, mtime, content hash of the first and last MiB; one line a file.
  virtual std::string Fingerprint() const = 0;
};

// Opens `source` (gz or plain IDX). User errors name file, offset and what was expected: wrong magic, short file, counts that differ.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const config::IdxSource& source, const std::vector<config::FieldSpec>& fields);

struct ReadyBatch {
  std::uint32_t update = 0;
  std::int64_t size = 0;
  tensor::AlignedBuffer images, labels;
};

}  // namespace evergrad::worker
