#include "common/object_store/store_answers.h"

#include <algorithm>
#include <pugixml.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace evergrad::object_store {
namespace {

constexpr std::size_t kQuotedMax = 100;
constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kCodeBytesMax = 64, kRegionBytesMax = 64;

absl::Status Invalid(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the XML document is not valid: ", what));
}

// A parsed document and its root.
struct Document {
  pugi::xml_document tree;
  pugi::xml_node root;
};

// pugixml expands no entity that a document defines, and its parser is not recursive. It accepts
// text before and after the root, so the first and the last character are checked here.
absl::Status Parse(absl::string_view body, Document* document) {
  if (body.size() > kAnswerBytesMax)
    return Invalid(absl::StrCat("it is too long: bytes=", body.size(), " max=", kAnswerBytesMax));
  if (absl::StrContains(body, absl::string_view("\0", 1))) return Invalid("it has a NUL byte");
  const auto tags = static_cast<std::size_t>(std::count(body.begin(), body.end(), '<'));
  if (tags > kTagsMax)
    return Invalid(absl::StrCat("it has too many tags: tags=", tags, " max=", kTagsMax));
  const absl::string_view text =
      absl::StripAsciiWhitespace(absl::StripPrefix(body, kByteOrderMark));
  if (!absl::StartsWith(text, "<")) return Invalid("it has no beginning");
  if (!absl::EndsWith(text, ">")) return Invalid("it has no end");
  const pugi::xml_parse_result parsed = document->tree.load_buffer(
      body.data(), body.size(),
      pugi::parse_default | pugi::parse_doctype | pugi::parse_ws_pcdata_single,
      pugi::encoding_utf8);
  if (!parsed) return Invalid(absl::StrCat(parsed.description(), ": offset=", parsed.offset));
  for (const pugi::xml_node child : document->tree.children()) {
    if (child.type() == pugi::node_doctype) return Invalid("it has a document type");
    if (child.type() != pugi::node_element) continue;
    if (document->root) return Invalid("it has two roots");
    document->root = child;
  }
  return document->root ? absl::OkStatus() : Invalid("it has no root");
}

absl::Status ParseWithRoot(absl::string_view body, absl::string_view root, Document* document) {
  EG_RETURN_IF_ERROR(Parse(body, document));
  if (document->root.name() == root) return absl::OkStatus();
  return Invalid(absl::StrCat("it has another root: want=", root,
                              " got=", Quoted(document->root.name(), kQuotedMax)));
}

// Returns the text of a child element, or nullopt if there is no such element, more than one, or
// one with elements inside.
std::optional<std::string> TextOf(const pugi::xml_node& parent, const char* name) {
  const pugi::xml_node node = parent.child(name);
  if (!node || node.next_sibling(name)) return std::nullopt;
  std::string text;
  for (const pugi::xml_node child : node.children()) {
    if (child.type() != pugi::node_pcdata && child.type() != pugi::node_cdata) return std::nullopt;
    text += child.value();
  }
  return text;
}

std::string TextOrEmpty(const pugi::xml_node& parent, const char* name) {
  return TextOf(parent, name).value_or("");
}

std::optional<unsigned> HexDigit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A') + 10;
  return std::nullopt;
}

// Decodes encoding-type=url. Like the encoding of HTML forms, it writes a space as '+'.
std::optional<std::string> DecodeUrl(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i] == '+' ? ' ' : text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const auto high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (!high || !low) return std::nullopt;
    out.push_back(static_cast<char>(*high * 16 + *low));
    i += 2;
  }
  return out;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = FirstCharacter(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

// The keys of one page.
struct KeyReader {
  bool is_encoded = false;
  absl::string_view prefix;

  absl::StatusOr<std::string> Read(const pugi::xml_node& parent, const char* name) const {
    std::optional<std::string> key = TextOf(parent, name);
    if (!key) return Invalid(absl::StrCat("an entry without <", name, ">"));
    if (is_encoded) key = DecodeUrl(*key);
    if (!key) return Invalid("a key with a wrong percent sign");
    if (key->empty() || key->size() > kKeyBytesMax)
      return Invalid(absl::StrCat("a key of wrong length: bytes=", key->size()));
    if (!IsUtf8(*key)) return Invalid("a key that is not UTF-8");
    if (!absl::StartsWith(*key, prefix))
      return Invalid(absl::StrCat("a key without the prefix: key=", Quoted(*key, kQuotedMax)));
    return *std::move(key);
  }
};

absl::Status ReadObjects(const pugi::xml_node& root, const KeyReader& keys, ListPage* page) {
  for (const pugi::xml_node& entry : root.children("Contents")) {
    ListedObject object;
    EG_ASSIGN_OR_RETURN(object.key, keys.Read(entry, "Key"));
    const std::string size = TextOrEmpty(entry, "Size");
    const std::optional<std::uint64_t> bytes = ParseCount(size);
    if (!bytes) {
      return Invalid(absl::StrCat("a wrong size: key=", Quoted(object.key, kQuotedMax),
                                  " size=", Quoted(size, kQuotedMax)));
    }
    object.bytes = *bytes;
    page->objects.push_back(std::move(object));
  }
  return absl::OkStatus();
}

absl::Status ReadPrefixes(const pugi::xml_node& root, const KeyReader& keys, ListPage* page) {
  for (const pugi::xml_node& entry : root.children("CommonPrefixes")) {
    EG_ASSIGN_OR_RETURN(std::string prefix, keys.Read(entry, "Prefix"));
    if (prefix.back() != '/') return Invalid("a common prefix without a slash at its end");
    page->prefixes.push_back(std::move(prefix));
  }
  return absl::OkStatus();
}

bool HasOnly(absl::string_view text, absl::string_view punctuation, bool upper_case) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return absl::ascii_islower(byte) || absl::ascii_isdigit(byte) ||
           (upper_case && absl::ascii_isupper(byte)) || absl::StrContains(punctuation, c);
  });
}

