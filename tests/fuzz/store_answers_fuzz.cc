// The input is one byte that selects a parser, and the bytes of an answer of an object store or of
// a service for credentials. For the headers of an object, the bytes are pieces, the names and
// values of headers in turn.
//
// Property: a page that is read has only keys and folders below the prefix of the request, and does
// not name itself as its successor. An id of an upload has printable characters. The bytes of a
// range are at most the bytes that were asked for.
#include <utility>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/object_store/credential_answers.h"
#include "common/object_store/object_answers.h"
#include "common/object_store/store_answers.h"
#include "tests/fuzz/input.h"

namespace evergrad::object_store {
namespace {

void CheckPage(absl::string_view body) {
  const std::string prefix = "jobs/", token = "page2";
  const auto page = ReadListPage(body, prefix, token);
  if (!page.ok()) return;
  EG_CHECK(page->next != token);
  for (const ListedObject& object : page->objects) EG_CHECK(absl::StartsWith(object.key, prefix));
  for (const std::string& folder : page->prefixes) {
    EG_CHECK(absl::StartsWith(folder, prefix));
    EG_CHECK(absl::EndsWith(folder, "/"));
  }
}

void CheckUpload(absl::string_view body) {
  const auto id = ReadUploadId(body);
  if (!id.ok()) return;
  EG_CHECK(!id->empty() && id->size() <= kUploadIdBytesMax);
  for (const char c : *id) EG_CHECK(c > ' ' && c < '\x7f');
}

http::Response ResponseOf(fuzz::Input& input) {
  http::Response response;
  response.status = 200 + static_cast<int>(input.Number());
  for (std::size_t i = input.Choice(8); i > 0; --i) {
    std::string name(input.Piece());
    response.headers.push_back({std::move(name), std::string(input.Piece())});
  }
  response.body = std::string(input.Rest());
  return response;
}

void CheckObject(fuzz::Input& input) {
  AskedRange range;
  range.offset = input.Number();
  range.bytes = 1 + std::uint64_t{input.Number()};
  if (input.Choice(2) == 1) range.etag = "\"tag\"";
  http::Response response = ResponseOf(input);
  (void)ReadError(response);
  (void)CheckBeyondEnd(response, range);
  for (const fs::StoreKind kind : {fs::StoreKind::kS3, fs::StoreKind::kGcs})
    (void)ReadObjectInfo(response, kind);
  const auto bytes = TakeRange(&response, range);
  if (bytes.ok()) EG_CHECK(bytes->size() <= range.bytes);
}

}  // namespace
}  // namespace evergrad::object_store

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace evergrad::object_store;
  evergrad::fuzz::Input input(data, size);
  const std::size_t parser = input.Choice(9);
  if (parser == 0) {
    CheckObject(input);
    return 0;
  }
  const absl::string_view body = input.Rest();
  switch (parser) {
    case 1: CheckPage(body); break;
    case 2: CheckUpload(body); break;
    case 3: (void)CheckCompletion(body); break;
    case 4: (void)ErrorInBody(body); break;
    case 5: (void)ParseAwsAnswer(body, "fuzz"); break;
    case 6: (void)ParseStsAnswer(body, "fuzz"); break;
    case 7: (void)ParseTokenAnswer(body, "fuzz", 0); break;
    default: (void)ParseImpersonationAnswer(body, "fuzz"); break;
  }
  return 0;
}
