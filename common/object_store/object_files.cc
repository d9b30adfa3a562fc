#include "common/object_store/object_files.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/escape.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/object_store/io_threads.h"
#include "common/object_store/object_reader.h"
#include "common/object_store/object_writer.h"
#include "common/object_store/path_error.h"

namespace evergrad::object_store {
namespace {

using fs::FileError;

// A listing ends after this many pages, so that a store cannot occupy the caller forever.
constexpr int kPagesMax = 100'000;
constexpr std::size_t kQuotedMax = 200;  // characters of a text of the store in a message

// A file or folder of a URI.
struct Place {
  ObjectStore* store = nullptr;
  std::string key;   // "" for the bucket
  std::string path;  // normalized URI
  std::string prefix() const { return key.empty() ? "" : absl::StrCat(key, "/"); }
};

// Returns whether a name belongs to an object that is not the user's.
bool IsHidden(absl::string_view name) {
  return absl::StrContains(name, ".evergrad-probe-") || absl::StrContains(name, ".evergrad-part-");
}

absl::Status NoFileName(absl::string_view path) {
  return absl::InvalidArgumentError(
      absl::StrCat("the path does not end in a file name: path=", path));
}

// Checks that a page has only direct children of the folder. The store is not trusted.
absl::Status CheckPage(const ListPage& page, absl::string_view prefix, absl::string_view token) {
  const auto wrong = [&](absl::string_view what, absl::string_view got) {
    return absl::DataLossError(absl::StrCat("the store returned a wrong listing: ", what,
                                            ": prefix=", prefix, " got=", Quoted(got, kQuotedMax)));
  };
  for (const ListedObject& object : page.objects) {
    absl::string_view name = object.key;
    if (!absl::ConsumePrefix(&name, prefix) || absl::StrContains(name, "/"))
      return wrong("the key is not in the folder", object.key);
  }
  for (const std::string& folder : page.prefixes) {
    absl::string_view name = folder;
    if (!absl::ConsumePrefix(&name, prefix) || !absl::ConsumeSuffix(&name, "/") ||
        absl::StrContains(name, "/"))
      return wrong("the prefix is not in the folder", folder);
  }
  if (!page.next.empty() && page.next == token) return wrong("the same page follows", page.next);
  return absl::OkStatus();
}

// Calls `use` with each page of a folder, until `use` returns false.
absl::Status ForEachPage(const Place& folder, const std::function<bool(const ListPage&)>& use) {
  const std::string prefix = folder.prefix();
  std::string token;
  for (int pages = 0; pages < kPagesMax; ++pages) {
    const absl::StatusOr<ListPage> page = folder.store->List(prefix, /*by_folder=*/true, token);
    absl::Status status = page.ok() ? CheckPage(*page, prefix, token) : page.status();
    if (!status.ok()) return PathError("cannot list folder", folder.path, status);
    if (!use(*page) || page->next.empty()) return absl::OkStatus();
    token = page->next;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "too many pages in the listing of a folder: path=", folder.path, " max=", kPagesMax));
}

struct FolderContents {
  bool marker = false;  // the object with which MakeFolders makes a folder
  bool entries = false;
  bool exists() const { return marker || entries; }
};

// Returns the contents of the folder at `place`. This takes one request, with rare exceptions.
absl::StatusOr<FolderContents> ContentsOf(const Place& place) {
  const std::string marker = place.prefix();
  FolderContents contents;
  EG_RETURN_IF_ERROR(ForEachPage(place, [&](const ListPage& page) {
    contents.entries = !page.prefixes.empty();
    for (const ListedObject& object : page.objects)
      (object.key == marker ? contents.marker : contents.entries) = true;
    return !contents.entries;
  }));
  return contents;
}

class ObjectFileSystem final : public fs::FileSystem {
 public:
  ObjectFileSystem(OpenBucket open, ObjectFileOptions options)
      : options_(options), open_(std::move(open)), threads_(options.uploads) {
    EG_CHECK(options_.part_bytes > 0 && options_.uploads > 0 && options_.read_bytes > 0);
  }

  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const Place place, Find(uri));
    if (absl::EndsWith(uri, "/") || place.key.empty() || IsHidden(fs::NameOf(place.key)))
      return NoFileName(place.path);
    // Commit decides whether the name is free. These requests only spare the caller a long write.
    EG_ASSIGN_OR_RETURN(const bool is_file, IsFile(place));
    if (is_file) return FileError(EEXIST, "cannot create file", place.path);
    EG_ASSIGN_OR_RETURN(const FolderContents contents, ContentsOf(place));
    if (contents.exists()) return FileError(EEXIST, "cannot create file", place.path);
    return WriterOf(place, PutMode::kIfAbsent);
  }

  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Replace(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const Place place, Find(uri));
    if (absl::EndsWith(uri, "/") || place.key.empty() || IsHidden(fs::NameOf(place.key)))
      return NoFileName(place.path);
    EG_ASSIGN_OR_RETURN(const bool is_file, IsFile(place));
    if (!is_file) {
      EG_ASSIGN_OR_RETURN(const FolderContents contents, ContentsOf(place));
      if (contents.exists()) return FileError(EISDIR, "cannot create file", place.path);
    }
    return WriterOf(place, PutMode::kReplace);
  }

  absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const Place place, Find(uri));
    if (place.key.empty()) return FileError(EISDIR, "cannot open file", place.path);
    const absl::StatusOr<ObjectInfo> info = place.store->Head(place.key);
    if (absl::IsNotFound(info.status())) {
      EG_ASSIGN_OR_RETURN(const FolderContents contents, ContentsOf(place));
      return FileError(contents.exists() ? EISDIR : ENOENT, "cannot open file", place.path);
    }
    if (!info.ok()) return PathError("cannot open file", place.path, info.status());
    if (info->etag.empty())
      return absl::DataLossError(absl::StrCat(
          "cannot open file: the store returned no version of the object: path=", place.path));
    return MakeObjectReader({.store = place.store,
                             .threads = &threads_,
                             .path = place.path,
                             .key = place.key,
                             .info = *info,
                             .read_bytes = options_.read_bytes,
                             .requests = options_.uploads});
  }

  absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const Place place, Find(uri));
    const std::string prefix = place.prefix();
    std::vector<fs::ListedFile> list;
    bool exists = place.key.empty();
    const auto add = [&](absl::string_view key, std::uint64_t bytes, bool is_folder) {
      const absl::string_view name =
          absl::StripSuffix(absl::StripPrefix(key, prefix), is_folder ? "/" : "");
      // A marker, or a key that no URI can name.
      if (name.empty() || !fs::ParseObjectUri(fs::JoinUri(place.path, name)).ok()) return;
      if (is_folder || !IsHidden(name)) list.push_back({std::string(name), bytes, is_folder});
    };
    EG_RETURN_IF_ERROR(ForEachPage(place, [&](const ListPage& page) {
      for (const ListedObject& object : page.objects) add(object.key, object.bytes, false);
      for (const std::string& folder : page.prefixes) add(folder, 0, true);
      exists = exists || !page.objects.empty() || !page.prefixes.empty();
      return list.size() <= fs::kListEntriesMax;
    }));
    if (list.size() > fs::kListEntriesMax)
      return absl::ResourceExhaustedError(absl::StrCat(
          "too many files in a folder: path=", place.path, " max=", fs::kListEntriesMax));
    if (!exists) {
      EG_ASSIGN_OR_RETURN(const bool is_file, IsFile(place));
      return FileError(is_file ? ENOTDIR : ENOENT, "cannot list folder", place.path);
    }
    std::sort(list.begin(), list.end(), [](const fs::ListedFile& a, const fs::ListedFile& b) {
      return std::tie(a.name, a.is_folder) < std::tie(b.name, b.is_folder);
    });
    return list;
  }

  absl::Status Remove(absl::string_view uri) override {
    EG_RETURN_IF_ERROR(At("fs.remove"));
    EG_ASSIGN_OR_RETURN(const Place place, Find(uri));
    if (place.key.empty())
      return absl::FailedPreconditionError(
          absl::StrCat("cannot remove: the path is a whole bucket: path=", place.path));
    EG_ASSIGN_OR_RETURN(const bool is_file, IsFile(place));
    std::string key = place.key;
    if (!is_file) {
      EG_ASSIGN_OR_RETURN(const FolderContents contents, ContentsOf(place));
      if (contents.entries || !contents.marker)
        return FileError(contents.entries ? ENOTEMPTY : ENOENT, "cannot remove", place.path);
      key = place.prefix();
    }
    if (const absl::Status status = place.store->Delete(key); !status.ok())
      return PathError("cannot remove", place.path, status);
    return At("fs.sync_folder");
  }

  absl::StatusOr<bool> Exists(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const Place place, Find(uri));
    if (!place.key.empty()) {
      EG_ASSIGN_OR_RETURN(const bool is_file, IsFile(place));
      if (is_file) return true;
    }
    EG_ASSIGN_OR_RETURN(const FolderContents contents, ContentsOf(place));
    return place.key.empty() || contents.exists();
  }

  absl::Status MakeFolders(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(const Place place, Find(uri));
    if (place.key.empty()) return absl::OkStatus();
    EG_ASSIGN_OR_RETURN(const bool is_file, IsFile(place));
    if (is_file) return FileError(ENOTDIR, "cannot make folder", place.path);
    const std::string marker = place.prefix();
    const absl::Status exists = place.store->Head(marker).status();
    if (exists.ok()) return exists;
    const absl::Status made =
        absl::IsNotFound(exists) ? place.store->Put(marker, "", PutMode::kReplace) : exists;
    return made.ok() ? made : PathError("cannot make folder", place.path, made);
  }

 private:
  std::unique_ptr<fs::WritableFile> WriterOf(const Place& place, PutMode mode) {
    return MakeObjectWriter({.store = place.store,
                             .threads = &threads_,
                             .failpoints = options_.failpoints,
                             .path = place.path,
                             .key = place.key,
                             .mode = mode,
                             .part_bytes = options_.part_bytes,
                             .uploads = options_.uploads});
  }
  absl::Status At(absl::string_view failpoint) const {
    return options_.failpoints == nullptr ? absl::OkStatus()
                                          : options_.failpoints->ErrorAt(failpoint);
  }

  absl::StatusOr<Place> Find(absl::string_view uri) {
    if (!fs::IsObjectUri(uri)) {
      const std::size_t colon = uri.find("://");
      return absl::UnimplementedError(absl::StrCat(
          "unsupported URI scheme: scheme=",
          colon == absl::string_view::npos ? "file" : Quoted(uri.substr(0, colon), kQuotedMax),
          " uri=", Quoted(uri, kQuotedMax), " supported=s3,gs"));
    }
    EG_ASSIGN_OR_RETURN(const fs::ObjectUri object, fs::ParseObjectUri(uri));
    Place place{nullptr, object.key, fs::ToString(object)};
    if (options_.roots != nullptr && !options_.roots->Names(place.path))
      return options_.roots->Refusal("a checkpoint's file", place.path);
    EG_ASSIGN_OR_RETURN(place.store, StoreOf(object));
    return place;
  }

  absl::StatusOr<ObjectStore*> StoreOf(const fs::ObjectUri& object) {
    // The lock is held during the call, so that each bucket is opened once. The call does no I/O.
    MutexLock lock(&mu_);
    std::pair bucket(object.kind, object.bucket);
    if (const auto found = stores_.find(bucket); found != stores_.end()) return found->second.get();
    EG_ASSIGN_OR_RETURN(std::unique_ptr<ObjectStore> store, open_(object.kind, object.bucket));
    return stores_.emplace(std::move(bucket), std::move(store)).first->second.get();
  }

  absl::StatusOr<bool> IsFile(const Place& place) const {
    const absl::Status status = place.store->Head(place.key).status();
    if (status.ok()) return true;
    if (absl::IsNotFound(status)) return false;
    return PathError("cannot stat", place.path, status);
  }

  const ObjectFileOptions options_;
  Mutex mu_;
  const OpenBucket open_;  // called under mu_
  std::map<std::pair<fs::StoreKind, std::string>, std::unique_ptr<ObjectStore>> stores_
      ABSL_GUARDED_BY(mu_);
  IoThreads threads_;  // destroyed first, because its tasks use the stores
};

}  // namespace

std::unique_ptr<fs::FileSystem> MakeObjectFileSystem(OpenBucket open, ObjectFileOptions options) {
  return std::make_unique<ObjectFileSystem>(std::move(open), options);
}

}  // namespace evergrad::object_store
