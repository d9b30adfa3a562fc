#include "tests/support/fake_store/fake_store.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/object_store/object_answers.h"
#include "common/object_store/signature.h"
#include "common/object_store/time_text.h"

namespace evergrad::test {
namespace {

using object_store::PercentEncode;

bool IsHexMark(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
  });
}

// Replaces each run of 32 hexadecimal digits by its number.
std::string WithoutMarks(const std::string& line, std::map<std::string, int>* marks) {
  constexpr std::size_t kDigits = 32;
  std::string out;
  for (std::size_t i = 0; i < line.size();) {
    const std::string run = line.substr(i, kDigits);
    if (run.size() < kDigits || !IsHexMark(run)) {
      out.push_back(line[i++]);
      continue;
    }
    const auto entry = marks->emplace(run, static_cast<int>(marks->size()) + 1).first;
    absl::StrAppend(&out, "M", entry->second);
    i += kDigits;
  }
  return out;
}

// Returns the part of an authorization header after "NAME=".
std::string FieldOf(absl::string_view authorization, absl::string_view name) {
  const std::size_t begin = authorization.find(absl::StrCat(name, "="));
  if (begin == absl::string_view::npos) return "";
  absl::string_view rest = authorization.substr(begin + name.size() + 1);
  return std::string(rest.substr(0, rest.find(',')));
}

// Parses "20130524T000000Z".
std::int64_t WallMillisOf(const std::string& time) {
  if (time.size() != 16) return -1;
  return object_store::ParseTime(absl::StrCat(time.substr(0, 4), "-", time.substr(4, 2), "-",
                                              time.substr(6, 5), ":", time.substr(11, 2), ":",
                                              time.substr(13)))
      .value_or(-1);
}

void SetHeader(http::Response* response, absl::string_view name, std::string value) {
  for (http::Header& header : response->headers)
    if (header.name == name) header.value = value;
}

// Applies a fault to the answer of a request that was carried out.
void Damage(Fault fault, http::Response* response) {
  if (fault == Fault::kUnreadableBody) response->body = "<html>unreadable";
  if (fault == Fault::kShortBody && !response->body.empty()) response->body.pop_back();
  if (fault == Fault::kDamagedBody && !response->body.empty())
    response->body[0] = static_cast<char>(response->body[0] ^ 1);
  if (fault == Fault::kWrongLength)
    SetHeader(response, "content-length", absl::StrCat(response->body.size() + 1));
  if (fault == Fault::kWrongRange && response->status == 206) {
    std::uint64_t first = 0;
    const std::string range(response->Find("content-range"));
    const std::size_t dash = range.find('-');
    if (absl::SimpleAtoi(absl::string_view(range).substr(6, dash - 6), &first))
      SetHeader(response, "content-range", absl::StrCat("bytes ", first + 1, range.substr(dash)));
  }
}

// Returns the answer of a fault for which the store does nothing, or nullopt.
std::optional<http::Response> Refusal(Fault fault, absl::string_view method) {
  if (fault == Fault::kConflict && (method == "GET" || method == "HEAD")) return std::nullopt;
  switch (fault) {
    case Fault::kInternalError: return StoreError(500, "InternalError");
    case Fault::kConflict: return StoreError(409, "ConditionalRequestConflict");
    case Fault::kExpiredToken: return StoreError(400, "ExpiredToken");
    case Fault::kErrorInBody: return StoreError(200, "InternalError");
    case Fault::kSlowDown: {
      http::Response response = StoreError(503, "SlowDown");
      response.headers.push_back({"retry-after", "2"});
      return response;
    }
    default: return std::nullopt;
  }
}

}  // namespace

FakeStore::FakeStore(Options options)
    : options_(std::move(options)),
      bucket_({options_.bucket, options_.kind, options_.part_bytes_min, options_.page_entries_max,
               options_.honours_conditions, options_.honours_ranges}) {}

absl::StatusOr<http::Response> FakeStore::Send(const http::Request& request) {
  const SentRequest sent{request.method, request.url, request.headers, std::string(request.body),
                         request.response_bytes_max};
  std::size_t number = 0;
  std::function<void(std::size_t)> hook;
  {
    const MutexLock lock(&mu_);
    number = sent_.size();
    sent_.push_back(sent);
    results_.emplace_back("?");
    hook = hook_;
  }
  if (hook) hook(number);
  const MutexLock lock(&mu_);
  const Fault fault = TakeFaultLocked(number, sent);
  if (fault == Fault::kNotConnected) {
    results_[number] = "not connected";
    return absl::UnavailableError("cannot connect: method=" + request.method);
  }
  std::optional<http::Response> response = Refusal(fault, request.method);
  if (!response) response = AnswerLocked(sent);
  if (fault == Fault::kErrorAfterSuccess) response = StoreError(500, "InternalError");
  if (fault == Fault::kAnswerLost) {
    results_[number] = "lost";
    return absl::UnavailableError("the connection ended: method=" + request.method);
  }
  results_[number] = absl::StrCat(response->status);
  if (request.method == "HEAD") response->body.clear();
  response->headers.push_back(
      {IsGcs() ? "x-guploader-uploadid" : "x-amz-request-id", absl::StrCat("request-", number)});
  Damage(fault, &*response);
  if (response->body.size() > request.response_bytes_max)
    return absl::ResourceExhaustedError("the response is too large");
  return *std::move(response);
}

