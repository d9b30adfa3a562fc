// Tests the reader of HTTP responses. The bytes of a response come all at once, in pieces,
// malformed, and at random.
#include "common/preemption/http_response.h"

#include <catch2/catch.hpp>

#include <random>

#include "absl/strings/str_cat.h"

namespace evergrad::preemption {
namespace {

using State = ResponseReader::State;

struct Result {
  State state;
  Answer answer;
  std::string reason;
};

// Passes `bytes` to a reader in pieces of `piece` bytes. If `closes`, the connection then ends.
Result Read(absl::string_view bytes, bool closes, std::size_t piece = 1) {
  ResponseReader reader;
  State state = State::kIncomplete;
  for (std::size_t i = 0; i < bytes.size() && state == State::kIncomplete; i += piece)
    state = reader.Add(bytes.substr(i, piece));
  if (closes) state = reader.End();
  return {state, state == State::kComplete ? reader.TakeAnswer() : Answer(), reader.reason()};
}

const std::string kOk = "HTTP/1.1 200 OK\r\n";

TEST_CASE("a body ends after its length, after its last chunk, or with the connection") {
  for (const std::size_t piece : {1, 7, 100000}) {
    INFO(piece);
    Result r = Read(kOk + "Content-Length: 4\r\nETag: 5a\r\n\r\nTRUE and more", false, piece);
    REQUIRE(r.state == State::kComplete);
    CHECK(r.answer.status == 200);
    CHECK(r.answer.body == "TRUE");
    CHECK(r.answer.Header("etag") == "5a");
    CHECK(r.answer.Header("other").empty());

    r = Read(kOk + "Transfer-Encoding: chunked\r\n\r\n3\r\nTRU\r\n1;x=y\r\nE\r\n0\r\n\r\n", false,
             piece);
    REQUIRE(r.state == State::kComplete);
    CHECK(r.answer.body == "TRUE");

    r = Read("HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\nnothing", true, piece);
    REQUIRE(r.state == State::kComplete);
    CHECK(r.answer.status == 404);
    CHECK(r.answer.body == "nothing");
  }
  CHECK(Read(kOk + "Content-Length: 0\r\n\r\n", false).state == State::kComplete);
  CHECK(Read("HTTP/1.1 204 No Content\r\n\r\n", false).state == State::kComplete);
  CHECK(Read("HTTP/1.1 401\r\nContent-Length: 0\r\n\r\n", false).answer.status == 401);
}

TEST_CASE("a response that ends too early is refused") {
  for (const std::string& bytes : {std::string(), std::string("HTTP/1.1 2"), kOk + "Content-Le",
                                   kOk + "Content-Length: 5\r\n\r\nTRUE",
                                   kOk + "Transfer-Encoding: chunked\r\n\r\n5\r\nTRUE"}) {
    INFO(bytes);
    CHECK(Read(bytes, false).state == State::kIncomplete);
    const Result r = Read(bytes, true);
    CHECK(r.state == State::kRefused);
    CHECK(r.reason == "the connection ended in the response");
  }
}

TEST_CASE("a malformed response is refused with the reason") {
  const std::string end = "\r\n\r\n";
  for (const auto& [bytes, reason] : std::vector<std::pair<std::string, std::string>>{
           {"SSH-2.0-OpenSSH" + end, "no status line"},
           {"HTTP/2 200" + end, "no status line"},
           {"HTTP/1.1 20" + end, "no status line"},
           {"HTTP/1.1 2000" + end, "no status line"},
           {"HTTP/1.1  20 x" + end, "no status line"},
           {"HTTP/1.1 +20 x" + end, "no status line"},
           {"HTTP/1.1 100 Continue" + end, "no status line"},
           {"HTTP/1.1 999 x" + end, "no status line"},
           {kOk + "no colon" + end, "malformed header"},
           {kOk + ": no name" + end, "malformed header"},
           {kOk + "a b: c" + end, "malformed header"},
           {kOk + "A: b\r\n continued: c" + end, "malformed header"},
           {kOk + "Content-Length: -1" + end, "the length or the encoding"},
           {kOk + "Content-Length: 1, 1" + end, "the length or the encoding"},
           {kOk + "Content-Length: 18446744073709551617" + end, "the length or the encoding"},
           {kOk + "Content-Length: 65537" + end, "the length or the encoding"},
           {kOk + "Content-Length: 1\r\nContent-Length: 1" + end, "the length or the encoding"},
           {kOk + "Content-Length: 1\r\nTransfer-Encoding: chunked" + end,
            "the length or the encoding"},
           {kOk + "Transfer-Encoding: gzip" + end, "the length or the encoding"},
           {kOk + "Content-Encoding: gzip\r\nContent-Length: 1" + end,
            "the length or the encoding"},
           {kOk + "Transfer-Encoding: chunked\r\n\r\nx\r\n", "malformed chunk"},
           {kOk + "Transfer-Encoding: chunked\r\n\r\n\r\n", "malformed chunk"},
           {kOk + "Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n", "malformed chunk"},
           {kOk + "Transfer-Encoding: chunked\r\n\r\n1\r\nTRUE\r\n", "malformed chunk"}}) {
    INFO(bytes);
    const Result r = Read(bytes, false, 5);
    CHECK(r.state == State::kRefused);
    CHECK_THAT(r.reason, Catch::Contains(reason));
  }
}

TEST_CASE("a response has at most 64 KiB and 64 headers") {
  const std::string flood(kResponseBytesMax + 1, 'x');
  for (const std::string& bytes : {flood, kOk + "A: " + flood, kOk + "\r\n" + flood,
                                   kOk + "Transfer-Encoding: chunked\r\n\r\n" + flood}) {
    const Result r = Read(bytes, false, 4096);
    CHECK(r.state == State::kRefused);
    CHECK(r.reason == "the response is longer than 65536 bytes");
  }
  std::string headers;
  for (std::size_t i = 0; i < kResponseHeadersMax; ++i) absl::StrAppend(&headers, "A: b\r\n");
  CHECK(Read(kOk + headers + "\r\n", true).state == State::kComplete);
  CHECK(Read(kOk + headers + "A: b\r\n\r\n", true).state == State::kRefused);
}

TEST_CASE("random changes of a response are read to an end or refused, in any pieces alike") {
  constexpr std::uint64_t kSeed = 20261127;
  INFO("seed=" << kSeed);
  std::mt19937_64 random(kSeed);
  const std::string whole[] = {
      kOk + "Content-Length: 4\r\nETag: 5a\r\n\r\nTRUE",
      kOk + "Transfer-Encoding: chunked\r\n\r\n3\r\nTRU\r\n1\r\nE\r\n0\r\n\r\n"};
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = whole[i % 2];
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % bytes.size();
      if (random() % 2 == 0)
        bytes[at] = static_cast<char>(random());
      else
        bytes.erase(at, 1 + random() % 4);
      if (bytes.empty()) bytes = "x";
    }
    const Result a = Read(bytes, true, 1), b = Read(bytes, true, 1 + random() % 50);
    CHECK(a.state != State::kIncomplete);
    CHECK(a.state == b.state);
    CHECK(a.answer.body == b.answer.body);
    CHECK(a.reason == b.reason);
  }
}

}  // namespace
}  // namespace evergrad::preemption