std::string CodeOrEmpty(std::string text) {
  return text.size() <= kCodeBytesMax && HasOnly(text, "._-", true) ? text : "";
}

std::string RegionOrEmpty(std::string text) {
  return text.size() <= kRegionBytesMax && HasOnly(text, "-", false) ? text : "";
}

// Returns the error below the root <Error>, or below <ErrorResponse><Error>, which some stores
// send.
StoreError ErrorBelow(pugi::xml_node root) {
  StoreError error;
  if (root.child("Error")) root = root.child("Error");
  error.code = CodeOrEmpty(TextOrEmpty(root, "Code"));
  error.message = TextOrEmpty(root, "Message");
  error.request_id = TextOrEmpty(root, "RequestId");
  error.region = RegionOrEmpty(TextOrEmpty(root, "Region"));
  error.endpoint = TextOrEmpty(root, "Endpoint");
  return error;
}

}  // namespace

std::optional<std::uint64_t> ParseCount(absl::string_view text) {
  constexpr std::size_t kDigitsMax = 18;  // fits into 63 bits
  if (text.empty() || text.size() > kDigitsMax) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return std::nullopt;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

StoreError ReadError(const http::Response& response) {
  StoreError error;
  Document document;
  if (Parse(response.body, &document).ok()) error = ErrorBelow(document.root);
  for (const absl::string_view name : {"x-amz-request-id", "x-guploader-uploadid"}) {
    const absl::string_view value = response.Find(name);
    if (!value.empty()) error.request_id = std::string(value);
  }
  const std::string region = RegionOrEmpty(std::string(response.Find("x-amz-bucket-region")));
  if (!region.empty()) error.region = region;
  return error;
}

std::optional<StoreError> ErrorInBody(absl::string_view body) {
  if (!absl::StrContains(body, "<Error")) return std::nullopt;  // a list is not parsed twice
  Document document;
  if (!ParseWithRoot(body, "Error", &document).ok()) return std::nullopt;
  return ErrorBelow(document.root);
}

absl::StatusOr<ListPage> ReadListPage(absl::string_view body, absl::string_view prefix,
                                      absl::string_view token) {
  Document document;
  EG_RETURN_IF_ERROR(ParseWithRoot(body, "ListBucketResult", &document));
  const KeyReader keys{TextOrEmpty(document.root, "EncodingType") == "url", prefix};
  ListPage page;
  EG_RETURN_IF_ERROR(ReadObjects(document.root, keys, &page));
  EG_RETURN_IF_ERROR(ReadPrefixes(document.root, keys, &page));
  const auto by_key = [](const ListedObject& a, const ListedObject& b) { return a.key < b.key; };
  // General purpose buckets are in order already; directory buckets are not.
  std::sort(page.objects.begin(), page.objects.end(), by_key);
  std::sort(page.prefixes.begin(), page.prefixes.end());

  const std::string truncated = TextOrEmpty(document.root, "IsTruncated");
  if (truncated == "false") return page;
  if (truncated != "true")
    return Invalid(absl::StrCat("a wrong <IsTruncated>: got=", Quoted(truncated, kQuotedMax)));
  page.next = TextOrEmpty(document.root, "NextContinuationToken");
  if (page.next.empty() || page.next.size() > kTokenBytesMax)
    return Invalid(absl::StrCat("a wrong token of the next page: bytes=", page.next.size()));
  if (page.next == token) return Invalid("a page that is followed by itself");
  return page;
}

absl::StatusOr<std::string> ReadUploadId(absl::string_view body) {
  Document document;
  EG_RETURN_IF_ERROR(ParseWithRoot(body, "InitiateMultipartUploadResult", &document));
  std::string id = TextOrEmpty(document.root, "UploadId");
  const bool is_printable = std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (id.empty() || id.size() > kUploadIdBytesMax || !is_printable)
    return Invalid(absl::StrCat("a wrong <UploadId>: bytes=", id.size()));
  return id;
}

absl::Status CheckCompletion(absl::string_view body) {
  Document document;
  return ParseWithRoot(body, "CompleteMultipartUploadResult", &document);
}

std::string CompletionBody(const std::vector<UploadedPart>& parts) {
  std::string body = "<CompleteMultipartUpload>";
  for (const UploadedPart& part : parts) {
    absl::StrAppend(&body, "<Part><PartNumber>", part.number, "</PartNumber><ETag>",
                    // GCS does not accept an escaped quotation mark.
                    absl::StrReplaceAll(part.etag, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}}),
                    "</ETag></Part>");
  }
  return absl::StrCat(body, "</CompleteMultipartUpload>");
}

}  // namespace evergrad::object_store
