#include "common/object_store/http_object_store.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/object_store/condition_probe.h"
#include "common/object_store/dialect.h"
#include "common/object_store/object_answers.h"
#include "common/object_store/request_sender.h"
#include "common/object_store/store_answers.h"

namespace evergrad::object_store {
namespace {

constexpr int kPageObjectsMax = 1'000;
constexpr std::size_t kQuotedMax = 100;
// A response may be longer than the range by the length of an error, or of the rest of an object
// whose store ignores ranges.
constexpr std::uint64_t kMoreThanRangeMax = 1u << 20;

// The name of an upload between the calls of its writer: "MARK ID".
struct Upload {
  std::string mark;  // mark of the object that the upload creates
  std::string id;    // the store's id of the upload
};

std::optional<Upload> ParseUpload(absl::string_view text) {
  const std::size_t space = text.find(' ');
  if (space == absl::string_view::npos || !IsMark(text.substr(0, space))) return std::nullopt;
  Upload upload{std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
  if (upload.id.empty() || upload.id.size() > kUploadIdBytesMax) return std::nullopt;
  return upload;
}

absl::Status CheckParts(const std::vector<UploadedPart>& parts) {
  if (parts.empty() || parts.size() > static_cast<std::size_t>(kPartsMax))
    return absl::InvalidArgumentError(
        absl::StrCat("wrong number of parts: parts=", parts.size(), " max=", kPartsMax));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].number < 1 || parts[i].number > kPartsMax ||
        (i > 0 && parts[i].number <= parts[i - 1].number))
      return absl::InvalidArgumentError(
          absl::StrCat("wrong or duplicate part: number=", parts[i].number));
  }
  return absl::OkStatus();
}

// Returns an error that says that the write may have succeeded.
absl::Status UnknownOutcome(const absl::Status& cause) {
  if (absl::IsUnavailable(cause) || absl::IsCancelled(cause)) return cause;
  return absl::UnavailableError(
      absl::StrCat("the outcome of the write is unknown: ", cause.message()));
}

absl::Status StatusOfWrite(const StoreAnswer& answer) {
  const bool may_be_done = answer.may_be_done_before || absl::IsDataLoss(answer.status);
  return answer.status.ok() || !may_be_done ? answer.status : UnknownOutcome(answer.status);
}

// Returns whether the store has refused the request for a reason that is not known.
bool IsUnexplained(const StoreAnswer& answer) {
  const int status = answer.response.status;
  return status >= 400 && status < 500 && status != 404 && answer.code.empty() &&
         !absl::IsFailedPrecondition(answer.status);
}

bool IsMissingBucket(const StoreAnswer& answer) { return answer.code == "NoSuchBucket"; }

// Returns OK also if there is no such object or upload.
absl::Status StatusOfDeletion(const StoreAnswer& answer) {
  if (answer.response.status == 404 && !IsMissingBucket(answer)) return absl::OkStatus();
  return answer.status;
}

class HttpObjectStore final : public ObjectStore {
 public:
  HttpObjectStore(std::string bucket, StoreParts parts)
      : kind_(parts.kind),
        dialect_(DialectOf(parts.kind)),
        sender_(BucketAddress(parts.kind, parts.endpoint, std::move(bucket)), parts) {}

  absl::StatusOr<ObjectInfo> Head(const std::string& key) override;
  absl::StatusOr<std::string> Get(const std::string& key, std::uint64_t offset, std::uint64_t bytes,
                                  const std::string& etag) override;
  absl::Status Put(const std::string& key, absl::string_view bytes, PutMode mode) override;
  absl::StatusOr<std::string> BeginUpload(const std::string& key) override;
  absl::StatusOr<UploadedPart> PutPart(const std::string& key, const std::string& upload,
                                       int number, absl::string_view bytes) override;
  absl::Status CompleteUpload(const std::string& key, const std::string& upload,
                              const std::vector<UploadedPart>& parts, PutMode mode) override;
  absl::Status AbortUpload(const std::string& key, const std::string& upload) override;
  absl::StatusOr<ListPage> List(const std::string& prefix, bool by_folder,
                                const std::string& token) override;
  absl::Status Delete(const std::string& key) override;
  std::string UriOf(absl::string_view key) const override { return sender_.address().UriOf(key); }

