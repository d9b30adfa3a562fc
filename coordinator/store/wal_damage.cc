#include "coordinator/store/wal_damage.h"

#include <array>
#include <fstream>
#include <vector>

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kHeaderBytes = 32, kFrameHeaderBytes = 24, kPageBytesMax = 65536;
// Magic numbers of the header. The number gives the byte order of the words that are added up for a
// checksum.
constexpr std::uint32_t kMagicLittle = 0x377f0682, kMagicBig = 0x377f0683;

using Sum = std::array<std::uint32_t, 2>;

std::uint32_t Word(const unsigned char* at, bool big) {
  const auto byte = [&](int i) { return static_cast<std::uint32_t>(at[i]); };
  return big ? byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3)
             : byte(3) << 24 | byte(2) << 16 | byte(1) << 8 | byte(0);
}

Sum Add(Sum sum, const unsigned char* bytes, std::size_t count, bool big) {
  for (std::size_t i = 0; i < count; i += 8) {
    sum[0] += Word(bytes + i, big) + sum[1];
    sum[1] += Word(bytes + i + 4, big) + sum[0];
  }
  return sum;
}

// Reads a pair of words in a header, which are always big-endian.
Sum PairAt(const unsigned char* at) { return {Word(at, true), Word(at + 4, true)}; }

}  // namespace

std::optional<std::uint64_t> DamagedWalAt(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<unsigned char, kHeaderBytes> header{};
  if (!file.read(reinterpret_cast<char*>(header.data()), kHeaderBytes)) return std::nullopt;
  const std::uint32_t magic = Word(header.data(), true);
  const bool big = magic == kMagicBig;
  const bool header_whole = (big || magic == kMagicLittle) &&
                            Add({0, 0}, header.data(), 24, big) == PairAt(header.data() + 24);
  std::size_t page = Word(header.data() + 8, true);
  if (!header_whole) page = 4096;  // page size of all journals
  if (page < 512 || page > kPageBytesMax || page % 8 != 0) return std::nullopt;

  std::vector<unsigned char> frame(kFrameHeaderBytes + page);
  std::optional<std::uint64_t> wrong;  // offset of the first wrong frame
  if (!header_whole) wrong = 0;
  Sum before = PairAt(header.data() + 24), salts = PairAt(header.data() + 16);
  // Commits after `wrong`, in frames whose checksums continue from the previous frame.
  int commits = 0;
  for (std::uint64_t at = kHeaderBytes;
       file.read(reinterpret_cast<char*>(frame.data()), static_cast<std::streamsize>(frame.size()));
       at += frame.size()) {
    const Sum own_salts = PairAt(frame.data() + 8), stored = PairAt(frame.data() + 16);
    const bool follows =
        own_salts == salts && Add(Add(before, frame.data(), 8, big),
                                  frame.data() + kFrameHeaderBytes, page, big) == stored;
    if (!follows && !wrong) wrong = at;
    if (!follows) commits = 0;
    if (follows && wrong && Word(frame.data() + 4, true) != 0 && ++commits == 2) return wrong;
    before = stored;
    // The salts of the header are not known. All frames of one life of the file have the same
    // salts.
    if (!header_whole) salts = own_salts;
  }
  return std::nullopt;
}

}  // namespace evergrad::coordinator
