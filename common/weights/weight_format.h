// The bytes around the values: of .npz (a stored zip of .npy entries) and of .safetensors. Pure;
// for weight_stream and weight_image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/weights/weight_stream.h"

namespace evergrad::weights {

std::string NpyHeader(const StreamedTensor& tensor);
// Of a zip entry that holds `bytes` with this checksum; the directory names each one's `offset` and
// stands at the end.
std::string LocalHeader(const std::string& name, std::uint32_t crc, std::uint64_t bytes);
std::string DirectoryEntry(const std::string& name, std::uint32_t crc, std::uint64_t bytes,
                           std::uint64_t offset);
std::string DirectoryEnd(std::uint64_t entries, std::uint64_t offset, std::uint64_t bytes);
// zlib's, of what came before and these bytes.
std::uint32_t Crc(std::uint32_t crc, const void* bytes, std::size_t count);

// The length and the header of a safetensors file; `begins`: where in the file each tensor's values
// begin.
std::string SafetensorsHead(const std::vector<StreamedTensor>& tensors,
                            std::vector<std::uint64_t>* begins);

}  // namespace evergrad::weights
