#include "common/wire/data_frame.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include <google/protobuf/stubs/logging.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"

namespace evergrad::wire {
namespace {

constexpr std::uint64_t kAlignment = tensor::kAlignment;
constexpr std::uint64_t kLengthBytes = 4;
constexpr std::uint64_t kHeaderBytesMax = 8ull << 20;
constexpr int kSectionsMax = 1 << 16;
// payload_offset and payload_bytes as two fields of a section: a tag byte and at most ten bytes each.
constexpr std::uint64_t kSectionFieldsBytesMax = 22;
// A stand-in of five bytes for offsets not yet known. Frames stay below 4 GiB (frame_bytes_max), so none is wider.
constexpr std::uint64_t kWidestOffset = 0xFFFFFFFF;

constexpr std::array<std::byte, kAlignment> kZeros{};

void StoreLength(std::uint32_t value, std::byte* out) {
  for (int i = 0; i < 4; ++i) out[i] = std::byte(value >> (8 * i));
}
std::uint32_t LoadLength(const std::byte* in) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(in[i]) << (8 * i);
  return value;
}

// Bytes that lie behind each other, whatever pieces they come in, and the fields of the header that say where: `place` is told offset and length.
struct Payload {
  std::span<tensor::SharedBytes> pieces;
  std::function<void(std::uint64_t offset, std::uint64_t bytes)> place;
  std::uint64_t bytes = 0;
};

// The offsets are part of the header that they come after: its size is first taken with the widest offsets, and the rest up to the first
// payload is padding.
template <class Header>
std::vector<tensor::SharedBytes> Build(const Header& header, std::vector<Payload> payloads) {
  std::uint64_t payload_bytes = 0;
  std::size_t piece_count = 0;
  for (Payload& payload : payloads) {
    for (const auto& piece : payload.pieces) payload.bytes += piece.bytes.size();
    payload.place(payload.bytes == 0 ? 0 : kWidestOffset, payload.bytes);
    payload_bytes += RoundUp(payload.bytes, kAlignment);
    piece_count += payload.pieces.size();
  }
  const std::uint64_t first_payload = RoundUp(kLengthBytes + header.ByteSizeLong(), kAlignment);
  EG_CHECK_MSG(first_payload + payload_bytes <= kWidestOffset, "a frame stays below 4 GiB");
  std::uint64_t end = first_payload;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    if (payloads[i].bytes == 0) continue;
    payloads[i].place(end, payloads[i].bytes);
    end = RoundUp(end + payloads[i].bytes, kAlignment);
  }

  const std::uint64_t header_bytes = header.ByteSizeLong();
  const bool has_payload = end > first_payload;
  auto head = std::make_shared<std::string>(has_payload ? first_payload : kLengthBytes + header_bytes, '\0');
  auto* head_data = reinterpret_cast<std::byte*>(head->data());
  StoreLength(static_cast<std::uint32_t>(header_bytes), head_data);
  EG_CHECK(header.SerializeToArray(head_data + kLengthBytes, static_cast<int>(header_bytes)));

  std::vector<tensor::SharedBytes> pieces;
  pieces.reserve(1 + payloads.size() + piece_count);
  pieces.push_back({head, {head_data, head->size()}});
  std::uint64_t gap = 0;  // Padding goes before a payload, so that a frame never ends in it.
  for (auto& payload : payloads) {
    if (payload.bytes == 0) continue;
    if (gap > 0) pieces.push_back({nullptr, {kZeros.data(), gap}});
    gap = RoundUp(payload.bytes, kAlignment) - payload.bytes;
    for (auto& piece : payload.pieces) {
      if (!piece.bytes.empty()) pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

template <class Header>
absl::StatusOr<std::uint64_t> ParseHeader(std::span<const std::byte> frame, Header* header) {
  if (frame.size() < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("frame shorter than its length field: bytes=", frame.size(), " want>=", kLengthBytes));
  }
  const std::uint64_t header_bytes = LoadLength(frame.data());
  if (header_bytes > kHeaderBytesMax || header_bytes > frame.size() - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("header_bytes out of range: offset=0 got=", header_bytes,
                                                   " max=", std::min<std::uint64_t>(kHeaderBytesMax, frame.size() - kLengthBytes)));
  }
  google::protobuf::LogSilencer silencer;  // Bytes of a stranger must not fill the log.
  if (!header->ParseFromArray(frame.data() + kLengthBytes, static_cast<int>(header_bytes))) {
    return absl::InvalidArgumentError(absl::StrCat("header is not a protobuf message: offset=4 bytes=", header_bytes));
  }
  return kLengthBytes + header_bytes;
}

// Hands out byte ranges of a frame in rising order: none overlaps another or leaves the frame.
class Ranges {
 public:
  Ranges(std::span<const std::byte> frame, std::uint64_t header_end) : frame_(frame), end_(header_end) {}

