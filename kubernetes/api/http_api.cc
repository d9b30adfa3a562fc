#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/http/client.h"
#include "common/http/header_rules.h"
#include "common/http/percent_encoding.h"
#include "common/schema/names.h"
#include "kubernetes/api/api.h"

namespace evergrad::kubernetes {
namespace {

using std::chrono::seconds;

// An object has at most 1.5 MiB. A page that is too large is requested again with fewer objects.
constexpr std::size_t kPageObjects = 50, kFewObjects = 5;
constexpr std::size_t kPageBytesMax = 12u << 20;
constexpr std::size_t kObjectBytesMax = 4u << 20;
constexpr std::size_t kPagesMax = 1000;
constexpr std::size_t kTokenBytesMax = 64u << 10;
constexpr seconds kRequestMax(10);
constexpr seconds kListMax(60);
// The server ends a watch after kWatchFor, and the client shortly later if the server does not.
constexpr seconds kWatchFor(240), kWatchMax(300);

absl::StatusOr<std::unique_ptr<http::Client>> MakeClient(const ApiOptions& options, seconds limit) {
  http::ClientOptions client;
  client.ca_file = options.ca_file;
  client.stall_timeout = limit;
  client.total_timeout = limit;
  client.interruption = options.interruption;
  return http::MakeCurlClient(std::move(client));
}

class HttpApi final : public Api {
 public:
  HttpApi(ApiOptions options, std::unique_ptr<http::Client> requests,
          std::unique_ptr<http::Client> lists, std::unique_ptr<http::Client> watches)
      : options_(std::move(options)),
        jobs_(absl::StrCat(options_.server, "/apis/evergrad.dev/v1alpha1/namespaces/",
                           http::PercentEncode(options_.name_space, false), "/trainingjobs")),
        events_(absl::StrCat(options_.server, "/api/v1/namespaces/",
                             http::PercentEncode(options_.name_space, false), "/events")),
        requests_(std::move(requests)),
        lists_(std::move(lists)),
        watches_(std::move(watches)) {}

  absl::StatusOr<JobList> List() override {
    JobList list;
    std::string next;
    for (std::size_t page = 0; page < kPagesMax; ++page) {
      EG_ASSIGN_OR_RETURN(const Json json, Page(next));
      EG_RETURN_IF_ERROR(AddPage(json, &list));
      next = TextOf(Member(json, "metadata"), "continue");
      if (next.empty()) break;
    }
    return list;
  }

  absl::Status Watch(const std::string& resource_version,
                     const WatchReader::OnEvent& on_event) override {
    WatchReader reader(on_event);
    http::Request request;
    request.method = "GET";
    request.url = absl::StrCat(jobs_, "?watch=1&allowWatchBookmarks=true&resourceVersion=",
                               http::PercentEncode(resource_version, false),
                               "&timeoutSeconds=", kWatchFor.count());
    request.receive_body = [&](absl::string_view bytes) { return reader.Add(bytes); };
    EG_RETURN_IF_ERROR(AddHeaders("", &request));
    EG_ASSIGN_OR_RETURN(const http::Response response, watches_->Send(request));
    return response.status == 200 ? absl::OkStatus() : Refused(response);
  }

  absl::StatusOr<JobObject> SetFinalizers(const JobObject& object,
                                          const std::vector<std::string>& finalizers) override {
    return Patch(object, "", {{"metadata", {{"finalizers", finalizers}}}});
  }

  absl::StatusOr<JobObject> SetStatus(const JobObject& object, const Json& status) override {
    // A merge patch keeps members that it does not name, so members that must go are named as null.
    Json change = status;
    if (object.status.is_object()) {
      for (const auto& [key, value] : object.status.items())
        if (!change.contains(key)) change[key] = nullptr;
    }
    return Patch(object, "/status", {{"status", std::move(change)}});
  }

  absl::Status CreateEvent(const Json& event) override {
    return Call(requests_.get(), "POST", events_, "application/json", Dump(event), kObjectBytesMax)
        .status();
  }

