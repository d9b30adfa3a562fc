#include "ps_server/snapshot/images.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::ps_server {
namespace {

// Beside values, optimizer state and ledger: header, counters, footer, and 16 bytes a block.
constexpr std::uint64_t kFrameBytes = 64 * 1024;

std::uint64_t BytesOf(const ShardCut& cut) {
  return cut.bytes() + cut.bytes() / 1024 + kFrameBytes;
}

// Collects the appended bytes.
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
    : options_(std::move(options)),
      limit_(*options_.registry, "evergrad_ps_server_image_bytes",
             "Images of stopped shards that other servers read",
             static_cast<double>(options_.bytes_max)) {
  thread_.emplace("images", [this] { Run(); });
}

Images::~Images() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.reset();
  std::deque<Order> left;
  {
    MutexLock lock(&mu_);
    left.swap(queue_);
  }
  for (Order& order : left) order.done(absl::CancelledError("the server ends"));
}

absl::Status Images::Submit(Order order) {
  const Key key{order.cut.settings->job, order.cut.settings->shard, order.cut.epoch};
  std::shared_ptr<const Image> there;
  {
    MutexLock lock(&mu_);
    if (const auto found = images_.find(key); found != images_.end()) {
      there = found->second;
    } else {
      const std::uint64_t bytes = BytesOf(order.cut);
      if (bytes > options_.bytes_max) {
        limit_.refused.Add();
        return absl::ResourceExhaustedError(absl::StrCat(
            "shard is too large to be moved: shard=", std::get<ShardId>(key).ToString(),
            " bytes=", bytes, " max=", options_.bytes_max));
      }
      if (bytes_ + bytes > options_.bytes_max) {
        limit_.refused.Add();
        return absl::UnavailableError(
            absl::StrCat("no memory left for the image of another shard: shard=",
                         std::get<ShardId>(key).ToString(), " bytes=", bytes, " held=", bytes_,
                         " max=", options_.bytes_max));
      }
      bytes_ += bytes;
      limit_.current.Set(static_cast<double>(bytes_));
      queue_.push_back(std::move(order));
      changed_.NotifyAll();
      return absl::OkStatus();
    }
  }
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
    if (const auto found = images_.find({job, shard, epoch}); found != images_.end())
      image = found->second;
  }
  if (image == nullptr)
    return absl::NotFoundError(
        absl::StrCat("shard has no image: shard=", shard.ToString(), " epoch=", epoch.ToString()));
  const std::uint64_t size = image->bytes.size();
  if (bytes == 0 || bytes > kImagePieceBytesMax || offset >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece of an image out of range: shard=", shard.ToString(), " offset=", offset,
                     " bytes=", bytes, " image_bytes=", size, " bytes_max=", kImagePieceBytesMax));
  }
  const std::span<const std::byte> piece =
      std::span(image->bytes).subspan(offset, std::min(bytes, size - offset));
  return tensor::SharedBytes{std::move(image), piece};
}

void Images::Release(std::uint64_t bytes) {
  bytes_ -= bytes;
  limit_.current.Set(static_cast<double>(bytes_));
}

void Images::Drop(JobUid job, std::optional<ShardId> shard) {
  std::deque<Order> ended;
  {
    MutexLock lock(&mu_);
    const auto meant = [&](JobUid j, ShardId s) { return j == job && (!shard || s == *shard); };
    for (auto it = queue_.begin(); it != queue_.end();) {
      if (!meant(it->cut.settings->job, it->cut.settings->shard)) {
        ++it;
        continue;
      }
      Release(BytesOf(it->cut));
      ended.push_back(std::move(*it));
      it = queue_.erase(it);
    }
    if (current_ && meant(std::get<JobUid>(*current_), std::get<ShardId>(*current_)))
      current_dropped_ = true;
    for (auto it = images_.begin(); it != images_.end();) {
      if (!meant(std::get<JobUid>(it->first), std::get<ShardId>(it->first))) {
        ++it;
        continue;
      }
      Release(it->second->bytes.capacity());
      it = images_.erase(it);
    }
  }
  for (Order& order : ended)
    order.done(absl::CancelledError("the move of the shard was cancelled"));
}

std::uint64_t Images::bytes() const {
  MutexLock lock(&mu_);
  return bytes_;
}

void Images::Run() {
  for (;;) {
    std::optional<Order> order;
    std::uint64_t reserved = 0;
    std::shared_ptr<const Image> there;  // A repeated order, for example in two sessions.
    {
      MutexLock lock(&mu_);
      while (!stopping_ && queue_.empty()) changed_.Wait(&mu_);
      if (stopping_) return;
      order = std::move(queue_.front());
      queue_.pop_front();
      reserved = BytesOf(order->cut);
      const Key key{order->cut.settings->job, order->cut.settings->shard, order->cut.epoch};
      if (const auto found = images_.find(key); found != images_.end()) {
        there = found->second;
        Release(reserved);
      } else {
        current_ = key;
        current_dropped_ = false;
      }
    }
    if (there != nullptr) {
      order->done(there->digest);
      continue;
    }
    const auto dropped = [this] {
      MutexLock lock(&mu_);
      return stopping_ || current_dropped_;
    };
    auto image = std::make_shared<Image>();
    image->bytes.reserve(reserved);
    MemoryFile file(&image->bytes);
    CutTarget target;
    target.plan_fingerprint = order->plan_fingerprint;
    target.cancelled = dropped;
    absl::StatusOr<snapshot::FileDigest> made = [&] {
      const ShardCut cut = std::move(order->cut);  // destroyed before `done` is called
      return WriteCutTo(cut, target, &file);
    }();
    if (made.ok() && options_.failpoints != nullptr) {
      if (const absl::Status hit = options_.failpoints->ErrorAt("move.stopped"); !hit.ok())
        made = hit;
    }
    {
      MutexLock lock(&mu_);
      const Key key = *std::exchange(current_, std::nullopt);
      if (made.ok() && (stopping_ || current_dropped_))
        made = absl::CancelledError("the move of the shard was cancelled");
      Release(reserved);
      if (made.ok()) {
        image->digest = *made;
        bytes_ += image->bytes.capacity();
        limit_.current.Set(static_cast<double>(bytes_));
        images_[key] = std::move(image);
      }
    }
    order->done(std::move(made));
  }
}

}  // namespace evergrad::ps_server