  absl::StatusOr<std::span<const std::byte>> Take(absl::string_view field, int index, std::uint64_t offset, std::uint64_t bytes) {
    if (bytes == 0) return std::span<const std::byte>();
    const auto end = CheckedAdd(offset, bytes);
    if (offset % kAlignment != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("offset not aligned: field=", field, "[", index, "] offset=", offset, " want multiple of ", kAlignment));
    }
    if (offset < end_) {
      return absl::InvalidArgumentError(
          absl::StrCat("bytes overlap what is before them: field=", field, "[", index, "] offset=", offset, " want>=", end_));
    }
    if (!end || *end > frame_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("bytes leave the frame: field=", field, "[", index, "] offset=", offset, " bytes=", bytes, " frame=", frame_.size()));
    }
    end_ = *end;
    return frame_.subspan(offset, bytes);
  }

 private:
  std::span<const std::byte> frame_;
  std::uint64_t end_;
};

absl::Status CheckSections(absl::string_view field, int count) {
  if (count <= kSectionsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("too many sections: field=", field, " got=", count, " max=", kSectionsMax));
}

// Ids lie behind the payload of their section (a push) or alone (a pull).
template <class Section>
absl::StatusOr<std::span<const std::int64_t>> TakeIds(absl::string_view field, int index, const Section& section, Ranges* ranges) {
  if (!section.has_ids()) return std::span<const std::int64_t>();
  const auto& ids = section.ids();
  const auto bytes = CheckedMul(ids.count(), sizeof(std::int64_t));
  if (!bytes || *bytes != ids.bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ids length mismatch: field=", field, "[", index, "].ids count=", ids.count(), " bytes=", ids.bytes()));
  }
  const auto taken = ranges->Take(absl::StrCat(field, ".ids"), index, ids.offset(), ids.bytes());
  if (!taken.ok()) return taken.status();
  if (reinterpret_cast<std::uintptr_t>(taken->data()) % alignof(std::int64_t) != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("frame with ids is not aligned: field=", field, "[", index, "].ids want multiple of ", alignof(std::int64_t)));
  return std::span<const std::int64_t>(reinterpret_cast<const std::int64_t*>(taken->data()), ids.count());
}

// Write into a section where its bytes lie.
template <class Section>
auto PlacePayload(Section* section) {
  return [section](std::uint64_t offset, std::uint64_t bytes) {
    section->set_payload_bytes(bytes);
    section->set_payload_offset(offset);
  };
}
template <class Section>
auto PlaceIds(Section* section) {
  return [section](std::uint64_t offset, std::uint64_t bytes) {
    if (bytes == 0) return;
    section->mutable_ids()->set_count(bytes / sizeof(std::int64_t));
    section->mutable_ids()->set_bytes(bytes);
    section->mutable_ids()->set_offset(offset);
  };
}

}  // namespace

std::vector<tensor::SharedBytes> BuildRequest(v1::RequestHeader header, std::vector<tensor::SharedBytes> payloads,
                                              std::vector<tensor::SharedBytes> ids) {
  const auto pushes = static_cast<std::size_t>(header.pushes_size()), pulls = static_cast<std::size_t>(header.pulls_size());
  EG_CHECK_MSG(payloads.size() == pushes, "one payload a section");
  EG_CHECK_MSG(ids.empty() || ids.size() == pushes + pulls, "one list of ids a section");
  std::vector<Payload> parts;
  parts.reserve(pushes + ids.size());
  for (std::size_t i = 0; i < pushes; ++i) {
    v1::PushSection* section = header.mutable_pushes(static_cast<int>(i));
    parts.push_back({{&payloads[i], 1}, PlacePayload(section)});
    if (!ids.empty()) parts.push_back({{&ids[i], 1}, PlaceIds(section)});
  }
  for (std::size_t i = pushes; i < ids.size(); ++i) parts.push_back({{&ids[i], 1}, PlaceIds(header.mutable_pulls(static_cast<int>(i - pushes)))});
  return Build(header, std::move(parts));
}

