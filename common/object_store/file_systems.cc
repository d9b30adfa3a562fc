#include "common/object_store/file_systems.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/fs/object_uri.h"
#include "common/http/client.h"
#include "common/object_store/endpoint_settings.h"
#include "common/object_store/http_object_store.h"
#include "common/object_store/object_files.h"
#include "common/object_store/store_metrics.h"

namespace evergrad::object_store {
namespace {

constexpr std::uint64_t kCaFileBytesMax = 16u << 20;

// Opens the stores of buckets. All buckets share one HTTP client, and the buckets of one kind share
// the credentials. Nothing is made before the first bucket. Not thread-safe.
class Stores {
 public:
  // `interruption` outlives the object.
  Stores(FileSystemParts parts, http::Interruption* interruption)
      : parts_(std::move(parts)), interruption_(interruption) {
    // The metrics of stores are shown from the start, so that an alert sees them rise from 0.
    const StoreMetrics shown(parts_.registry);
  }

  absl::StatusOr<std::unique_ptr<ObjectStore>> Open(fs::StoreKind kind, const std::string& bucket) {
    EG_CHECK(parts_.clock != nullptr);
    StoreParts store;
    store.kind = kind;
    EG_ASSIGN_OR_RETURN(store.endpoint, EndpointOf(kind, bucket, parts_.store, parts_.variables));
    if (client_ == nullptr) {
      EG_ASSIGN_OR_RETURN(client_, http::MakeCurlClient({.ca_file = parts_.store.ca_file,
                                                         .interruption = interruption_}));
    }
    auto& credentials = kind == fs::StoreKind::kS3 ? s3_credentials_ : gcs_credentials_;
    if (credentials == nullptr) credentials = MakeCredentials(kind);
    store.client = client_.get();
    store.credentials = credentials.get();
    store.interruption = interruption_;
    store.clock = parts_.clock;
    store.registry = parts_.registry;
    return MakeHttpObjectStore(bucket, store);
  }

 private:
  std::unique_ptr<CredentialSource> MakeCredentials(fs::StoreKind kind) {
    CredentialOptions options;
    options.variables = parts_.variables;
    options.from_metadata = parts_.store.from_metadata;
    options.client = client_.get();
    options.clock = parts_.clock;
    if (kind == fs::StoreKind::kGcs) return MakeGcsCredentials(std::move(options));
    if (!parts_.store.s3_region.empty()) {
      // The token service of AWS is in the same region as the store.
      options.variables = [variables = parts_.variables, region = parts_.store.s3_region](
                              const std::string& name) -> std::optional<std::string> {
        if (name == "AWS_REGION") return region;
        return variables ? variables(name) : std::nullopt;
      };
    }
    return MakeS3Credentials(std::move(options));
  }

  const FileSystemParts parts_;
  http::Interruption* const interruption_;
  std::unique_ptr<http::Client> client_;
  std::unique_ptr<CredentialSource> s3_credentials_, gcs_credentials_;  // they use client_
};

// Chooses the file system by the scheme of the URI.
class FilesByScheme final : public fs::FileSystem {
 public:
  explicit FilesByScheme(FileSystemParts parts)
      : stores_(parts, parts.interruption != nullptr ? parts.interruption : &own_interruption_),
        local_(fs::MakeLocalFileSystem(parts.local)) {
    ObjectFileOptions options;
    options.failpoints = parts.local.failpoints;
    options.roots = parts.local.roots;
    objects_ = MakeObjectFileSystem(
        [this](fs::StoreKind kind, const std::string& bucket) {
          return stores_.Open(kind, bucket);
        },
        options);
  }
  ~FilesByScheme() override { own_interruption_.Interrupt(); }

  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(fs::FileSystem* const files, FilesOf(uri));
    return files->Create(uri);
  }
  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Replace(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(fs::FileSystem* const files, FilesOf(uri));
    return files->Replace(uri);
  }
  absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(fs::FileSystem* const files, FilesOf(uri));
    return files->Open(uri);
  }
  absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(fs::FileSystem* const files, FilesOf(uri));
    return files->List(uri);
  }
  absl::Status Remove(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(fs::FileSystem* const files, FilesOf(uri));
    return files->Remove(uri);
  }
  absl::StatusOr<bool> Exists(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(fs::FileSystem* const files, FilesOf(uri));
    return files->Exists(uri);
  }
  absl::Status MakeFolders(absl::string_view uri) override {
    EG_ASSIGN_OR_RETURN(fs::FileSystem* const files, FilesOf(uri));
    return files->MakeFolders(uri);
  }

 private:
  absl::StatusOr<fs::FileSystem*> FilesOf(absl::string_view uri) {
    EG_RETURN_IF_ERROR(fs::CheckUri(uri));
    return fs::IsObjectUri(uri) ? objects_.get() : local_.get();
  }

  http::Interruption own_interruption_;
  Stores stores_;
  const std::unique_ptr<fs::FileSystem> local_;
  std::unique_ptr<fs::FileSystem> objects_;  // destroyed before the connections of its stores
};

}  // namespace