 private:
  std::string NewMark();
  // Returns a request for the key, without headers.
  StoreRequest NewRequest(Operation operation, absl::string_view method,
                          const std::string& key) const;
  // Adds the header with a checksum, where the signature does not cover the body.
  void AddHash(StoreRequest* request) const;
  absl::Status RequireConditions(const std::string& key);
  // Writes an object twice. Returns the store's defect, or "" if it refused the second write.
  absl::StatusOr<std::string> ProbeConditions(const std::string& key);
  absl::Status PutMarked(const std::string& key, absl::string_view bytes, PutMode mode,
                         const std::string& mark);
  // A response to HEAD has no body, so its refusal has no code, such as SignatureDoesNotMatch. A
  // request for one byte of the object gets it. Returns `status` if it does not.
  absl::Status WithReason(const std::string& key, const absl::Status& status);
  // `asks_checksum` asks S3 for the checksum of the object.
  StoreAnswer GetRange(const std::string& key, const AskedRange& range, bool asks_checksum,
                       std::string* bytes);
  absl::StatusOr<Upload> UploadOf(const std::string& key, absl::string_view text) const;
  // Returns the key under which the parts of an upload are put together.
  std::string KeyOfParts(const std::string& key, const Upload& upload) const;
  absl::Status Complete(const std::string& key, const Upload& upload,
                        const std::vector<UploadedPart>& parts, PutMode mode);
  absl::Status CopyFromTemporary(const std::string& key, const Upload& upload, PutMode mode);
  absl::Status CompleteByCopy(const std::string& key, const Upload& upload,
                              const std::vector<UploadedPart>& parts, PutMode mode);
  // Decides about a write that was refused, perhaps because an earlier attempt has succeeded.
  // Returns OK if the object has the mark of the write.
  absl::Status ResultByMark(const std::string& key, const std::string& mark, PutMode mode,
                            const StoreAnswer& answer);
  absl::Status AlreadyExists(const std::string& key) const;

  const fs::StoreKind kind_;
  const Dialect& dialect_;
  RequestSender sender_;
  ConditionProbe probe_;
  // Whether the store has refused the header that asks for the checksum of an object, as some
  // stores do that are compatible with S3.
  std::atomic<bool> refuses_checksum_mode_{false};
};

std::string HttpObjectStore::NewMark() {
  const std::uint64_t high = sender_.RandomBits();
  return MarkOf(high, sender_.RandomBits());
}

StoreRequest HttpObjectStore::NewRequest(Operation operation, absl::string_view method,
                                         const std::string& key) const {
  StoreRequest request;
  request.operation = operation;
  request.method = std::string(method);
  request.key = key;
  return request;
}

void HttpObjectStore::AddHash(StoreRequest* request) const {
  if (dialect_.hash_header) request->headers.push_back({"x-goog-hash", GoogleHash(request->body)});
}

absl::Status HttpObjectStore::AlreadyExists(const std::string& key) const {
  return absl::AlreadyExistsError(
      absl::StrCat("there is already an object under this key: uri=", Escaped(UriOf(key)),
                   " store=", sender_.address().host()));
}

absl::StatusOr<ObjectInfo> HttpObjectStore::Head(const std::string& key) {
  StoreRequest request = NewRequest(Operation::kHead, "HEAD", key);
  // GCS then states the size of the object as it is stored, also for a compressed object. A proxy
  // of GCS changes the header, so it is not signed.
  if (kind_ == fs::StoreKind::kGcs) request.unsigned_headers = {{"accept-encoding", "gzip"}};
  ObjectInfo info;
  request.check = [&](http::Response* response) {
    absl::StatusOr<ObjectInfo> read = ReadObjectInfo(*response, kind_);
    if (read.ok()) info = *std::move(read);
    return read.status();
  };
  const StoreAnswer answer = sender_.Send(request);
  if (answer.status.ok()) return info;
  return IsUnexplained(answer) ? WithReason(key, answer.status) : answer.status;
}

absl::Status HttpObjectStore::WithReason(const std::string& key, const absl::Status& status) {
  std::string ignored;
  const StoreAnswer answer = GetRange(key, {0, 1, ""}, false, &ignored);
  return answer.code.empty() ? status : answer.status;
}

StoreAnswer HttpObjectStore::GetRange(const std::string& key, const AskedRange& range,
                                      bool asks_checksum, std::string* bytes) {
  StoreRequest request = NewRequest(Operation::kGet, "GET", key);
  request.headers.push_back({"range", absl::StrCat("bytes=", range.offset, "-", LastByte(range))});
  if (!range.etag.empty()) request.headers.push_back({"if-match", range.etag});
  // Without this header, GCS decompresses compressed objects and ignores the range.
  if (kind_ == fs::StoreKind::kGcs) request.unsigned_headers = {{"accept-encoding", "gzip"}};
  if (asks_checksum) request.headers.push_back({"x-amz-checksum-mode", "ENABLED"});
  request.response_bytes_max = static_cast<std::size_t>(range.bytes + kMoreThanRangeMax);
  request.check = [&](http::Response* response) {
    absl::StatusOr<std::string> taken = TakeRange(response, range);
    if (taken.ok()) *bytes = *std::move(taken);
    return taken.status();
  };
  return sender_.Send(request);
}

