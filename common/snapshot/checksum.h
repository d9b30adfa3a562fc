// The two checksums of snapshot files: CRC32C for each block, which locates damage, and SHA-256 for
// the whole file, which identifies its contents.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::snapshot {

// Returns the CRC-32C (Castagnoli, reflected, as in iSCSI). `crc` is the checksum of the preceding
// bytes, or 0 at the start.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);
// Returns the same checksum as Crc32c, computed with a table, for machines without the instruction.
// Tests compare the two functions.
std::uint32_t Crc32cPortable(std::span<const std::byte> bytes, std::uint32_t crc = 0);

using Sha256Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(std::span<const std::byte> bytes);
  Sha256Digest Value() const;  // digest of all bytes so far; more bytes may follow
  std::string Bytes() const;   // the same 32 bytes as a string, for messages

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string Hex(std::span<const std::byte> bytes);
std::span<const std::byte> BytesOf(absl::string_view text);

}  // namespace evergrad::snapshot
