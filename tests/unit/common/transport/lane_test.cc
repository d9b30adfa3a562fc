// Tests the lane alone (shared memory that carries payload). Its rings are over any memory, and are
// moved step by step and by two threads. The memory may be offered or written by a hostile peer.
#include "common/transport/lane/lane.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "common/runtime/executor.h"
#include "common/transport/frames/message_reader.h"
#include "common/transport/frames/reassembly.h"
#include "common/transport/lane/lane_memory.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/transport/transport_fixture.h"

namespace evergrad::transport {
namespace {

using namespace test;
using evergrad::test::TempFolder;

constexpr std::uint64_t kRing = kLaneRingUnit;

std::shared_ptr<std::byte> Memory(std::uint64_t ring_bytes) {
  auto buffer = std::make_shared<tensor::AlignedBuffer>(
      tensor::AlignedBuffer::Zeroed(LaneMemoryBytes(ring_bytes)));
  return {buffer, buffer->data()};
}

// Both ends of a lane, over the same piece of memory.
struct Ends {
  std::shared_ptr<std::byte> memory = Memory(kRing);
  Lane client{memory, kRing, Lane::Side::kClient}, server{memory, kRing, Lane::Side::kServer};

  void Set(std::size_t at, std::uint64_t value) {
    std::memcpy(memory.get() + at, &value, sizeof value);
  }
};

std::string Flat(MessageView view) {
  std::string text;
  for (const auto& part : view)
    text.append(reinterpret_cast<const char*>(part.data()), part.size());
  return text;
}
std::string Flat(const Frame& frame) {
  std::string text;
  for (const auto& piece : frame.pieces)
    text.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
  return text;
}

TEST_CASE("pieces of any size cross both rings in order, also around their ends") {
  Ends ends;
  std::mt19937_64 random(11);
  struct Way {
    Lane *from, *to;
    std::deque<std::string> under_way = {};
  } ways[] = {{&ends.client, &ends.server}, {&ends.server, &ends.client}};
  unsigned full = 0, told = 0;
  bool waits[2] = {false, false};
  for (unsigned step = 0; step < 20000; ++step) {
    const std::size_t at = random() % 2;
    Way& way = ways[at];
    if (random() % 2 == 0) {
      const Frame frame = Patterned(1 + random() % way.from->piece_bytes_max(), step);
      const auto room = way.from->HasRoom(frame.size());
      REQUIRE(room.ok());
      if (*room) {
        way.from->Write(frame.pieces);
        way.under_way.push_back(Flat(frame));
        waits[at] = false;
      } else {
        ++full;
        waits[at] = true;
      }
    } else if (!way.under_way.empty()) {
      const std::uint64_t bytes = way.under_way.front().size();
      const auto read = way.to->Read(bytes);
      REQUIRE(read.ok());
      REQUIRE(Flat(*read) == way.under_way.front());
      way.under_way.pop_front();
      const bool tell = way.to->Release(bytes);
      REQUIRE((!tell || waits[at]));  // Only a side that waits may get a message.
      if (tell) {
        ++told;
        waits[at] = false;
        const auto room = way.from->HasRoom(way.from->piece_bytes_max());
        REQUIRE(room.ok());
        REQUIRE(*room);
      }
      // If a ring is empty, its sender must not be waiting for space.
      REQUIRE((!way.under_way.empty() || !waits[at]));
    }
  }
  CHECK(full > 1000);
  CHECK(told > 50);
}

TEST_CASE(
    "a reader's impossible position is detected, and no number in the memory leads outside of the "
    "ring") {
  Ends ends;
  const Frame piece = Patterned(ends.client.piece_bytes_max(), 1);
  REQUIRE(*ends.client.HasRoom(piece.size()));
  ends.client.Write(piece.pieces);
  SECTION("a position beyond the written bytes") {
    ends.Set(wire::LaneTakenAt(0), piece.size() + 1);
    CHECK(ends.client.HasRoom(1).status().code() == absl::StatusCode::kInvalidArgument);
    ends.Set(wire::LaneTakenAt(0), ~0ull);
    CHECK_FALSE(ends.client.HasRoom(1).ok());
  }
  SECTION("a position before the former one") {
    ends.Set(wire::LaneTakenAt(0), 64);
    REQUIRE(ends.client.HasRoom(1).ok());
    ends.Set(wire::LaneTakenAt(0), 0);
    CHECK(ends.client.HasRoom(1).status().code() == absl::StatusCode::kInvalidArgument);
  }
  SECTION("each request for a wake-up costs one message for each piece") {
    for (const std::uint64_t wake : {std::uint64_t{1}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
      ends.Set(wire::LaneWakeAt(0), wake);
      REQUIRE(ends.server.Read(64).ok());
      CHECK(ends.server.Release(64) == (wake == 1));
      CHECK_FALSE(ends.server.Release(64));
    }
  }
  SECTION("the claimed content cannot exceed the ring") {
    CHECK(ends.server.Read(kRing).ok());
    CHECK(ends.server.Read(kRing + 1).status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(ends.server.Read(~0ull).status().code() == absl::StatusCode::kInvalidArgument);
    for (int i = 0; i < 1000;
         // A hostile peer says that it has written bytes that it has not written. Reads must stay
         // inside the ring.
         ++i) {
      const auto read = ends.server.Read(kRing - 64);
      REQUIRE(read.ok());
      for (const auto& part : *read) {
        REQUIRE((part.empty() ||
                 (part.data() >= ends.memory.get() &&
                  part.data() + part.size() <= ends.memory.get() + LaneMemoryBytes(kRing))));
      }
      ends.server.Release(kRing - 64);
    }
  }
}

TEST_CASE(
    "small messages use the stream, a full lane waits for RING_SPACE, and messages without a frame "
    "are unaffected") {
  Ends ends;
  LanePort client, server;
  Outbox up(1u << 20), down(1u << 20);
  client.Open(std::make_unique<Lane>(ends.memory, kRing, Lane::Side::kClient));
  server.Open(std::make_unique<Lane>(ends.memory, kRing, Lane::Side::kServer));
  up.AddFrame(wire::MessageKind::kRequest, 1, 0, Patterned(200000, 1));
  up.AddFrame(wire::MessageKind::kRequest, 2, 0, Patterned(kLaneBytesMin - 1, 2));
  const auto small = client.Next(up);
  CHECK(small->header.request_id == 2);
  CHECK_FALSE(small->header.in_lane());
  std::deque<wire::StreamHeader> headers;
  while (auto message = client.Next(up)) {
    CHECK(message->header.in_lane());
    CHECK(message->pieces.size() == 1);
    headers.push_back(message->header);
  }
  REQUIRE(headers.size() == 4);  // Each piece takes a quarter of the ring.
  CHECK_FALSE(up.empty());
  up.AddControl({.kind = wire::MessageKind::kPing});
  CHECK(client.Next(up)->header.kind == wire::MessageKind::kPing);
  CHECK_FALSE(client.Next(up));
  Reassembly frame(200000);
  int rooms = 0;
  while (!frame.complete()) {
    while (!headers.empty()) {
      const auto bytes = wire::EncodeStreamHeader(headers.front());
      const std::span<const std::byte> message(bytes);
      REQUIRE(server
                  .Receive({&message, 1}, down,
                           [&](const wire::StreamHeader& header, MessageView payload) {
                             return frame.Add(header, payload);
                           })
                  .ok());
      headers.pop_front();
      rooms += down.Next().has_value();
    }
    while (auto message = client.Next(up)) headers.push_back(message->header);
    if (!headers.empty() &&
        !headers.back().in_lane()) {  // Too small a piece does not use the lane.
      CHECK(headers.back().offset + headers.back().bytes == 200000);
      break;
    }
  }
  CHECK(rooms >= 1);
  CHECK(client.status().ok());
  ends.Set(wire::LaneTakenAt(0), ~0ull);
  up.AddFrame(wire::MessageKind::kRequest, 3, 0, Patterned(200000, 1));
  CHECK_FALSE(client.Next(up));
  CHECK(client.status().code() == absl::StatusCode::kInvalidArgument);
  client.Close();  // The stream ends. The next one begins without a lane.
  CHECK_FALSE(client.Next(up)->header.in_lane());
  CHECK(client.status().ok());
}

TEST_CASE("two threads transfer a gigabyte through offered memory") {
  const std::uint64_t ring = 4 * kLaneRingUnit;
  auto offered = OfferLane(ring);
  REQUIRE(offered.ok());
  const auto taken = TakeLane(offered->offer, ring);
  REQUIRE(taken.ok());
  // The stream carries the headers in one direction, and RING_SPACE messages in the other.
  const auto sizes = Collect<std::uint64_t>();
  const auto rooms = Collect<bool>();
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr std::uint64_t kTotal = 64u << 20;
#else
  constexpr std::uint64_t kTotal = 1u << 30;
#endif
  std::uint64_t wrong = 0;
  runtime::Thread reader("reader", [&] {
    unsigned seed = 0;
    for (std::uint64_t read = 0; read < kTotal;) {
      const auto bytes = sizes->Next();
      if (!bytes) break;
      const auto view = (*taken)->Read(*bytes);
      std::uint64_t value = 0, at = 0;
      tensor::AlignedBuffer copy(*bytes);
      CopyPayload(*view, copy.data());
      wrong += (*taken)->Release(*bytes) ? (rooms->Put(true), 0u) : 0u;
      for (at = 0; at + 8 <= *bytes; at += 4096) {
        std::memcpy(&value, copy.data() + at, 8);
        wrong += value != (at + seed) * 0x9E3779B97F4A7C15ull;
      }
      ++seed;
      read += *bytes;
    }
  });
  std::mt19937_64 random(4);
  unsigned seed = 0;
  bool stuck = false;
  for (std::uint64_t written = 0; written < kTotal && !stuck; ++seed) {
    const std::uint64_t bytes = std::min<std::uint64_t>(
        8 + random() % (offered->lane->piece_bytes_max() - 8), kTotal - written);
    const Frame frame = Patterned(bytes, seed);
    for (;;) {
      const auto room = offered->lane->HasRoom(bytes);
      if (room.ok() && *room) break;
      stuck = !room.ok() || !rooms->Next();
      if (stuck) break;
    }
    if (stuck) break;
    offered->lane->Write(frame.pieces);
    sizes->Put(bytes);
    written += bytes;
  }
  reader.Join();
  CHECK_FALSE(stuck);
  CHECK(wrong == 0);
}

// ---------------------------------------------------------------- memory

std::size_t OpenFiles() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}
std::size_t MappedLanes() {
  std::ifstream in("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(in, line);)
    count += line.find("evergrad-lane") != std::string::npos;
  return count;
}

TEST_CASE("memory that differs from the offer, or that the peer could remove, is not mapped") {
  const std::size_t files = OpenFiles(), maps = MappedLanes();
  {
    auto offered = OfferLane(kRing);
    REQUIRE(offered.ok());
    REQUIRE(TakeLane(offered->offer, kRing).ok());
    const auto refused = [&](const wire::LaneOffer& offer, std::uint64_t ring_max = kRing) {
      const std::size_t open = OpenFiles(), mapped = MappedLanes();
      const auto status = TakeLane(offer, ring_max).status();
      CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
      CHECK(OpenFiles() == open);
      CHECK(MappedLanes() == mapped);
      return std::string(status.message());
    };
    const auto changed = [&](auto change) {
      wire::LaneOffer offer = offered->offer;
      change(offer);
      return refused(offer);
    };
    using Offer = wire::LaneOffer;
    CHECK(changed([](Offer& o) { o.boot_id[3] ^= std::byte{1}; }) ==
          "the client is on another host");
    CHECK(changed([](Offer& o) { o.boot_id = {}; }) == "the client is on another host");
    CHECK(changed([](Offer& o) { ++o.pid_namespace; }) == "the client is in another pid namespace");
    CHECK(changed([](Offer& o) {
            o.nonce[15] ^= std::byte{1};
          }).find("the memory is not the offered memory") == 0);
    CHECK(changed([](Offer& o) { o.fd = 1u << 20; }).find("cannot find the memory") == 0);
    CHECK(changed([](Offer& o) { o.fd = ~0ull; }).find("invalid process or descriptor") == 0);
    CHECK(changed([](Offer& o) { o.pid = 0x7ffffffe; }).find("cannot find the memory") == 0);
    CHECK(changed([](Offer& o) { o.pid = ~0ull; }).find("invalid process or descriptor") == 0);
    CHECK(changed([](Offer& o) { o.ring_bytes = 0; }).find("ring size is not supported") == 0);
    CHECK(changed([](Offer& o) { o.ring_bytes += 64; }).find("ring size is not supported") == 0);
    CHECK(changed([](Offer& o) { o.ring_bytes = ~0ull; }).find("ring size is not supported") == 0);
    CHECK(changed([](Offer& o) { o.ring_bytes *= 2; }).find("ring size is not supported") == 0);
    CHECK(refused(offered->offer, kRing - 1).find("ring size is not supported") == 0);
    {
      Offer twice = offered->offer;
      twice.ring_bytes *= 2;
      CHECK(refused(twice, 1u << 30).find("the memory has another size") == 0);
    }

    // The peer chooses these files.
    TempFolder folder;
    const auto with_file = [&](int fd) {
      Offer offer = offered->offer;
      offer.fd = static_cast<std::uint64_t>(fd);
      const std::string why = refused(offer);
      close(fd);
      return why;
    };
    const auto bytes = static_cast<off_t>(LaneMemoryBytes(kRing));
    const auto memory = [&](off_t size, int seals) {
      const int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      REQUIRE(ftruncate(fd, size) == 0);
      REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
      return fd;
    };
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    // Everything about this memory is right except its contents.
    CHECK(with_file(memory(bytes, all)).find("the memory is not the offered memory") == 0);
    CHECK(with_file(memory(bytes, 0)).find("the memory is not sealed") == 0);
    CHECK(with_file(memory(bytes, F_SEAL_SHRINK | F_SEAL_SEAL)).find("the memory is not sealed") ==
          0);
    CHECK(with_file(memory(bytes - 1, all)).find("the memory has another size") == 0);
    CHECK(with_file(memory(0, all)).find("the memory has another size") == 0);
    REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
    CHECK(with_file(open((folder / "pipe").c_str(), O_RDWR | O_CLOEXEC))
              .find("the descriptor is not shared memory") == 0);
    CHECK(with_file(open("/dev/null", O_RDWR | O_CLOEXEC))
              .find("the descriptor is not shared memory") == 0);
    CHECK(with_file(open("/", O_RDONLY | O_CLOEXEC)).find("the descriptor is not shared memory") ==
          0);
    const int file = open((folder / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(ftruncate(file, bytes) == 0);
    CHECK(with_file(file).find("the memory is not sealed") == 0);

    // The sealed memory can no longer be made shorter, longer or unsealed.
    const int own = static_cast<int>(offered->offer.fd);
    CHECK(ftruncate(own, 0) != 0);
    CHECK(ftruncate(own, bytes * 2) != 0);
    CHECK(fcntl(own, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  }
  CHECK(OpenFiles() == files);
  CHECK(MappedLanes() == maps);
}

TEST_CASE("the memory of a lane exists as long as one end holds it") {
  const std::size_t files = OpenFiles(), maps = MappedLanes();
  auto offered = OfferLane(kRing);
  REQUIRE(offered.ok());
  bool gone = false;
  auto taken = TakeLane(offered->offer, kRing, [&gone] { gone = true; });
  REQUIRE(taken.ok());
  CHECK(MappedLanes() == maps + 2);
  const wire::LaneOffer offer = offered->offer;
  const Frame piece = Patterned(100, 1);
  REQUIRE(*offered->lane->HasRoom(100));
  offered->lane->Write(piece.pieces);
  offered->open.reset();
  CHECK(OpenFiles() == files);
  CHECK_FALSE(TakeLane(offer, kRing).ok());  // No other process can open it.
  offered->lane.reset();
  CHECK(Flat(*(*taken)->Read(100)) == Flat(piece));
  CHECK_FALSE(gone);
  taken->reset();
  CHECK(gone);
  CHECK(MappedLanes() == maps);
}

}  // namespace
}  // namespace evergrad::transport