absl::StatusOr<std::string> HttpObjectStore::Get(const std::string& key, std::uint64_t offset,
                                                 std::uint64_t bytes, const std::string& etag) {
  if (bytes > kRangeBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a range is too long: bytes=", bytes, " max=", kRangeBytesMax));
  }
  if (bytes == 0 || offset > std::numeric_limits<std::int64_t>::max()) return std::string();
  const AskedRange range{offset, bytes, etag};
  std::string result;
  // Only a whole object can be compared with its checksum.
  const bool asks_checksum = kind_ == fs::StoreKind::kS3 && offset == 0 && !refuses_checksum_mode_;
  StoreAnswer answer = GetRange(key, range, asks_checksum, &result);
  if (asks_checksum && (answer.response.status == 501 || answer.code == "InvalidArgument")) {
    refuses_checksum_mode_ = true;
    answer = GetRange(key, range, false, &result);
  }
  if (answer.status.ok()) return result;
  if (answer.response.status == 416 && !IsMissingBucket(answer)) {
    EG_RETURN_IF_ERROR(CheckBeyondEnd(answer.response, range));
    return std::string();
  }
  return answer.status;
}

absl::Status HttpObjectStore::RequireConditions(const std::string& key) {
  return probe_.Require([&] { return ProbeConditions(key); });
}

absl::StatusOr<std::string> HttpObjectStore::ProbeConditions(const std::string& key) {
  const std::string mark = NewMark(), probe_key = ProbeKey(key, mark);
  const absl::string_view probe = "Evergrad tests whether the store overwrites this object.\n";
  const auto defect = [&](absl::string_view verb) {
    return absl::StrCat(
        "the store ", verb, " the condition ", dialect_.absent_name,
        ", so two writers could overwrite each other's manifest: store=", sender_.address().host());
  };
  const absl::Status first = PutMarked(probe_key, probe, PutMode::kIfAbsent, mark);
  if (absl::IsUnimplemented(first)) return defect("refuses");
  // The caller must not take this for an object under its own key.
  if (absl::IsAlreadyExists(first)) return absl::UnavailableError(first.message());
  EG_RETURN_IF_ERROR(first);
  const absl::Status second = PutMarked(probe_key, probe, PutMode::kIfAbsent, NewMark());
  // The result does not depend on the deletion: some writers may not delete.
  Delete(probe_key).IgnoreError();
  if (second.ok()) return defect("ignores");
  if (!absl::IsAlreadyExists(second)) return second;
  return std::string();
}

absl::Status HttpObjectStore::ResultByMark(const std::string& key, const std::string& mark,
                                           PutMode mode, const StoreAnswer& answer) {
  const absl::StatusOr<ObjectInfo> found = Head(key);
  if (found.ok()) {
    if (found->writer_mark == mark) return absl::OkStatus();
    return mode == PutMode::kIfAbsent ? AlreadyExists(key) : answer.status;
  }
  if (!absl::IsNotFound(found.status())) return UnknownOutcome(found.status());
  if (answer.response.status != 412) return answer.status;
  return absl::UnavailableError(
      absl::StrCat("another process deleted the object during its write: uri=", Escaped(UriOf(key)),
                   " store=", sender_.address().host()));
}

absl::Status HttpObjectStore::PutMarked(const std::string& key, absl::string_view bytes,
                                        PutMode mode, const std::string& mark) {
  StoreRequest request = NewRequest(Operation::kPut, "PUT", key);
  request.body = bytes;
  request.headers.push_back({std::string(dialect_.mark_header), mark});
  AddHash(&request);
  if (mode == PutMode::kIfAbsent) {
    request.headers.push_back(
        {std::string(dialect_.absent_header), std::string(dialect_.absent_value)});
  }
  const StoreAnswer answer = sender_.Send(request);
  if (answer.response.status != 412 || mode != PutMode::kIfAbsent) return StatusOfWrite(answer);
  // libcurl repeats a request by itself if a connection that it has used before ends without an
  // answer. The object can therefore be ours after what looks like the first attempt.
  return ResultByMark(key, mark, mode, answer);
}

