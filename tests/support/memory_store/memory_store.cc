#include "tests/support/memory_store/memory_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::object_store {

std::string StoreCall::ToString() const {
  std::string text = absl::StrCat(name, " ", key);
  if (name == "PutPart" || name == "CompleteUpload") absl::StrAppend(&text, " ", part);
  if (name == "PutPart" || name == "Put") absl::StrAppend(&text, " [", bytes, "]");
  if (name == "Get") absl::StrAppend(&text, " [", offset, ", ", offset + bytes, ")");
  return text;
}

class MemoryStore final : public ObjectStore {
 public:
  explicit MemoryStore(MemoryBucket* bucket) : bucket_(*bucket) {}

  absl::StatusOr<ObjectInfo> Head(const std::string& key) override {
    const StoreCall call{"Head", key};
    EG_RETURN_IF_ERROR(Begin(call));
    ObjectInfo info;
    {
      MutexLock lock(&bucket_.mu_);
      const auto found = bucket_.objects_.find(key);
      if (found == bucket_.objects_.end()) return Missing(key);
      info.bytes = found->second.bytes.size();
      info.etag = found->second.etag;
    }
    EG_RETURN_IF_ERROR(End(call));
    return info;
  }

  absl::StatusOr<std::string> Get(const std::string& key, std::uint64_t offset, std::uint64_t bytes,
                                  const std::string& etag) override {
    const StoreCall call{"Get", key, 0, offset, bytes};
    EG_RETURN_IF_ERROR(Begin(call));
    std::string result;
    {
      MutexLock lock(&bucket_.mu_);
      const auto found = bucket_.objects_.find(key);
      if (found == bucket_.objects_.end()) return Missing(key);
      if (!etag.empty() && found->second.etag != etag)
        return absl::FailedPreconditionError(absl::StrCat("the object has changed: key=", key));
      if (offset < found->second.bytes.size()) result = found->second.bytes.substr(offset, bytes);
    }
    if (bucket_.change_bytes) bucket_.change_bytes(&result);
    EG_RETURN_IF_ERROR(End(call));
    return result;
  }

  absl::Status Put(const std::string& key, absl::string_view bytes, PutMode mode) override {
    const StoreCall call{"Put", key, 0, 0, bytes.size()};
    EG_RETURN_IF_ERROR(Begin(call));
    {
      MutexLock lock(&bucket_.mu_);
      EG_RETURN_IF_ERROR(CheckAbsent(key, mode));
      bucket_.WriteLocked(key, std::string(bytes));
    }
    return End(call);
  }

  absl::StatusOr<std::string> BeginUpload(const std::string& key) override {
    const StoreCall call{"BeginUpload", key};
    EG_RETURN_IF_ERROR(Begin(call));
    std::string upload;
    {
      MutexLock lock(&bucket_.mu_);
      upload = absl::StrCat("upload-", bucket_.next_++);
      bucket_.uploads_[upload].key = key;
    }
    EG_RETURN_IF_ERROR(End(call));
    return upload;
  }

  absl::StatusOr<UploadedPart> PutPart(const std::string& key, const std::string& upload,
                                       int number, absl::string_view bytes) override {
    {
      MutexLock lock(&bucket_.mu_);
      bucket_.parts_in_flight_max_ =
          std::max(bucket_.parts_in_flight_max_, ++bucket_.parts_in_flight_);
    }
    absl::StatusOr<UploadedPart> part = PutPartInFlight(key, upload, number, bytes);
    MutexLock lock(&bucket_.mu_);
    --bucket_.parts_in_flight_;
    return part;
  }

  absl::Status CompleteUpload(const std::string& key, const std::string& upload,
                              const std::vector<UploadedPart>& parts, PutMode mode) override {
    const StoreCall call{"CompleteUpload", key, static_cast<int>(parts.size())};
    EG_RETURN_IF_ERROR(Begin(call));
    {
      MutexLock lock(&bucket_.mu_);
      EG_RETURN_IF_ERROR(CheckAbsent(key, mode));
      const auto found = bucket_.uploads_.find(upload);
      if (found == bucket_.uploads_.end() || found->second.key != key) return NoUpload(upload);
      std::string bytes;
      int previous = 0;
      for (const UploadedPart& part : parts) {
        const auto put = found->second.parts.find(part.number);
        if (part.number <= previous || put == found->second.parts.end() ||
            put->second.etag != part.etag)
          return absl::InvalidArgumentError(absl::StrCat("wrong part: number=", part.number));
        previous = part.number;
        bytes += put->second.bytes;
      }
      if (parts.empty()) return absl::InvalidArgumentError("an upload needs a part");
      bucket_.WriteLocked(key, std::move(bytes));
      bucket_.uploads_.erase(found);
    }
    return End(call);
  }

  absl::Status AbortUpload(const std::string& key, const std::string& upload) override {
    const StoreCall call{"AbortUpload", key};
    EG_RETURN_IF_ERROR(Begin(call));
    {
      MutexLock lock(&bucket_.mu_);
      bucket_.uploads_.erase(upload);
    }
    return End(call);
  }

