// Corrects the checksums of a changed snapshot file (common/snapshot/FORMAT.md), so that a fuzzer
// can test the code behind the check of checksums. If the bytes do not have the structure of such a
// file, some or all of them stay unchanged.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "common/snapshot/checksum.h"
#include "common/snapshot/layout.h"
#include "common/snapshot/shard_file.h"

namespace evergrad::fuzz {

inline std::span<std::byte> Writable(std::string& file) {
  return {reinterpret_cast<std::byte*>(file.data()), file.size()};
}
inline void PutHash(std::span<const std::byte> of, std::span<std::byte> to) {
  snapshot::Sha256 hash;
  hash.Update(of);
  const snapshot::Sha256Digest digest = hash.Value();
  std::copy(digest.begin(), digest.end(), to.begin());
}

inline void SealManifest(std::string& file) {
  using namespace snapshot;
  const std::span<std::byte> all = Writable(file);
  if (all.size() < kPreambleBytes) return;
  Store<std::uint64_t>(all, 12, all.size() - kPreambleBytes);
  PutHash(all.subspan(kPreambleBytes), all.subspan(20, 32));
  Seal(all.first(kPreambleBytes));
}

inline void SealShardFile(std::string& file) {
  using namespace snapshot;
  const std::span<std::byte> all = Writable(file);
  if (all.size() < kPreambleBytes + kTrailerBytes) return;
  const auto aligned = [](std::uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  const std::uint64_t end = all.size() - kTrailerBytes;
  const std::uint64_t header = Load<std::uint32_t>(all, 16);
  if (header <= end - kPreambleBytes)
    Store<std::uint32_t>(all, 20, Crc32c(all.subspan(kPreambleBytes, header)));
  Seal(all.first(kPreambleBytes));
  const std::span<std::byte> trailer = all.subspan(end);
  const std::uint64_t footer = Load<std::uint32_t>(trailer, 8),
                      footer_at = Load<std::uint64_t>(trailer, 16);
  const bool footer_inside = footer_at <= end && footer <= end - footer_at;
  if (footer_inside) Store<std::uint32_t>(trailer, 12, Crc32c(all.subspan(footer_at, footer)));
  const std::uint64_t blocks_end = footer_inside ? footer_at : end;
  for (std::uint64_t at = kPreambleBytes + aligned(std::min(header, end));
       at + kBlockHeaderBytes <= blocks_end;) {
    const std::span<std::byte> head = all.subspan(at, kBlockHeaderBytes);
    const std::uint64_t payload = Load<std::uint32_t>(head, 12);
    if (payload > blocks_end - at - kBlockHeaderBytes) break;
    Store<std::uint32_t>(head, 24, Crc32c(all.subspan(at + kBlockHeaderBytes, payload)));
    Seal(head);
    at += kBlockHeaderBytes + aligned(payload);
  }
  PutHash(all.first(end), trailer.subspan(28, 32));
  Seal(trailer);
}

}  // namespace evergrad::fuzz