absl::Status HttpObjectStore::Put(const std::string& key, absl::string_view bytes, PutMode mode) {
  if (mode == PutMode::kIfAbsent) EG_RETURN_IF_ERROR(RequireConditions(key));
  return PutMarked(key, bytes, mode, NewMark());
}

std::string HttpObjectStore::KeyOfParts(const std::string& key, const Upload& upload) const {
  return dialect_.conditional_completion ? key : TemporaryKey(key, upload.mark);
}

absl::StatusOr<Upload> HttpObjectStore::UploadOf(const std::string& key,
                                                 absl::string_view text) const {
  std::optional<Upload> upload = ParseUpload(text);
  if (upload) return *std::move(upload);
  return absl::InvalidArgumentError(absl::StrCat(
      "no upload has this name: uri=", Escaped(UriOf(key)), " upload=", Quoted(text, kQuotedMax)));
}

absl::StatusOr<std::string> HttpObjectStore::BeginUpload(const std::string& key) {
  Upload upload{NewMark(), ""};
  const std::string key_of_parts = KeyOfParts(key, upload);
  if (key_of_parts.size() > kKeyBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the key is too long for an upload in parts: uri=", Escaped(UriOf(key)),
        " bytes=", key.size(), " max=", kKeyBytesMax - (key_of_parts.size() - key.size())));
  }
  StoreRequest request = NewRequest(Operation::kBeginUpload, "POST", key_of_parts);
  request.query = {{"uploads", ""}};
  request.headers = {{std::string(dialect_.mark_header), upload.mark}};
  request.check = [&](http::Response* response) {
    absl::StatusOr<std::string> id = ReadUploadId(response->body);
    if (id.ok()) upload.id = *std::move(id);
    return id.status();
  };
  EG_RETURN_IF_ERROR(sender_.Send(request).status);
  return absl::StrCat(upload.mark, " ", upload.id);
}

absl::StatusOr<UploadedPart> HttpObjectStore::PutPart(const std::string& key,
                                                      const std::string& upload, int number,
                                                      absl::string_view bytes) {
  EG_ASSIGN_OR_RETURN(const Upload parsed, UploadOf(key, upload));
  if (number < 1 || number > kPartsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("wrong number of a part: number=", number, " max=", kPartsMax));
  }
  StoreRequest request = NewRequest(Operation::kPutPart, "PUT", KeyOfParts(key, parsed));
  request.query = {{"partNumber", absl::StrCat(number)}, {"uploadId", parsed.id}};
  request.body = bytes;
  AddHash(&request);
  UploadedPart part{number, ""};
  request.check = [&](http::Response* response) {
    const absl::string_view etag = response->Find("etag");
    if (!IsEtag(etag)) {
      return absl::DataLossError(
          absl::StrCat("a wrong header: name=etag value=", Quoted(etag, kQuotedMax)));
    }
    part.etag = std::string(etag);
    return absl::OkStatus();
  };
  EG_RETURN_IF_ERROR(sender_.Send(request).status);
  return part;
}

absl::Status HttpObjectStore::Complete(const std::string& key, const Upload& upload,
                                       const std::vector<UploadedPart>& parts, PutMode mode) {
  const std::string body = CompletionBody(parts);
  StoreRequest request = NewRequest(Operation::kCompleteUpload, "POST", key);
  request.query = {{"uploadId", upload.id}};
  request.body = body;
  if (mode == PutMode::kIfAbsent) {
    request.headers.push_back(
        {std::string(dialect_.absent_header), std::string(dialect_.absent_value)});
  }
  request.check = [](http::Response* response) { return CheckCompletion(response->body); };
  const StoreAnswer answer = sender_.Send(request);
  const bool is_gone = answer.response.status == 404 && !IsMissingBucket(answer);
  // The upload may be gone because an earlier attempt or an earlier call has completed it.
  if (is_gone || (answer.response.status == 412 && mode == PutMode::kIfAbsent))
    return ResultByMark(key, upload.mark, mode, answer);
  return StatusOfWrite(answer);
}

absl::Status HttpObjectStore::CopyFromTemporary(const std::string& key, const Upload& upload,
                                                PutMode mode) {
  StoreRequest request = NewRequest(Operation::kCopy, "PUT", key);
  request.headers = {
      {"x-goog-copy-source", sender_.address().CopySourceOf(TemporaryKey(key, upload.mark))}};
  if (mode == PutMode::kIfAbsent) {
    request.headers.push_back(
        {std::string(dialect_.absent_header), std::string(dialect_.absent_value)});
  }
  const StoreAnswer answer = sender_.Send(request);
  const bool is_gone = answer.response.status == 404 && !IsMissingBucket(answer);
  if (is_gone || (answer.response.status == 412 && mode == PutMode::kIfAbsent))
    return ResultByMark(key, upload.mark, mode, answer);
  return StatusOfWrite(answer);
}

