#include "common/wire/data_frame.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>

#include "tests/support/paths.h"
#include "tests/unit/common/wire/golden_fixture.h"

namespace evergrad::wire {
namespace {

tensor::SharedBytes Bytes(const std::string& text) {
  auto owner = std::make_shared<std::string>(text);
  return {owner, {reinterpret_cast<const std::byte*>(owner->data()), owner->size()}};
}

// Joins the pieces in one aligned buffer, as a receiver gets them.
tensor::AlignedBuffer Flat(const std::vector<tensor::SharedBytes>& pieces) {
  std::size_t size = 0;
  for (const auto& piece : pieces) size += piece.bytes.size();
  tensor::AlignedBuffer out(size);
  std::size_t at = 0;
  for (const auto& piece : pieces) {
    if (!piece.bytes.empty()) std::memcpy(out.data() + at, piece.bytes.data(), piece.bytes.size());
    at += piece.bytes.size();
  }
  return out;
}
std::span<const std::byte> View(const tensor::AlignedBuffer& buffer) {
  return {buffer.data(), buffer.size()};
}
std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

v1::RequestHeader TwoPushesOnePull() {
  v1::RequestHeader header;
  header.set_job_uid(0x1122334455667788);
  header.set_client_name("worker/0");
  for (std::uint32_t shard : {3u, 4u, 5u}) {
    auto* push = header.add_pushes();
    push->set_shard(shard);
    push->set_closure(9);
    push->set_update(2);
    push->set_kind(v1::GRADIENT);
    push->set_dtype(v1::DTYPE_FLOAT32);
  }
  header.add_pulls()->set_shard(3);
  header.set_response_bytes_max(1234);
  return header;
}

// Returns a frame with the given header and `tail` zero bytes behind it. The header may be invalid.
std::string Crafted(const v1::RequestHeader& header, std::size_t tail) {
  const std::string body = header.SerializeAsString();
  std::string frame(4, '\0');
  for (int i = 0; i < 4; ++i)
    frame[static_cast<std::size_t>(i)] = static_cast<char>(body.size() >> (8 * i));
  frame += body;
  frame.append(tail, '\0');
  return frame;
}
absl::Status ParseText(const std::string& frame) {
  return ParseRequest({reinterpret_cast<const std::byte*>(frame.data()), frame.size()}).status();
}

TEST_CASE(
    "a request is the same after encoding and decoding, with payloads at 64-byte aligned offsets") {
  for (std::size_t size : {0u, 1u, 63u, 64u, 65u, 4096u, 100000u}) {
    const std::string first(size, 'a'), second, third(17, 'c');
    const auto pieces =
        BuildRequest(TwoPushesOnePull(), {Bytes(first), Bytes(second), Bytes(third)});
    const auto flat = Flat(pieces);
    CHECK(flat.size() <= RequestBytesBound(TwoPushesOnePull(), first.size() + third.size()));
    const auto request = ParseRequest(View(flat));
    REQUIRE(request.ok());
    REQUIRE(request->payloads.size() == 3);
    CHECK(Text(request->payloads[0]) == first);
    CHECK(request->payloads[1].empty());
    CHECK(Text(request->payloads[2]) == third);
    for (const auto& payload : request->payloads) {
      if (!payload.empty()) CHECK(reinterpret_cast<std::uintptr_t>(payload.data()) % 64 == 0);
    }
    CHECK(request->header->client_name() == "worker/0");
    CHECK(request->header->pulls_size() == 1);
  }
}

TEST_CASE("a payload is sent from the memory of its owner, which lives as long as the pieces") {
  auto owner = std::make_shared<std::string>(1000, 'x');
  const std::weak_ptr<std::string> alive = owner;
  const auto* memory = reinterpret_cast<const std::byte*>(owner->data());
  v1::ResponseHeader header;
  header.add_pulls()->set_answer(v1::VALUES);
  auto pieces = BuildResponse(std::move(header), {{std::move(owner), {memory, 1000}}});
  CHECK(pieces.back().bytes.data() == memory);
  CHECK_FALSE(alive.expired());
  pieces.clear();
  CHECK(alive.expired());
}

TEST_CASE("a response with results but no payload has only a header") {
  v1::ResponseHeader header;
  header.add_pushes()->set_answer(v1::APPLIED);
  header.add_pulls()->set_answer(v1::UNCHANGED);
  const auto flat = Flat(BuildResponse(std::move(header), {tensor::SharedBytes{}}));
  CHECK(flat.size() < 64);
  const auto response = ParseResponse(View(flat));
  REQUIRE(response.ok());
  CHECK(response->payloads.size() == 1);
  CHECK(response->header->pulls(0).answer() == v1::UNCHANGED);
}

TEST_CASE(
    "a response from pieces has the bytes of one from whole payloads, and keeps each piece alive") {
  v1::ResponseHeader header;
  for (std::uint32_t shard : {0u, 1u, 2u}) header.add_pulls()->set_shard(shard);
  const auto piece = Bytes("0123456");
  const auto whole = BuildResponse(header, {Bytes("01234560123456xyz"), {}, Bytes("tail")});
  std::vector<tensor::SharedBytes> first = {piece, piece, Bytes(""), Bytes("xyz")},
                                   third = {Bytes("ta"), Bytes("il")};
  const std::vector<std::span<tensor::SharedBytes>> payloads = {first, {}, third};
  auto pieces = BuildResponseOfPieces(&header, payloads, {});
  CHECK(Text(View(Flat(pieces))) == Text(View(Flat(whole))));
  CHECK(pieces[1].bytes.data() == piece.bytes.data());
  CHECK(piece.owner.use_count() == 3);
}

TEST_CASE("adjacent pieces in the memory of one owner are sent as one, in the given order") {
  const auto memory = std::make_shared<std::string>(300, 'm');
  const auto part = [&](std::size_t at, std::size_t n, bool other_owner = false) {
    return tensor::SharedBytes{other_owner ? std::make_shared<std::shared_ptr<std::string>>(memory)
                                           : std::shared_ptr<const void>(memory),
                               {reinterpret_cast<const std::byte*>(memory->data()) + at, n}};
  };
  // The owner of this memory writes the padding after payload a itself.
  std::fill_n(memory->begin() + 10, 54, '\0');
  v1::ResponseHeader header;
  for (std::uint32_t shard = 0; shard < 5; ++shard) header.add_pulls()->set_shard(shard);
  std::vector<tensor::SharedBytes> a = {part(0, 10)}, b = {part(64, 64)},
                                   c = {part(128, 32), part(160, 1)}, d = {part(192, 8, true)},
                                   e = {part(256, 9)};
  const std::vector<std::span<tensor::SharedBytes>> payloads = {e, a, b, c, d};
  const std::vector<std::uint32_t> order = {1, 2, 3, 4, 0};
  const auto pieces = BuildResponseOfPieces(&header, payloads, order);
  // The six pieces are: the header; a, its padding, b and c together; padding; d; padding; e.
  REQUIRE(pieces.size() == 6);
  CHECK(pieces[1].bytes.data() == reinterpret_cast<const std::byte*>(memory->data()));
  CHECK(pieces[1].bytes.size() == 161);
  const auto flat = Flat(pieces);
  const auto response = ParseResponse(View(flat));
  REQUIRE(response.ok());
  CHECK(Text(response->payloads[0]) == std::string(9, 'm'));
  CHECK(Text(response->payloads[1]) == std::string(10, 'm'));
  CHECK(Text(response->payloads[3]) == std::string(33, 'm'));
  CHECK(response->payloads[1].data() < response->payloads[0].data());
}

TEST_CASE("ids are in one piece with the header, and payloads follow") {
  for (const std::size_t count : {1u, 7u, 8u, 1000u}) {
    const std::string payload(100, 'p'), list(count * 8, 'i'), none;
    const auto pieces =
        BuildRequest(TwoPushesOnePull(), {Bytes(payload), Bytes(payload), Bytes(none)},
                     {Bytes(list), Bytes(none), Bytes(none), Bytes(list)});
    REQUIRE(pieces.size() == 4);  // header and ids, payload, padding, payload
    const auto flat = Flat(pieces);
    const auto request = ParseRequest(View(flat));
    REQUIRE(request.ok());
    CHECK(request->push_ids[0].size() == count);
    CHECK(request->push_ids[1].empty());
    CHECK(request->pull_ids[0].size() == count);
    CHECK(Text(std::as_bytes(request->push_ids[0])) == list);
    CHECK(Text(std::as_bytes(request->pull_ids[0])) == list);
    CHECK(Text(request->payloads[1]) == payload);
    for (std::size_t at = request->header->ByteSizeLong() + 4; at < flat.size(); ++at) {
      const char c = static_cast<char>(flat.data()[at]);
      if (c != 'i' && c != 'p') REQUIRE(c == '\0');
    }
  }
}

TEST_CASE("parts of a frame may have any order but must not overlap") {
  auto header = TwoPushesOnePull();
  const auto place = [&](int push, std::uint64_t offset, std::uint64_t bytes) {
    header.mutable_pushes(push)->set_payload_offset(offset);
    header.mutable_pushes(push)->set_payload_bytes(bytes);
  };
  place(0, 512, 65), place(1, 256, 64), place(2, 384, 128);
  CHECK(ParseText(Crafted(header, 1000)).ok());
  place(2, 384, 129);
  const auto status = ParseText(Crafted(header, 1000));
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(status.message())
            .find("overlap the bytes before them: field=pushes[0] offset=512 want>=513") !=
        std::string::npos);
}

TEST_CASE("the bytes of a request equal the golden bytes") {
  const auto flat = Flat(BuildRequest(
      TwoPushesOnePull(), {Bytes("first payload"), Bytes(""), Bytes(std::string(70, 'z'))}));
  CHECK(Hex(View(flat)) == ReadText(test::SourceDir() + "/tests/golden/wire/request_frame.hex"));
}

TEST_CASE("each wrong length or offset of a frame is refused and named") {
  struct Row {
    const char* names;
    std::function<void(v1::RequestHeader*)> spoil;
  };
  const std::uint64_t top = 1ull << 63;
  const Row rows[] = {
      {"not aligned: field=pushes[0]",
       [](auto* h) {
         h->mutable_pushes(0)->set_payload_offset(130);
         h->mutable_pushes(0)->set_payload_bytes(1);
       }},
      {"overlap the bytes before them: field=pushes[0]",
       [](auto* h) {
         h->mutable_pushes(0)->set_payload_offset(0);
         h->mutable_pushes(0)->set_payload_bytes(1);
       }},
      {"exceed the frame: field=pushes[0]",
       [](auto* h) {
         h->mutable_pushes(0)->set_payload_offset(1 << 20);
         h->mutable_pushes(0)->set_payload_bytes(1);
       }},
      {"exceed the frame: field=pushes[0]",
       [](auto* h) {
         h->mutable_pushes(0)->set_payload_offset(256);
         h->mutable_pushes(0)->set_payload_bytes(1 << 20);
       }},
      {"exceed the frame: field=pushes[0]",
       [top](auto* h) {
         h->mutable_pushes(0)->set_payload_offset(top);
         h->mutable_pushes(0)->set_payload_bytes(top);
       }},
      {"exceed the frame: field=pushes[0]",
       [](auto* h) {
         h->mutable_pushes(0)->set_payload_offset(256);
         h->mutable_pushes(0)->set_payload_bytes(~0ull);
       }},
      {"overlap the bytes before them: field=pushes[1]",
       [](auto* h) {
         for (int i : {0, 1}) {
           h->mutable_pushes(i)->set_payload_offset(256);
           h->mutable_pushes(i)->set_payload_bytes(64);
         }
       }},
      {"ids length mismatch: field=pulls.ids[0]",
       [](auto* h) {
         h->mutable_pulls(0)->mutable_ids()->set_count(2);
         h->mutable_pulls(0)->mutable_ids()->set_bytes(8);
       }},
      {"ids length mismatch: field=pushes.ids[0]",
       [](auto* h) { h->mutable_pushes(0)->mutable_ids()->set_count(1ull << 61); }},
      {"exceed the frame: field=pulls.ids[0]",
       [](auto* h) {
         auto* ids = h->mutable_pulls(0)->mutable_ids();
         ids->set_count(1 << 20);
         ids->set_bytes(8 << 20);
         ids->set_offset(256);
       }},
  };
  for (const Row& row : rows) {
    auto header = TwoPushesOnePull();
    row.spoil(&header);
    const auto status = ParseText(Crafted(header, 1000));
    INFO(row.names << " <- " << status.ToString());
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(status.message()).find(row.names) != std::string::npos);
  }
}