std::vector<tensor::SharedBytes> BuildResponse(v1::ResponseHeader header, std::vector<tensor::SharedBytes> payloads) {
  std::vector<std::vector<tensor::SharedBytes>> pieces;
  for (auto& payload : payloads) pieces.push_back({std::move(payload)});
  return BuildResponseOfPieces(std::move(header), std::move(pieces));
}

std::vector<tensor::SharedBytes> BuildResponseOfPieces(v1::ResponseHeader header, std::vector<std::vector<tensor::SharedBytes>> payloads) {
  EG_CHECK_MSG(static_cast<std::size_t>(header.pulls_size()) == payloads.size(), "one payload a section");
  std::vector<Payload> parts;
  parts.reserve(payloads.size());
  for (std::size_t i = 0; i < payloads.size(); ++i) parts.push_back({payloads[i], PlacePayload(header.mutable_pulls(static_cast<int>(i)))});
  return Build(header, std::move(parts));
}

absl::StatusOr<Request> ParseRequest(std::span<const std::byte> frame) {
  Request request;
  const auto header_end = ParseHeader(frame, &request.header);
  if (!header_end.ok()) return header_end.status();
  if (auto s = CheckSections("pushes", request.header.pushes_size()); !s.ok()) return s;
  if (auto s = CheckSections("pulls", request.header.pulls_size()); !s.ok()) return s;
  Ranges ranges(frame, *header_end);
  request.payloads.reserve(static_cast<std::size_t>(request.header.pushes_size()));
  for (int i = 0; i < request.header.pushes_size(); ++i) {
    const auto& push = request.header.pushes(i);
    auto payload = ranges.Take("pushes", i, push.payload_offset(), push.payload_bytes());
    if (!payload.ok()) return payload.status();
    request.payloads.push_back(*payload);
    const auto ids = TakeIds("pushes", i, push, &ranges);
    if (!ids.ok()) return ids.status();
    request.push_ids.push_back(*ids);
  }
  for (int i = 0; i < request.header.pulls_size(); ++i) {
    const auto ids = TakeIds("pulls", i, request.header.pulls(i), &ranges);
    if (!ids.ok()) return ids.status();
    request.pull_ids.push_back(*ids);
  }
  return request;
}

absl::StatusOr<Response> ParseResponse(std::span<const std::byte> frame) {
  Response response;
  const auto header_end = ParseHeader(frame, &response.header);
  if (!header_end.ok()) return header_end.status();
  if (auto s = CheckSections("pushes", response.header.pushes_size()); !s.ok()) return s;
  if (auto s = CheckSections("pulls", response.header.pulls_size()); !s.ok()) return s;
  Ranges ranges(frame, *header_end);
  response.payloads.reserve(static_cast<std::size_t>(response.header.pulls_size()));
  for (int i = 0; i < response.header.pulls_size(); ++i) {
    const auto& pull = response.header.pulls(i);
    auto payload = ranges.Take("pulls", i, pull.payload_offset(), pull.payload_bytes());
    if (!payload.ok()) return payload.status();
    response.payloads.push_back(*payload);
  }
  return response;
}

std::uint64_t RequestBytesBound(const v1::RequestHeader& header, std::uint64_t payload_bytes) {
  const auto pushes = static_cast<std::uint64_t>(header.pushes_size());
  // A section that grows by 22 bytes may need a longer length prefix of its own: two more bytes cover it.
  return kLengthBytes + header.ByteSizeLong() + pushes * (kSectionFieldsBytesMax + 2) + (pushes + 1) * kAlignment + payload_bytes;
}

}  // namespace evergrad::wire
