#include "common/object_store/object_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/object_store/path_error.h"

namespace evergrad::object_store {
namespace {

// One range of an object, which several threads read in blocks. The reading thread works on the
// blocks, too, so that a read does not depend on the threads being free. A thread that is late
// shares the object with the reading thread, and finds no block left to read.
class RangeRead {
 public:
  RangeRead(const ReaderParts& parts, std::uint64_t offset, std::span<std::byte> out)
      : store_(*parts.store),
        key_(parts.key),
        etag_(parts.info.etag),
        block_bytes_(parts.read_bytes),
        offset_(offset),
        out_(out),
        blocks_((out.size() + block_bytes_ - 1) / block_bytes_) {}

  std::uint64_t blocks() const { return blocks_; }

  // Reads blocks until all are read or being read, or one has failed.
  void Work() {
    for (;;) {
      std::uint64_t block = 0;
      {
        MutexLock lock(&mu_);
        if (!error_.ok() || next_ == blocks_) return;
        block = next_++;
        ++reading_;
      }
      absl::Status status = Read(block);
      MutexLock lock(&mu_);
      --reading_;
      if (error_.ok()) error_ = std::move(status);
      changed_.NotifyAll();
    }
  }

  // Called after Work, so that no thread can begin another block. Waits for the blocks that other
  // threads read. Afterwards no thread uses the store or the memory of the output.
  absl::Status Finish() {
    MutexLock lock(&mu_);
    while (reading_ > 0) changed_.Wait(&mu_);
    return error_;
  }

 private:
  absl::Status Read(std::uint64_t block) const {
    const std::uint64_t begin = block * block_bytes_;
    const std::uint64_t count = std::min<std::uint64_t>(block_bytes_, out_.size() - begin);
    EG_ASSIGN_OR_RETURN(const std::string bytes, store_.Get(key_, offset_ + begin, count, etag_));
    if (bytes.size() != count)
      return absl::DataLossError(
          absl::StrCat("the store returned another number of bytes: offset=", offset_ + begin,
                       " want=", count, " got=", bytes.size()));
    std::memcpy(out_.data() + begin, bytes.data(), bytes.size());
    return absl::OkStatus();
  }

  ObjectStore& store_;
  const std::string key_, etag_;
  const std::uint64_t block_bytes_, offset_;
  const std::span<std::byte> out_;
  const std::uint64_t blocks_;
  Mutex mu_;
  CondVar changed_;
  std::uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  int reading_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

class ObjectReader final : public fs::ReadableFile {
 public:
  explicit ObjectReader(ReaderParts parts) : parts_(std::move(parts)) {}
  std::uint64_t size() const override { return parts_.info.bytes; }
  std::string version() const override { return parts_.info.etag; }

  absl::StatusOr<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset >= size()) return std::size_t{0};
    out = out.first(std::min<std::uint64_t>(out.size(), size() - offset));
    if (out.size() >= parts_.read_bytes) {
      EG_RETURN_IF_ERROR(Read(offset, out));
      return out.size();
    }
    for (std::size_t done = 0; done < out.size();) {
      EG_ASSIGN_OR_RETURN(const std::span<const std::byte> cached, Cached(offset + done));
      const std::size_t count = std::min(cached.size(), out.size() - done);
      std::memcpy(out.data() + done, cached.data(), count);
      done += count;
    }
    return out.size();
  }

 private:
  struct Fetch {
    std::uint64_t offset = 0, bytes = 0;
    std::unique_ptr<std::byte[]> data;
    std::uint64_t end() const { return offset + bytes; }
    bool Contains(std::uint64_t at) const { return at >= offset && at < end(); }
  };

  absl::Status Read(std::uint64_t offset, std::span<std::byte> out) {
    const auto read = std::make_shared<RangeRead>(parts_, offset, out);
    const std::uint64_t requests =
        std::min<std::uint64_t>(read->blocks(), static_cast<std::uint64_t>(parts_.requests));
    for (std::uint64_t i = 1; i < requests; ++i)
      parts_.threads->PostUnlessBusy([read] { read->Work(); });
    read->Work();
    const absl::Status status = read->Finish();
    return status.ok() ? status : PathError("cannot read file", parts_.path, status);
  }

  // Returns the cached bytes from `offset` on, at least one. `offset` is within the object.
  absl::StatusOr<std::span<const std::byte>> Cached(std::uint64_t offset) {
    if (!newer_.Contains(offset)) {
      if (older_.Contains(offset))
        std::swap(newer_, older_);
      else
        EG_RETURN_IF_ERROR(FetchAt(offset));
    }
    const std::uint64_t skipped = offset - newer_.offset;
    return std::span<const std::byte>(newer_.data.get() + skipped, newer_.bytes - skipped);
  }

  absl::Status FetchAt(std::uint64_t offset) {
    Fetch fetch;
    fetch.offset = offset / parts_.read_bytes * parts_.read_bytes;
    blocks_ = fetch.offset != next_ ? 1
                                    : std::clamp(blocks_ * 2, std::uint64_t{1},
                                                 static_cast<std::uint64_t>(parts_.requests));
    fetch.bytes = std::min(blocks_ * parts_.read_bytes, size() - fetch.offset);
    fetch.data = std::make_unique_for_overwrite<std::byte[]>(fetch.bytes);
    EG_RETURN_IF_ERROR(Read(fetch.offset, {fetch.data.get(), fetch.bytes}));
    next_ = fetch.end();
    older_ = std::exchange(newer_, std::move(fetch));
    return absl::OkStatus();
  }

  const ReaderParts parts_;
  Fetch newer_, older_;
  std::uint64_t next_ = 0;    // end of the latest fetch
  std::uint64_t blocks_ = 0;  // number of blocks of the latest fetch
};

}  // namespace

std::unique_ptr<fs::ReadableFile> MakeObjectReader(ReaderParts parts) {
  return std::make_unique<ObjectReader>(std::move(parts));
}

}  // namespace evergrad::object_store