 private:
  // Texts come from users, so bytes that are not UTF-8 are replaced and do not throw.
  static std::string Dump(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  absl::StatusOr<Json> Page(const std::string& next) const {
    const std::string rest =
        next.empty() ? "" : absl::StrCat("&continue=", http::PercentEncode(next, false));
    const auto ask = [&](std::size_t objects) {
      return Exchange(lists_.get(), "GET", absl::StrCat(jobs_, "?limit=", objects, rest), "", "",
                      kPageBytesMax);
    };
    absl::StatusOr<http::Response> response = ask(kPageObjects);
    if (absl::IsResourceExhausted(response.status())) response = ask(kFewObjects);
    if (!response.ok()) return response.status();
    return ReadAnswer(*response);
  }

  static absl::Status AddPage(const Json& json, JobList* list) {
    const Json& items = Member(json, "items");
    const std::string version = TextOf(Member(json, "metadata"), "resourceVersion");
    if (!items.is_array() || version.empty())
      return absl::UnavailableError("the API server sent a list without items or resourceVersion");
    list->resource_version = version;
    for (const Json& item : items) {
      absl::StatusOr<JobObject> object = ParseJobObject(item);
      if (object.ok())
        list->objects.push_back(*std::move(object));
      else
        ++list->unreadable;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<JobObject> Patch(const JobObject& object, absl::string_view subresource,
                                  Json patch) {
    patch["metadata"]["resourceVersion"] = object.resource_version;
    EG_ASSIGN_OR_RETURN(
        const Json json,
        Call(requests_.get(), "PATCH",
             absl::StrCat(jobs_, "/", http::PercentEncode(object.name, false), subresource),
             "application/merge-patch+json", Dump(patch), kObjectBytesMax));
    absl::StatusOr<JobObject> changed = ParseJobObject(json);
    if (changed.ok()) return changed;
    return absl::UnavailableError(
        absl::StrCat("the API server sent an unreadable object: ", changed.status().message()));
  }

  absl::Status AddHeaders(absl::string_view content_type, http::Request* request) const {
    request->headers.push_back({"Accept", "application/json"});
    if (!content_type.empty())
      request->headers.push_back({"Content-Type", std::string(content_type)});
    if (options_.token_file.empty()) return absl::OkStatus();
    // The kubelet replaces the token about once an hour.
    EG_ASSIGN_OR_RETURN(const std::string text, fs::ReadFile(options_.token_file, kTokenBytesMax));
    const absl::string_view token = absl::StripAsciiWhitespace(text);
    if (token.empty() || !http::IsHeaderValue(token))
      return absl::UnauthenticatedError(
          absl::StrCat("the file has no token: file=", options_.token_file));
    request->headers.push_back({"Authorization", absl::StrCat("Bearer ", token)});
    return absl::OkStatus();
  }

  static absl::Status Refused(const http::Response& response) {
    const absl::StatusOr<Json> json = ParseJson(response.body);
    return ErrorOf(response.status, json.ok() ? *json : Json());
  }

  absl::StatusOr<Json> Call(http::Client* client, const char* method, std::string url,
                            absl::string_view content_type, const std::string& body,
                            std::size_t bytes_max) const {
    EG_ASSIGN_OR_RETURN(const http::Response response,
                        Exchange(client, method, std::move(url), content_type, body, bytes_max));
    return ReadAnswer(response);
  }

  absl::StatusOr<http::Response> Exchange(http::Client* client, const char* method, std::string url,
                                          absl::string_view content_type, const std::string& body,
                                          std::size_t bytes_max) const {
    http::Request request;
    request.method = method;
    request.url = std::move(url);
    request.body = body;
    request.response_bytes_max = bytes_max;
    EG_RETURN_IF_ERROR(AddHeaders(content_type, &request));
    return client->Send(request);
  }

  static absl::StatusOr<Json> ReadAnswer(const http::Response& response) {
    if (response.status < 200 || response.status >= 300) return Refused(response);
    absl::StatusOr<Json> json = ParseJson(response.body);
    if (json.ok()) return json;
    return absl::UnavailableError(
        absl::StrCat("the API server sent an unreadable answer: ", json.status().message()));
  }

  const ApiOptions options_;
  const std::string jobs_, events_;  // URLs
  const std::unique_ptr<http::Client> requests_, lists_, watches_;
};

absl::Status Refuse(absl::string_view text) { return UserError(absl::InvalidArgumentError(text)); }

bool IsLoopbackUrl(absl::string_view rest) {
  const absl::string_view authority = rest.substr(0, rest.find('/'));
  const std::size_t colon = authority.rfind(':');
  const absl::string_view host =
      absl::EndsWith(authority, "]") ? authority : authority.substr(0, colon);
  return host == "localhost" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == absl::string_view::npos);
}

}  // namespace

absl::Status CheckApiOptions(const ApiOptions& options) {
  if (options.server.empty())
    return Refuse(
        "--api-server is missing: give the URL of the API server, https://HOST:PORT. A pod finds "
        "it in KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT");
  absl::string_view rest = options.server;
  const bool plain = absl::ConsumePrefix(&rest, "http://");
  if (!plain && !absl::ConsumePrefix(&rest, "https://"))
    return Refuse(absl::StrCat("--api-server: expected https://HOST:PORT, got `",
                               Quoted(options.server, 100), "`"));
  if (rest.empty() || absl::StrContains(rest, '/') || absl::StrContains(rest, '?') ||
      absl::StrContains(rest, '@'))
    return Refuse("--api-server: expected https://HOST:PORT without a path or a user name");
  if (plain && !IsLoopbackUrl(rest))
    return Refuse(absl::StrCat(
        "--api-server: plain HTTP is allowed on a loopback address only (kubectl proxy), got `",
        Quoted(options.server, 100), "`; use https://"));
  if (options.name_space.empty())
    return Refuse(
        "--namespace is missing: give the namespace of the TrainingJobs. A pod finds it in "
        "/var/run/secrets/kubernetes.io/serviceaccount/namespace");
  if (!config::IsDnsLabel(options.name_space))
    return Refuse(absl::StrCat("--namespace: expected a DNS label, got `",
                               Quoted(options.name_space, 80), "`"));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Api>> MakeHttpApi(ApiOptions options) {
  if (!options.token_file.empty()) {
    const auto token = fs::ReadFile(options.token_file, kTokenBytesMax);
    if (!token.ok()) return Refuse(absl::StrCat("--api-token: ", token.status().message()));
  }
  auto first = MakeClient(options, kRequestMax);
  if (!first.ok()) return Refuse(absl::StrCat("--api-ca: ", first.status().message()));
  std::unique_ptr<http::Client> requests = *std::move(first);
  EG_ASSIGN_OR_RETURN(auto lists, MakeClient(options, kListMax));
  EG_ASSIGN_OR_RETURN(auto watches, MakeClient(options, kWatchMax));
  return std::unique_ptr<Api>(std::make_unique<HttpApi>(std::move(options), std::move(requests),
                                                        std::move(lists), std::move(watches)));
}

}  // namespace evergrad::kubernetes
