#include "common/preemption/http_response.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace evergrad::preemption {
namespace {

constexpr absl::string_view kLineEnd = "\r\n";

bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
}

// Parses digits of the base, without sign or space. A number above the limit of a response is
// refused.
std::optional<std::size_t> ParseSize(absl::string_view text, std::size_t base) {
  if (text.empty() || text.size() > 10) return std::nullopt;
  std::size_t value = 0;
  for (const char c : text) {
    std::size_t digit = base;
    if (c >= '0' && c <= '9') digit = static_cast<std::size_t>(c - '0');
    if (c >= 'a' && c <= 'f') digit = static_cast<std::size_t>(c - 'a') + 10;
    if (c >= 'A' && c <= 'F') digit = static_cast<std::size_t>(c - 'A') + 10;
    if (digit >= base) return std::nullopt;
    value = value * base + digit;
  }
  if (value > kResponseBytesMax) return std::nullopt;
  return value;
}

}  // namespace

ResponseReader::State ResponseReader::Refuse(absl::string_view reason) {
  reason_ = std::string(reason);
  return state_ = State::kRefused;
}

ResponseReader::State ResponseReader::Add(absl::string_view bytes) {
  if (state_ != State::kIncomplete) return state_;
  // Only one byte above the limit is stored, which suffices to detect a response that is too long.
  const std::size_t space = kResponseBytesMax + 1 - bytes_.size();
  bytes_.append(bytes.data(), std::min(space, bytes.size()));
  if (Advance() == State::kIncomplete && bytes_.size() > kResponseBytesMax)
    return Refuse(absl::StrCat("the response is longer than ", kResponseBytesMax, " bytes"));
  return state_;
}

ResponseReader::State ResponseReader::End() {
  if (state_ != State::kIncomplete) return state_;
  if (body_ == 0 || chunked_ || length_) return Refuse("the connection ended in the response");
  answer_.body = bytes_.substr(body_);
  return state_ = State::kComplete;
}

Answer ResponseReader::TakeAnswer() { return std::move(answer_); }

ResponseReader::State ResponseReader::Advance() {
  if (body_ == 0) {
    const std::size_t end = bytes_.find("\r\n\r\n");
    if (end == std::string::npos) return state_;
    body_ = end + 4;
    if (!ReadHead(absl::string_view(bytes_).substr(0, end + 2))) return state_;
  }
  if (chunked_) return ReadChunks();
  if (length_ && bytes_.size() - body_ >= *length_) {
    answer_.body = bytes_.substr(body_, *length_);
    state_ = State::kComplete;
  }
  return state_;
}

// Each line of `head` ends in CR LF.
bool ResponseReader::ReadHead(absl::string_view head) {
  std::size_t end = head.find(kLineEnd);
  const absl::string_view first = head.substr(0, end);
  // The first line looks like "HTTP/1.1 200 OK".
  int status = 0;
  if (first.size() < 12 ||
      !(absl::StartsWith(first, "HTTP/1.0 ") || absl::StartsWith(first, "HTTP/1.1 ")) ||
      !absl::ascii_isdigit(static_cast<unsigned char>(first[9])) ||
      !absl::SimpleAtoi(first.substr(9, 3), &status) || status < 200 || status > 599 ||
      (first.size() > 12 && first[12] != ' ')) {
    Refuse("the response has no status line of HTTP/1");
    return false;
  }
  answer_.status = status;
  for (head.remove_prefix(end + 2); !head.empty(); head.remove_prefix(end + 2)) {
    end = head.find(kLineEnd);
    if (!ReadHeader(head.substr(0, end))) return false;
  }
  return ReadFraming();
}

bool ResponseReader::ReadHeader(absl::string_view line) {
  const std::size_t colon = line.find(':');
  const absl::string_view name = line.substr(0, colon);
  if (colon == absl::string_view::npos || name.empty() ||
      !std::all_of(name.begin(), name.end(), IsTokenCharacter) ||
      answer_.headers.size() == kResponseHeadersMax) {
    Refuse("the response has a malformed header or too many headers");
    return false;
  }
  answer_.headers.emplace_back(absl::AsciiStrToLower(name),
                               std::string(absl::StripAsciiWhitespace(line.substr(colon + 1))));
  return true;
}

bool ResponseReader::ReadFraming() {
  int framings = 0;
  for (const auto& [name, value] : answer_.headers) {
    if (name == "content-length") {
      length_ = ParseSize(value, 10);
      framings += length_ ? 1 : 2;
    } else if (name == "transfer-encoding") {
      chunked_ = absl::EqualsIgnoreCase(value, "chunked");
      framings += chunked_ ? 1 : 2;
    } else if (name == "content-encoding" && !absl::EqualsIgnoreCase(value, "identity")) {
      framings = 2;
    }
  }
  if (framings > 1) {
    Refuse("the length or the encoding of the response is not accepted");
    return false;
  }
  if (answer_.status == 204 || answer_.status == 304) length_ = 0;
  return true;
}

ResponseReader::State ResponseReader::ReadChunks() {
  for (;;) {
    const std::size_t line_end = bytes_.find(kLineEnd.data(), body_, kLineEnd.size());
    if (line_end == std::string::npos) return state_;
    const absl::string_view line = absl::string_view(bytes_).substr(body_, line_end - body_);
    const auto size = ParseSize(line.substr(0, line.find(';')), 16);
    if (!size) return Refuse("the response has a malformed chunk");
    // Trailers after the last chunk are ignored.
    if (*size == 0) return state_ = State::kComplete;
    const std::size_t begin = line_end + 2, end = begin + *size;
    if (bytes_.size() < end + 2) return state_;
    if (bytes_.compare(end, 2, kLineEnd.data(), 2) != 0)
      return Refuse("the response has a malformed chunk");
    answer_.body.append(bytes_, begin, *size);
    body_ = end + 2;
  }
}

}  // namespace evergrad::preemption