absl::Status HttpObjectStore::CompleteByCopy(const std::string& key, const Upload& upload,
                                             const std::vector<UploadedPart>& parts, PutMode mode) {
  const std::string temporary = TemporaryKey(key, upload.mark);
  const absl::Status completed = Complete(temporary, upload, parts, PutMode::kReplace);
  if (absl::IsFailedPrecondition(completed) || absl::IsNotFound(completed)) {
    // The upload is gone: an earlier call may have made the object and deleted the temporary one.
    const absl::StatusOr<ObjectInfo> found = Head(key);
    return found.ok() && found->writer_mark == upload.mark ? absl::OkStatus() : completed;
  }
  EG_RETURN_IF_ERROR(completed);
  const absl::Status copied = CopyFromTemporary(key, upload, mode);
  // After any other error the caller may complete the upload again.
  if (copied.ok() || absl::IsAlreadyExists(copied)) Delete(temporary).IgnoreError();
  return copied;
}

absl::Status HttpObjectStore::CompleteUpload(const std::string& key, const std::string& upload,
                                             const std::vector<UploadedPart>& parts, PutMode mode) {
  EG_ASSIGN_OR_RETURN(const Upload parsed, UploadOf(key, upload));
  std::vector<UploadedPart> sorted = parts;
  std::sort(sorted.begin(), sorted.end(),
            [](const UploadedPart& a, const UploadedPart& b) { return a.number < b.number; });
  EG_RETURN_IF_ERROR(CheckParts(sorted));
  if (mode == PutMode::kIfAbsent) EG_RETURN_IF_ERROR(RequireConditions(key));
  if (dialect_.conditional_completion) return Complete(key, parsed, sorted, mode);
  return CompleteByCopy(key, parsed, sorted, mode);
}

absl::Status HttpObjectStore::AbortUpload(const std::string& key, const std::string& upload) {
  EG_ASSIGN_OR_RETURN(const Upload parsed, UploadOf(key, upload));
  const std::string key_of_parts = KeyOfParts(key, parsed);
  StoreRequest request = NewRequest(Operation::kAbortUpload, "DELETE", key_of_parts);
  request.query = {{"uploadId", parsed.id}};
  const absl::Status aborted = StatusOfDeletion(sender_.Send(request));
  // The upload may have been completed and not yet copied.
  const absl::Status deleted = key_of_parts == key ? absl::OkStatus() : Delete(key_of_parts);
  return aborted.ok() ? deleted : aborted;
}

absl::StatusOr<ListPage> HttpObjectStore::List(const std::string& prefix, bool by_folder,
                                               const std::string& token) {
  StoreRequest request = NewRequest(Operation::kList, "GET", "");
  request.query = {{"list-type", "2"}, {"max-keys", absl::StrCat(kPageObjectsMax)}};
  // The encoding protects keys that XML cannot express. GCS does not document how it encodes '+',
  // and sends such keys as they are.
  if (kind_ == fs::StoreKind::kS3) request.query.push_back({"encoding-type", "url"});
  if (!prefix.empty()) request.query.push_back({"prefix", prefix});
  if (by_folder) request.query.push_back({"delimiter", "/"});
  if (!token.empty()) request.query.push_back({"continuation-token", token});
  ListPage page;
  request.check = [&](http::Response* response) {
    absl::StatusOr<ListPage> read = ReadListPage(response->body, prefix, token);
    if (read.ok()) page = *std::move(read);
    return read.status();
  };
  const StoreAnswer answer = sender_.Send(request);
  EG_RETURN_IF_ERROR(answer.status);
  const auto internal =
      std::remove_if(page.objects.begin(), page.objects.end(),
                     [](const ListedObject& object) { return IsInternalKey(object.key); });
  page.objects.erase(internal, page.objects.end());
  return page;
}

absl::Status HttpObjectStore::Delete(const std::string& key) {
  return StatusOfDeletion(sender_.Send(NewRequest(Operation::kDelete, "DELETE", key)));
}

}  // namespace

std::unique_ptr<ObjectStore> MakeHttpObjectStore(std::string bucket, StoreParts parts) {
  return std::make_unique<HttpObjectStore>(std::move(bucket), std::move(parts));
}

}  // namespace evergrad::object_store
