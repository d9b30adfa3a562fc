// The files of an export: the final weights, and the vocabularies built from the training data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/snapshot/checksum.h"
#include "common/tensor/tensor.h"
#include "common/weights/weight_files.h"
#include "evergrad/v1/session.pb.h"
#include "worker/data/dataset.h"

namespace evergrad::worker {

// A file that can be read in parts without being on a disk.
struct ExportFile {
  std::string name;  // in the runs folder
  std::uint64_t bytes = 0;
  std::function<void(std::uint64_t offset, std::span<std::byte> to)> read;
};

// Returns weights.npz, weights.safetensors (common/weights), and, if a field has a vocabulary,
// model/vocabularies.json. A model without variables has only the vocabularies. The values of the
// tensors must outlive the result.
absl::StatusOr<std::vector<ExportFile>> MakeExport(
    const std::vector<weights::NamedTensor>& tensors,
    const std::vector<FieldVocabulary>& vocabularies);

// Returns {"field": ["first word", "second word", ...]}; word i has id i + 1. Bytes that are not
// UTF-8 are written as Python's surrogateescape does: \udc80.
std::string VocabulariesJson(const std::vector<FieldVocabulary>& vocabularies);

// Returns whether `folder` is the coordinator's own folder, that is, whether it has the mark of the
// order and this process may write there.
bool SeesRunsFolder(const std::string& folder, const v1::ExportOrder& order);

// Writes the files into `folder`. Each file is first written under a temporary name in the same
// folder, then synced and renamed. Errors name the path.
absl::StatusOr<std::vector<v1::RunFileInfo>> WriteExport(const std::string& folder,
                                                         const std::vector<ExportFile>& files);

// Reads the next part of a file, and adds it to the digest of the file. The caller reads parts in
// order; offset 0 starts the file again. Fills data and crc32c, and sha256 for the last part.
class ExportReader {
 public:
  void Read(const ExportFile& file, std::uint64_t offset, std::size_t bytes, bool last,
            v1::RunFileChunk* chunk);

 private:
  std::unique_ptr<snapshot::Sha256> hash_;
};

}  // namespace evergrad::worker