void AddStoreOptions(daemon::OptionTable* table, StoreOptions* options) {
  table->Add("s3_endpoint", &options->s3_endpoint,
             "URL of the service for s3:// URIs, for example https://storage.example.org:9000. The "
             "URL has no path, and http:// is accepted for loopback addresses only. Empty means "
             "the environment variable AWS_ENDPOINT_URL_S3, then AWS_ENDPOINT_URL, then "
             "https://s3.REGION.amazonaws.com");
  table->Add("s3_region", &options->s3_region,
             "region of the service for s3:// URIs, which each signature contains. Empty means the "
             "environment variable AWS_REGION, then AWS_DEFAULT_REGION, then us-east-1");
  table->AddChoice("s3_addressing", &options->s3_addressing, {"auto", "path", "virtual"},
                   "place of the bucket in the URLs of requests for s3:// URIs. With path the "
                   "bucket follows the host, and with virtual it is a part of the host's name. "
                   "auto means path if --s3-endpoint or its environment variables name a service, "
                   "or if the bucket's name has a dot, and virtual otherwise");
  table->Add("gcs_endpoint", &options->gcs_endpoint,
             "URL of the service for gs:// URIs, in the same form as --s3-endpoint. Empty means "
             "https://storage.googleapis.com");
  table->Add("store_ca", &options->ca_file,
             "PEM file of the authorities that sign the certificates of object stores. Empty means "
             "the authorities of the operating system");
  table->Add("store_metadata_credentials", &options->from_metadata,
             "ask the metadata service of this machine for credentials of object stores, if "
             "neither the environment nor the files of this user have any. Without this flag the "
             "metadata service is not contacted");
}

absl::Status CheckStoreOptions(const StoreOptions& options) {
  // The variables are checked at the first use of a bucket, because a process without object URIs
  // does not need them.
  EG_RETURN_IF_ERROR(EndpointOf(fs::StoreKind::kS3, "", options, Variables()).status());
  EG_RETURN_IF_ERROR(EndpointOf(fs::StoreKind::kGcs, "", options, Variables()).status());
  const std::string& addressing = options.s3_addressing;
  if (addressing != "auto" && addressing != "path" && addressing != "virtual") {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("--s3-addressing: expected auto, path or virtual: got=`", addressing, "`")));
  }
  if (options.ca_file.empty()) return absl::OkStatus();
  const absl::Status read = fs::ReadFile(options.ca_file, kCaFileBytesMax).status();
  if (read.ok()) return read;
  return UserError(absl::Status(read.code(), absl::StrCat("--store-ca: ", read.message())));
}

std::unique_ptr<fs::FileSystem> MakeFileSystem(FileSystemParts parts) {
  return std::make_unique<FilesByScheme>(std::move(parts));
}

}  // namespace evergrad::object_store
