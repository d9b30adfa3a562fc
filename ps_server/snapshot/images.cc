#include "ps_server/snapshot/images.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::ps_server {
namespace {

// Size of the parts of a file besides values, optimizer state and ledger: header, counters, footer,
// and 16 bytes per block.
constexpr std::uint64_t kFrameBytes = 64 * 1024;

std::uint64_t BytesOf(const ShardCut& cut) {
  return cut.bytes() + cut.bytes() / 1024 + kFrameBytes;
}

// A file in memory, which collects the appended bytes.
class MemoryFile final : public fs::WritableFile {
 public:
  explicit MemoryFile(std::vector<std::byte>* bytes) : bytes_(bytes) {}
  absl::Status Append(std::span<const std::byte> bytes) override {
    bytes_->insert(bytes_->end(), bytes.begin(), bytes.end());
    return absl::OkStatus();
  }
  absl::Status Commit() override { return absl::OkStatus(); }

 private:
  std::vector<std::byte>* const bytes_;
};

}  // namespace

Images::Images(Options options)
    : options_(options),
      limit_(*options_.registry, "evergrad_ps_server_image_bytes",
             "Bytes of the images of stopped shards, which the next owners read",
             static_cast<double>(options_.bytes_max)),
      orders_({.name = "images",
               .perform = [this](Orders::Entry entry) { Perform(std::move(entry.order)); }}) {}

Images::~Images() {
  for (Order& order : orders_.End()) order.done(absl::CancelledError("the server is ending"));
}

Images::Key Images::KeyOf(const ShardCut& cut) {
  return {cut.settings->job, cut.settings->shard, cut.epoch};
}

std::shared_ptr<const Images::Image> Images::Find(const Key& key) const {
  const auto found = images_.find(key);
  return found == images_.end() ? nullptr : found->second;
}

absl::Status Images::Submit(Order order) {
  const auto [job, shard, epoch] = KeyOf(order.cut);
  std::shared_ptr<const Image> there;
  {
    MutexLock lock(&mu_);
    there = Find({job, shard, epoch});
    if (there == nullptr) {
      const std::uint64_t bytes = BytesOf(order.cut);
      if (bytes > options_.bytes_max) {
        limit_.refused.Add();
        return absl::ResourceExhaustedError(
            absl::StrCat("the shard is too large to be moved: shard=", shard.ToString(),
                         " bytes=", bytes, " max=", options_.bytes_max));
      }
      if (bytes_ + bytes > options_.bytes_max) {
        limit_.refused.Add();
        return absl::UnavailableError(
            absl::StrCat("out of memory for another image: shard=", shard.ToString(),
                         " bytes=", bytes, " held=", bytes_, " max=", options_.bytes_max));
      }
      SetBytes(bytes_ + bytes);
    }
  }
  if (there == nullptr) return orders_.Submit({job, shard}, std::move(order)).status();
  order.done(there->digest);
  return absl::OkStatus();
}

absl::StatusOr<tensor::SharedBytes> Images::Read(JobUid job, ShardId shard, ShardEpoch epoch,
                                                 std::uint64_t offset, std::uint64_t bytes) const {
  if (options_.failpoints != nullptr) {
    if (const absl::Status hit = options_.failpoints->ErrorAt("move.read"); !hit.ok()) return hit;
  }
  std::shared_ptr<const Image> image;
  {
    MutexLock lock(&mu_);
    image = Find({job, shard, epoch});
  }
  if (image == nullptr)
    return absl::NotFoundError(absl::StrCat("the shard has no image: shard=", shard.ToString(),
                                            " epoch=", epoch.ToString()));
  const std::uint64_t size = image->bytes.size();
  if (bytes == 0 || bytes > kImagePieceBytesMax || offset >= size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the piece of an image is out of range: shard=", shard.ToString(), " offset=", offset,
        " bytes=", bytes, " image_bytes=", size, " bytes_max=", kImagePieceBytesMax));
  }
  const std::span<const std::byte> piece =
      std::span(image->bytes).subspan(offset, std::min(bytes, size - offset));
  return tensor::SharedBytes{std::move(image), piece};
}

void Images::SetBytes(std::uint64_t bytes) {
  bytes_ = bytes;
  limit_.current.Set(static_cast<double>(bytes_));
}

void Images::Drop(JobUid job, std::optional<ShardId> shard) {
  std::vector<Order> ended = orders_.Cancel(job, shard);
  {
    MutexLock lock(&mu_);
    std::uint64_t freed = 0;
    for (const Order& order : ended) freed += BytesOf(order.cut);
    std::erase_if(images_, [&](const auto& entry) {
      const auto& [key, image] = entry;
      if (std::get<JobUid>(key) != job || (shard && std::get<ShardId>(key) != *shard)) return false;
      freed += image->bytes.capacity();
      return true;
    });
    SetBytes(bytes_ - freed);
  }
  for (Order& order : ended)
    order.done(absl::CancelledError("the move of the shard was cancelled"));
}

std::uint64_t Images::bytes() const {
  MutexLock lock(&mu_);
  return bytes_;
}

void Images::Perform(Order order) {
  const Key key = KeyOf(order.cut);
  const std::uint64_t reserved = BytesOf(order.cut);
  std::shared_ptr<const Image> there;  // the existing image, if the order is a repetition
  {
    MutexLock lock(&mu_);
    there = Find(key);
    if (there != nullptr) SetBytes(bytes_ - reserved);
  }
  if (there != nullptr) return order.done(there->digest);
  auto image = std::make_shared<Image>();
  image->bytes.reserve(reserved);
  MemoryFile file(&image->bytes);
  CutTarget target;
  target.plan_fingerprint = order.plan_fingerprint;
  target.cancelled = [this] { return orders_.Unwanted(); };
  absl::StatusOr<snapshot::FileDigest> made = [&] {
    const ShardCut cut = std::move(order.cut);  // destroyed before `done` is called
    return WriteCutTo(cut, target, &file);
  }();
  if (made.ok() && options_.failpoints != nullptr) {
    if (const absl::Status hit = options_.failpoints->ErrorAt("move.stopped"); !hit.ok())
      made = hit;
  }
  {
    MutexLock lock(&mu_);  // Drop cancels the order first, and then removes the image.
    if (made.ok() && orders_.Unwanted())
      made = absl::CancelledError("the move of the shard was cancelled");
    SetBytes(bytes_ - reserved);
    if (made.ok()) {
      image->digest = *made;
      SetBytes(bytes_ + image->bytes.capacity());
      images_[key] = std::move(image);
    }
  }
  order.done(std::move(made));
}

}  // namespace evergrad::ps_server