  absl::StatusOr<ListPage> List(const std::string& prefix, bool by_folder,
                                const std::string& token) override {
    const StoreCall call{"List", prefix};
    EG_RETURN_IF_ERROR(Begin(call));
    ListPage page;
    {
      MutexLock lock(&bucket_.mu_);
      page = PageLocked(prefix, by_folder, token);
    }
    if (bucket_.change_page) bucket_.change_page(&page);
    EG_RETURN_IF_ERROR(End(call));
    return page;
  }

  absl::Status Delete(const std::string& key) override {
    const StoreCall call{"Delete", key};
    EG_RETURN_IF_ERROR(Begin(call));
    bucket_.Erase(key);
    return End(call);
  }

  std::string UriOf(absl::string_view key) const override {
    return absl::StrCat(bucket_.options_.uri, "/", key);
  }

 private:
  absl::Status Begin(const StoreCall& call) {
    {
      MutexLock lock(&bucket_.mu_);
      bucket_.calls_.push_back(call.ToString());
    }
    return bucket_.before ? bucket_.before(call) : absl::OkStatus();
  }
  absl::Status End(const StoreCall& call) {
    return bucket_.after ? bucket_.after(call) : absl::OkStatus();
  }
  absl::Status Missing(const std::string& key) const {
    return absl::NotFoundError(absl::StrCat("no such object: uri=", UriOf(key)));
  }
  absl::Status NoUpload(const std::string& upload) const {
    return absl::NotFoundError(absl::StrCat("no such upload: upload=", upload));
  }
  absl::Status CheckAbsent(const std::string& key, PutMode mode) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(bucket_.mu_) {
    if (mode == PutMode::kReplace || !bucket_.objects_.contains(key)) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat("the object exists: uri=", UriOf(key)));
  }

  absl::StatusOr<UploadedPart> PutPartInFlight(const std::string& key, const std::string& upload,
                                               int number, absl::string_view bytes) {
    const StoreCall call{"PutPart", key, number, 0, bytes.size()};
    EG_RETURN_IF_ERROR(Begin(call));
    UploadedPart part{number, ""};
    {
      MutexLock lock(&bucket_.mu_);
      const auto found = bucket_.uploads_.find(upload);
      if (found == bucket_.uploads_.end() || found->second.key != key) return NoUpload(upload);
      part.etag = bucket_.NewEtag();
      found->second.parts[number] = {std::string(bytes), part.etag};
    }
    EG_RETURN_IF_ERROR(End(call));
    return part;
  }

  ListPage PageLocked(const std::string& prefix, bool by_folder, const std::string& token) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(bucket_.mu_) {
    ListPage page;
    std::string last;
    for (const auto& [key, object] : bucket_.objects_) {
      if (!absl::StartsWith(key, prefix)) continue;
      const std::size_t slash = by_folder ? key.find('/', prefix.size()) : std::string::npos;
      const std::string entry = key.substr(0, slash == std::string::npos ? slash : slash + 1);
      if (entry <= token || entry == last) continue;
      if (page.objects.size() + page.prefixes.size() == bucket_.options_.page_entries) {
        page.next = last;
        return page;
      }
      if (slash == std::string::npos)
        page.objects.push_back({key, object.bytes.size()});
      else
        page.prefixes.push_back(entry);
      last = entry;
    }
    return page;
  }

  MemoryBucket& bucket_;
};

std::unique_ptr<ObjectStore> MemoryBucket::Open() { return std::make_unique<MemoryStore>(this); }

std::string MemoryBucket::NewEtag() { return absl::StrCat("\"", next_++, "\""); }

void MemoryBucket::WriteLocked(const std::string& key, std::string bytes) {
  objects_[key] = {std::move(bytes), NewEtag()};
}

void MemoryBucket::Write(const std::string& key, std::string bytes) {
  MutexLock lock(&mu_);
  WriteLocked(key, std::move(bytes));
}

void MemoryBucket::Erase(const std::string& key) {
  MutexLock lock(&mu_);
  objects_.erase(key);
}

std::optional<std::string> MemoryBucket::Contents(const std::string& key) const {
  MutexLock lock(&mu_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return std::nullopt;
  return found->second.bytes;
}

std::vector<std::string> MemoryBucket::Keys() const {
  MutexLock lock(&mu_);
  std::vector<std::string> keys;
  for (const auto& [key, object] : objects_) keys.push_back(key);
  return keys;
}

std::size_t MemoryBucket::uploads() const {
  MutexLock lock(&mu_);
  return uploads_.size();
}

int MemoryBucket::parts_in_flight_max() const {
  MutexLock lock(&mu_);
  return parts_in_flight_max_;
}

std::vector<std::string> MemoryBucket::TakeCalls() {
  MutexLock lock(&mu_);
  return std::exchange(calls_, {});
}

}  // namespace evergrad::object_store
