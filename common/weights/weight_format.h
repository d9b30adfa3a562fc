// Makes the bytes that surround the values in the formats .npz (a zip file of uncompressed .npy
// entries) and .safetensors. Pure. weight_stream and weight_image use these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/weights/weight_stream.h"

namespace evergrad::weights {

std::string NpyHeader(const StreamedTensor& tensor);
// Return the local header of a zip entry with `bytes` and this checksum, and its directory entry
// with its `offset`. The directory is at the end of the file.
std::string LocalHeader(const std::string& name, std::uint32_t crc, std::uint64_t bytes);
std::string DirectoryEntry(const std::string& name, std::uint32_t crc, std::uint64_t bytes,
                           std::uint64_t offset);
std::string DirectoryEnd(std::uint64_t entries, std::uint64_t offset, std::uint64_t bytes);
// Returns zlib's CRC of these bytes. `crc` is the CRC of the preceding bytes.
std::uint32_t Crc(std::uint32_t crc, const void* bytes, std::size_t count);

// Returns the length and the header of a safetensors file. Sets `begins` to the offset of each
// tensor's values.
std::string SafetensorsHead(const std::vector<StreamedTensor>& tensors,
                            std::vector<std::uint64_t>* begins);

}  // namespace evergrad::weights