TEST_CASE("truncated frames and headers that are no protobuf are refused") {
  CHECK_FALSE(ParseText("").ok());
  CHECK_FALSE(ParseText("abc").ok());
  CHECK_FALSE(ParseText(std::string("\xff\xff\xff\xff", 4)).ok());
  CHECK_FALSE(ParseText(std::string("\x02\0\0\0\xff", 5)).ok());
  CHECK_FALSE(ParseText(std::string("\x03\0\0\0\xff\xff\xff", 7)).ok());
  CHECK(ParseText(std::string("\0\0\0\0", 4)).ok());
}

TEST_CASE("a mutated frame never gives a span outside of the frame") {
  const auto flat = Flat(BuildRequest(
      TwoPushesOnePull(), {Bytes(std::string(300, 'a')), Bytes("b"), Bytes(std::string(70, 'z'))}));
  std::mt19937_64 random(11);
  for (int i = 0; i < 30000; ++i) {
    const std::size_t size = random() % 4 == 0 ? random() % flat.size() : flat.size();
    tensor::AlignedBuffer bytes(size);
    if (size > 0) std::memcpy(bytes.data(), flat.data(), size);
    for (int c = 0; c < 3 && size > 0; ++c)
      bytes.data()[random() % std::min<std::size_t>(size, 256)] = std::byte(random());
    const auto request = ParseRequest(View(bytes));
    if (!request.ok()) continue;
    for (const auto& payload : request->payloads) {
      if (payload.empty()) continue;
      REQUIRE(payload.data() >= bytes.data());
      REQUIRE(payload.data() + payload.size() <= bytes.data() + bytes.size());
    }
  }
}

}  // namespace
}  // namespace evergrad::wire