Fault FakeStore::TakeFaultLocked(std::size_t number, const SentRequest& request) {
  if (const auto found = faults_.find(number); found != faults_.end()) return found->second;
  for (Rule& rule : rules_) {
    if (rule.times > 0 && rule.matches(request)) {
      --rule.times;
      return rule.fault;
    }
  }
  return Fault::kNone;
}

bool FakeStore::ReadUrl(const SentRequest& request, StoreCall* call) const {
  call->request = &request;
  absl::string_view url = request.url;
  const absl::string_view endpoint = options_.endpoint.url;
  const absl::string_view scheme = endpoint.substr(0, endpoint.find("://") + 3);
  if (!absl::ConsumePrefix(&url, scheme)) return false;
  const std::size_t slash = url.find('/');
  if (slash == absl::string_view::npos) return false;
  call->host = std::string(url.substr(0, slash));
  const std::string host(endpoint.substr(scheme.size()));
  const bool in_path = options_.endpoint.bucket_in_path;
  if (call->host != (in_path ? host : absl::StrCat(options_.bucket, ".", host))) return false;
  const std::size_t question = url.find('?');
  const absl::string_view raw_path = url.substr(slash, question - slash);
  const auto path = DecodeUrl(raw_path);
  // S3 signs the path as it was sent, so the store expects its canonical form.
  if (!path || PercentEncode(*path, true) != raw_path) return false;
  call->path = *path;
  absl::string_view key = call->path;
  absl::ConsumePrefix(&key, "/");
  if (in_path) {
    if (!absl::ConsumePrefix(&key, options_.bucket)) return false;
    if (!key.empty() && !absl::ConsumePrefix(&key, "/")) return false;
  }
  call->key = std::string(key);
  if (question == absl::string_view::npos) return true;
  for (const absl::string_view pair : absl::StrSplit(url.substr(question + 1), '&')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    const auto name = DecodeUrl(parts.first), value = DecodeUrl(parts.second);
    if (!name || !value) return false;
    call->query.emplace_back(*name, *value);
  }
  return object_store::EncodeQuery(call->query) == url.substr(question + 1);
}

http::Response FakeStore::CheckSignatureLocked(const StoreCall& call) const {
  const SentRequest& request = *call.request;
  const std::string authorization = request.Find("authorization");
  if (!credentials_.bearer_token.empty()) {
    if (authorization == absl::StrCat("Bearer ", credentials_.bearer_token)) return {};
    return StoreError(401, "AuthenticationRequired");
  }
  const std::vector<std::string> credential =
      absl::StrSplit(FieldOf(authorization, "Credential"), '/');
  if (credential.size() != 5) return StoreError(403, "AccessDenied");
  if (credential[0] != credentials_.access_key_id) return StoreError(403, "InvalidAccessKeyId");
  if (request.Find("x-amz-security-token") != credentials_.session_token)
    return StoreError(400, "ExpiredToken");
  if (credential[2] != options_.endpoint.region) {
    http::Response response =
        StoreError(400, "AuthorizationHeaderMalformed",
                   absl::StrCat("<Region>", options_.endpoint.region, "</Region>"));
    response.headers.push_back({"x-amz-bucket-region", options_.endpoint.region});
    return response;
  }
  const std::string prefix = IsGcs() ? "x-goog-" : "x-amz-";
  const std::set<std::string> names = absl::StrSplit(FieldOf(authorization, "SignedHeaders"), ';');
  object_store::RequestToSign to_sign;
  to_sign.method = request.method;
  to_sign.host = call.host;
  to_sign.path = call.path;
  to_sign.query = call.query;
  to_sign.body = request.body;
  const std::set<std::string> added{"host", prefix + "date", prefix + "content-sha256",
                                    "x-amz-security-token"};
  for (const http::Header& header : request.headers) {
    const std::string name = absl::AsciiStrToLower(header.name);
    if (names.count(name) == 0) {
      if (absl::StartsWith(name, prefix)) return StoreError(403, "AccessDenied");
      continue;
    }
    if (added.count(name) == 0) to_sign.headers.push_back(header);
  }
  object_store::SigningScope scope;
  scope.kind = options_.kind;
  scope.region = options_.endpoint.region;
  scope.wall_ms = WallMillisOf(request.Find(prefix + "date"));
  for (const http::Header& header : object_store::Sign(to_sign, scope, credentials_))
    if (request.Find(header.name) != header.value) return StoreError(403, "SignatureDoesNotMatch");
  return {};
}

