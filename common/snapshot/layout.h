// The parts of the files that have a fixed size, byte for byte (FORMAT.md). Private to this room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/snapshot/checksum.h"

namespace evergrad::snapshot {

inline constexpr std::size_t kMagicBytes = 8;
inline constexpr char kShardMagic[] = "EGSHARD\n";
inline constexpr char kTrailerMagic[] = "EGSHEND\n";
inline constexpr char kManifestMagic[] = "EGMANIF\n";
inline constexpr std::size_t kPreambleBytes = 64, kTrailerBytes = 64, kBlockHeaderBytes = 32,
                             kAlignment = 32;
inline constexpr std::uint32_t kBlockMagic = 0x4b424745;  // "EGBK"

// Stores `value` in little-endian order, whatever the byte order of the machine is.
template <class T>
void Store(std::span<std::byte> out, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out[at + i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
}
template <class T>
T Load(std::span<const std::byte> in, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(std::to_integer<T>(in[at + i]) << (8 * i));
  return value;
}
// Writes the CRC32C of the other bytes at the end of `part`. Every part ends with a CRC32C.
inline void Seal(std::span<std::byte> part) {
  Store(part, part.size() - 4, Crc32c(part.first(part.size() - 4)));
}
inline bool IsSealed(std::span<const std::byte> part) {
  return Load<std::uint32_t>(part, part.size() - 4) == Crc32c(part.first(part.size() - 4));
}
inline bool HasMagic(std::span<const std::byte> part, const char* magic) {
  return std::memcmp(part.data(), magic, kMagicBytes) == 0;
}
inline bool AllZero(std::span<const std::byte> part) {
  for (const std::byte b : part)
    if (b != std::byte{0}) return false;
  return true;
}

}  // namespace evergrad::snapshot
