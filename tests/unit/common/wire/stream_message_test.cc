#include "common/wire/stream_message.h"

#include <catch2/catch.hpp>

#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "tests/unit/common/wire/golden_fixture.h"

namespace evergrad::wire {
namespace {

using Bytes = std::array<std::byte, kStreamHeaderBytes>;

StreamHeader Piece() {
  return {.kind = MessageKind::kRequest,
          .request_id = 0x0102030405060708,
          .frame_bytes = 1u << 20,
          .offset = 4096,
          .bytes = 512,
          .response_bytes_max = 77};
}

// Returns the bytes of a header in which the `width` bytes at position `at` are replaced by
// `value`.
Bytes Patched(std::size_t at, std::size_t width, std::uint64_t value) {
  Bytes bytes = EncodeStreamHeader(Piece());
  for (std::size_t i = 0; i < width; ++i) bytes[at + i] = std::byte(value >> (8 * i));
  return bytes;
}

Bytes PieceInLane(MessageKind kind, std::uint64_t bytes) {
  StreamHeader header = Piece();
  header.kind = kind;
  header.flags = kInLane;
  header.frame_bytes = 8u << 20;
  header.bytes = bytes;
  return EncodeStreamHeader(header);
}

TEST_CASE("a stream header is the same after encoding and decoding") {
  for (int kind = 1; kind <= 11; ++kind) {
    StreamHeader header{.kind = static_cast<MessageKind>(kind),
                        .frame_bytes = 1u << 30,
                        .response_bytes_max = ~0ull};
    if (kind != 1 && kind < 8) header.request_id = ~0ull;
    const auto read = DecodeStreamHeader(EncodeStreamHeader(header), kStreamHeaderBytes);
    INFO(MessageKindName(header.kind));
    REQUIRE(read.ok());
    CHECK(*read == header);
  }
  const auto piece = DecodeStreamHeader(EncodeStreamHeader(Piece()), kStreamHeaderBytes + 512);
  REQUIRE(piece.ok());
  CHECK(*piece == Piece());
  const auto in_lane =
      DecodeStreamHeader(PieceInLane(MessageKind::kAnswer, 1u << 20), kStreamHeaderBytes);
  REQUIRE(in_lane.ok());
  CHECK(in_lane->bytes == 1u << 20);
  CHECK(in_lane->bytes_behind() == 0);
  // The buffer may also contain the messages that follow.
  CHECK(DecodeStreamHeader(EncodeStreamHeader(Piece()), kStreamHeaderBytes + 600)->bytes_behind() ==
        512);
}

TEST_CASE("the bytes of a stream header equal the golden bytes") {
  CHECK(Hex(EncodeStreamHeader(Piece())) ==
        ReadText(test::SourceDir() + "/tests/golden/wire/request_message.3.hex"));
  // Both older versions are refused because of their numbers. Version 1 had no lane and sent one
  // message at a time. Version 2 required the parts of a frame in the order of the sections.
  for (const int version : {1, 2}) {
    Bytes old = EncodeStreamHeader(Piece());
    old[4] = std::byte(version);
    CHECK(Hex(old) == ReadText(test::SourceDir() + "/tests/golden/wire/request_message" +
                               (version == 1 ? "" : ".2") + ".hex"));
    CHECK(DecodeStreamHeader(old, kStreamHeaderBytes + 512).status().message().find("version") !=
          std::string::npos);
  }
}

LaneOffer Offer() {
  LaneOffer offer;
  for (std::size_t i = 0; i < 16; ++i) {
    offer.boot_id[i] = std::byte(i);
    offer.nonce[i] = std::byte(0xf0 + i);
  }
  offer.pid_namespace = 0x1112131415161718;
  offer.pid = 0x2122;
  offer.fd = 0x31;
  offer.ring_bytes = 2u << 20;
  return offer;
}

TEST_CASE("a lane offer is the same after encoding and decoding, and has the golden bytes") {
  CHECK(DecodeLaneOffer(EncodeLaneOffer(Offer())) == Offer());
  CHECK(Hex(EncodeLaneOffer(Offer())) ==
        ReadText(test::SourceDir() + "/tests/golden/wire/lane_offer.2.hex"));
}

TEST_CASE("each malformed field of a stream header is refused and named") {
  struct Row {
    Bytes bytes;
    std::uint64_t message_bytes;
    const char* names;
  };
  const std::uint64_t whole = kStreamHeaderBytes + 512;
  const Row rows[] = {
      {Patched(0, 4, 0xdeadbeef), whole, "magic"},
      {Patched(4, 2, 1), whole, "version"},
      {Patched(6, 1, 0), whole, "kind"},
      {Patched(6, 1, 12), whole, "kind"},
      {Patched(7, 1, 2), whole, "flags"},
      {Patched(7, 1, 0x81), whole, "flags"},
      {PieceInLane(MessageKind::kError, 512), kStreamHeaderBytes, "flags"},
      {PieceInLane(MessageKind::kRequest, 0), kStreamHeaderBytes, "bytes in the lane"},
      {PieceInLane(MessageKind::kAnswer, 2u << 20), kStreamHeaderBytes, "above the limit"},
      {Patched(8, 8, 0), whole, "request id"},
      {Patched(24, 8, 1u << 20), whole, "end of the piece"},
      {Patched(24, 8, ~0ull), whole, "end of the piece"},
      {Patched(16, 8, 0), whole, "end of the piece"},
      {Patched(32, 8, 513), whole, "bytes at 32"},
      {Patched(32, 8, ~0ull), whole, "bytes at 32"},
      {Patched(32, 8, 2u << 20), kStreamHeaderBytes + (2u << 20), "above the limit"},
      {Patched(48, 1, 1), whole, "reserved byte at 48"},
      {Patched(63, 1, 1), whole, "reserved byte at 63"},
      {Patched(6, 1, static_cast<std::uint64_t>(MessageKind::kAnnounce)), whole,
       "payload of ANNOUNCE"},
      {Patched(6, 1, static_cast<std::uint64_t>(MessageKind::kPing)), whole, "payload of PING"},
      {Patched(0, 0, 0), 63, "bytes at 32"},
  };
  for (const Row& row : rows) {
    const auto read = DecodeStreamHeader(row.bytes, row.message_bytes);
    INFO(row.names);
    REQUIRE_FALSE(read.ok());
    CHECK(read.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(read.status().message()).find(row.names) != std::string::npos);
  }
}

TEST_CASE("random headers are refused or decode to valid values") {
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int i = 0; i < 200000; ++i) {
    Bytes bytes = EncodeStreamHeader(Piece());
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int c = 0; c < changes; ++c) bytes[random() % bytes.size()] = std::byte(random());
    const auto read = DecodeStreamHeader(bytes, kStreamHeaderBytes + 512);
    if (!read.ok()) continue;
    ++accepted;
    REQUIRE(EncodeStreamHeader(*read) == bytes);
    REQUIRE(read->offset + read->bytes <= read->frame_bytes);
  }
  CHECK(accepted > 0);
}

}  // namespace
}  // namespace evergrad::wire
