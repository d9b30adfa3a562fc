#include "ps_server/service/peer_image.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/runtime/executor.h"
#include "ps_server/snapshot/images.h"

namespace evergrad::ps_server {
namespace {

constexpr std::chrono::milliseconds kTryAgain{20}, kLookAgain{20};

// One piece, in flight or received. The callback of the call shares the piece, because the callback
// may come after the reader was destroyed.
struct Piece {
  std::uint64_t offset = 0, bytes = 0;
  runtime::WaitableEvent there;
  // Valid once `there` is set.
  absl::StatusOr<client::ParameterClient::Answer> answer = absl::UnknownError("no answer yet");
};

class PeerFile final : public fs::ReadableFile {
 public:
  explicit PeerFile(PeerImage image) : image_(std::move(image)) {}

  std::uint64_t size() const override { return image_.bytes; }

  absl::StatusOr<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset >= image_.bytes) return std::size_t{0};
    const std::size_t wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), image_.bytes - offset));
    for (std::size_t done = 0; done < wanted;) {
      const std::uint64_t at = offset + done;
      const std::uint64_t piece_offset = at / kImagePieceBytesMax * kImagePieceBytesMax;
      if (here_ == nullptr || here_->offset != piece_offset) {
        if (const absl::Status status = Fetch(piece_offset); !status.ok()) return status;
      }
      const std::span<const std::byte> piece =
          here_->answer->payloads[0].subspan(at - piece_offset);
      const std::size_t n = std::min(piece.size(), wanted - done);
      std::memcpy(out.data() + done, piece.data(), n);
      done += n;
    }
    return wanted;
  }

 private:
  bool Unwanted() const {
    return image_.unwanted != nullptr && image_.unwanted->load(std::memory_order_relaxed);
  }

  std::shared_ptr<Piece> Ask(std::uint64_t offset) {
    auto piece = std::make_shared<Piece>();
    piece->offset = offset;
    piece->bytes = std::min(kImagePieceBytesMax, image_.bytes - offset);
    v1::RequestHeader header;
    header.set_job_uid(image_.job.value());
    v1::PullSection& pull = *header.add_pulls();
    pull.set_shard(image_.shard.value());
    *pull.mutable_epoch() = client::ToProto(image_.epoch);
    pull.mutable_image()->set_offset(offset);
    pull.mutable_image()->set_bytes(piece->bytes);
    image_.client->Send(image_.server, std::move(header), {}, piece->bytes + 64,
                        image_.piece_deadline,
                        [piece](absl::StatusOr<client::ParameterClient::Answer> answer) {
                          piece->answer = std::move(answer);
                          piece->there.Set();
                        });
    return piece;
  }

  // Makes the piece at `offset` the current piece (here_), and requests the next piece.
  absl::Status Fetch(std::uint64_t offset) {
    const MonoTime until = image_.clock->Now() + image_.unreachable_max;
    for (;;) {
      here_ =
          next_ != nullptr && next_->offset == offset ? std::exchange(next_, nullptr) : Ask(offset);
      if (const std::uint64_t behind = offset + here_->bytes;
          behind < image_.bytes && (next_ == nullptr || next_->offset != behind))
        next_ = Ask(behind);
      const std::shared_ptr<Piece> piece = here_;
      while (!piece->there.WaitFor(kLookAgain)) {  // the deadline of the call limits this loop
        if (Unwanted()) return absl::CancelledError("the move of a shard was cancelled");
      }
      if (piece->answer.ok()) return Check(*piece);
      here_ = nullptr;
      next_ = nullptr;
      const absl::Status& status = piece->answer.status();
      if (!absl::IsUnavailable(status) || Unwanted() || image_.clock->Now() >= until) {
        return absl::Status(status.code(),
                            absl::StrCat("cannot read a moved shard: from=ps_server/",
                                         image_.server.server(), " cause=", status.message()));
      }
      // If the client is destroyed during this wait, the next call ends at once.
      runtime::WaitableEvent().WaitFor(kTryAgain);
    }
  }

  absl::Status Check(const Piece& piece) {
    const v1::PullResult& result = piece.answer->header->pulls(0);
    if (result.answer() == v1::VALUES && piece.answer->payloads[0].size() == piece.bytes)
      return absl::OkStatus();
    here_ = nullptr;
    return absl::NotFoundError(absl::StrCat(
        "a moved shard is no longer at its server: from=ps_server/", image_.server.server(),
        " shard=", image_.shard.ToString(), " epoch=", image_.epoch.ToString(),
        " answer=", v1::PullAnswer_Name(result.answer()),
        result.message().empty()
            ? ""
            : absl::StrCat(" (", client::CleanText(result.message(), 500), ")")));
  }

  const PeerImage image_;
  std::shared_ptr<Piece> here_, next_;
};

class PeerFileSystem final : public fs::FileSystem {
 public:
  explicit PeerFileSystem(PeerImage image) : image_(std::move(image)) {}
  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view) override {
    return ReadOnly();
  }
  absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view) override {
    return std::make_unique<PeerFile>(image_);
  }
  absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view) override {
    return ReadOnly();
  }
  absl::Status Remove(absl::string_view) override { return ReadOnly(); }
  absl::StatusOr<bool> Exists(absl::string_view) override { return true; }
  absl::Status MakeFolders(absl::string_view) override { return ReadOnly(); }

 private:
  static absl::Status ReadOnly() {
    return absl::UnimplementedError("the image of a shard at another server can only be read");
  }
  const PeerImage image_;
};

}  // namespace

std::unique_ptr<fs::FileSystem> MakePeerFileSystem(PeerImage image) {
  return std::make_unique<PeerFileSystem>(std::move(image));
}

}  // namespace evergrad::ps_server