http::Response FakeStore::CheckHeadersLocked(const StoreCall& call) const {
  const SentRequest& request = *call.request;
  const std::string prefix = IsGcs() ? "x-goog-" : "x-amz-";
  std::set<std::string> known{"authorization", prefix + "date", prefix + "content-sha256",
                              "x-amz-security-token"};
  const bool completes = request.method == "POST" && call.Has("uploadId");
  const bool puts_part = request.method == "PUT" && call.Has("partNumber");
  const bool puts_object = request.method == "PUT" && !puts_part;
  if (request.method == "GET" && !call.key.empty()) known.insert({"range", "if-match"});
  if (request.method == "GET" || request.method == "HEAD")
    known.insert(IsGcs() ? "accept-encoding" : "x-amz-checksum-mode");
  const bool copies = request.Has("x-goog-copy-source");
  if (puts_object && !copies) known.insert(bucket_.MarkHeader());
  if (request.method == "POST" && call.Has("uploads")) known.insert(bucket_.MarkHeader());
  if (IsGcs() && puts_object) known.insert({"x-goog-if-generation-match", "x-goog-copy-source"});
  if (IsGcs() && request.method == "PUT" && !copies) known.insert("x-goog-hash");
  if (!IsGcs() && (puts_object || completes)) known.insert("if-none-match");
  for (const http::Header& header : request.headers) {
    if (known.count(absl::AsciiStrToLower(header.name)) == 0)
      return StoreError(400, "UnexpectedHeader", header.name);
  }
  if (!options_.knows_checksum_mode && request.Has("x-amz-checksum-mode"))
    return StoreError(501, "NotImplemented");
  if (known.count("x-goog-hash") != 0 &&
      request.Find("x-goog-hash") != object_store::GoogleHash(request.body))
    return StoreError(400, "BadDigest");
  return {};
}

http::Response FakeStore::AnswerLocked(const SentRequest& request) {
  StoreCall call;
  if (!ReadUrl(request, &call)) return StoreError(404, "NoSuchBucket");
  if (http::Response error = CheckSignatureLocked(call); error.status != 0) return error;
  if (http::Response error = CheckHeadersLocked(call); error.status != 0) return error;
  return bucket_.Answer(call);
}

void FakeStore::FailRequest(std::size_t number, Fault fault) {
  const MutexLock lock(&mu_);
  faults_[number] = fault;
}

void FakeStore::FailIf(Matches matches, Fault fault, int times) {
  const MutexLock lock(&mu_);
  rules_.push_back({std::move(matches), fault, times});
}

void FakeStore::ClearFaults() {
  const MutexLock lock(&mu_);
  faults_.clear();
  rules_.clear();
}

void FakeStore::SetHook(std::function<void(std::size_t)> hook) {
  const MutexLock lock(&mu_);
  hook_ = std::move(hook);
}

void FakeStore::SetCredentials(object_store::Credentials credentials) {
  const MutexLock lock(&mu_);
  credentials_ = std::move(credentials);
}

void FakeStore::PutObject(const std::string& key, Object object) {
  const MutexLock lock(&mu_);
  bucket_.PutObject(key, std::move(object));
}

void FakeStore::RemoveObject(const std::string& key) {
  const MutexLock lock(&mu_);
  bucket_.RemoveObject(key);
}

std::map<std::string, FakeStore::Object> FakeStore::objects() const {
  const MutexLock lock(&mu_);
  return bucket_.objects();
}

std::size_t FakeStore::uploads() const {
  const MutexLock lock(&mu_);
  return bucket_.uploads();
}

std::vector<SentRequest> FakeStore::sent() const {
  const MutexLock lock(&mu_);
  return sent_;
}

std::vector<std::string> FakeStore::Transcript() const {
  static const std::set<std::string> kOfSignature{"authorization",        "x-amz-date",
                                                  "x-amz-content-sha256", "x-amz-security-token",
                                                  "x-goog-date",          "x-goog-content-sha256"};
  const MutexLock lock(&mu_);
  std::map<std::string, int> marks;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    absl::string_view url = sent_[i].url;
    url.remove_prefix(url.find('/', url.find("://") + 3));
    std::string line = absl::StrCat(sent_[i].method, " ", url);
    for (const http::Header& header : sent_[i].headers) {
      if (kOfSignature.count(absl::AsciiStrToLower(header.name)) == 0)
        absl::StrAppend(&line, " ", header.name, "=", header.value);
    }
    if (!sent_[i].body.empty()) absl::StrAppend(&line, " body=", sent_[i].body.size());
    absl::StrAppend(&line, " -> ", results_[i]);
    lines.push_back(WithoutMarks(line, &marks));
  }
  return lines;
}

}  // namespace evergrad::test
