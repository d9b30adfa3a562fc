// Reads jsonl files, with one JSON object per line in UTF-8. Members that the fields name become
// typed columns. All other members are skipped.
#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/schema/scalar.h"
#include "worker/data/file_error.h"
#include "worker/data/openers.h"
#include "worker/data/typed_dataset.h"

namespace evergrad::worker {
namespace {

using config::ValueKind;

constexpr std::size_t kLineBytesMax = 1u << 20;
constexpr int kDepthMax = 64;
constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

// The lines of a file, ending with LF or CRLF. A byte order mark at the start is skipped.
class Lines {
 public:
  explicit Lines(std::unique_ptr<DataFile> file) : file_(std::move(file)) {}

  // Reads the next line without its end, or returns false at the end of the file. The view is valid
  // until the next call. A line longer than kLineBytesMax and a damaged file are user errors.
  absl::StatusOr<bool> Next(absl::string_view* line) {
    std::size_t from = begin_;  // where the search for the line's end continues
    while (true) {
      const std::size_t end = buffer_.find('\n', from);
      const bool found = end != std::string::npos;
      if ((found ? end : buffer_.size()) - begin_ > kLineBytesMax)
        return BadRecord(file_->path(), number_ + 1,
                         absl::StrCat("the line is longer than ", kLineBytesMax, " bytes"));
      if (found || (at_end_ && begin_ < buffer_.size())) {
        *line = absl::string_view(buffer_).substr(begin_, found ? end - begin_ : end);
        begin_ = found ? end + 1 : buffer_.size();
        if (++number_ == 1 && absl::StartsWith(*line, kByteOrderMark)) line->remove_prefix(3);
        if (absl::EndsWith(*line, "\r")) line->remove_suffix(1);
        return true;
      }
      if (at_end_) return false;
      from = buffer_.size() - begin_;
      EG_ASSIGN_OR_RETURN(at_end_, file_->Refill(begin_, &buffer_));
      begin_ = 0;
    }
  }
  std::uint64_t number() const { return number_; }  // number of the last line, from 1
  const DataFile& file() const { return *file_; }

 private:
  const std::unique_ptr<DataFile> file_;
  std::string buffer_;
  std::size_t begin_ = 0;  // begin of the next line
  bool at_end_ = false;    // the buffer holds the rest of the file
  std::uint64_t number_ = 0;
};

// A JSON value that is a member or an element of a list.
struct Item {
  enum class Kind { kNull, kBoolean, kInteger, kReal, kText, kList, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double real = 0;
  std::string text;

  // Returns a description for messages, with the beginning of a text: "the text `39`".
  std::string Describe() const {
    switch (kind) {
      case Kind::kNull: return "null";
      case Kind::kBoolean: return boolean ? "true" : "false";
      case Kind::kInteger: return absl::StrCat("the number ", integer);
      case Kind::kReal: return absl::StrCat("the number ", config::FormatReal(real));
      case Kind::kText: return absl::StrCat("the text `", Quoted(text, kQuotedMax), "`");
      case Kind::kList: return "a list";
      case Kind::kObject: break;
    }
    return "an object";
  }
};

// A member that some field reads, with its value in the current line.
struct Member {
  std::string name;
  bool present = false;  // true if it is in the current line
  bool seen = false;     // true if it was in some line of the file
  Item value;            // for kList, the elements of the list
  std::vector<Item> elements;
};

// Handles the events of nlohmann-json's parser, which does not recurse. Memory is bounded by the
// length of the line. Values that no field reads are not kept. Nested values are kept only as their
// kind.
class MemberHandler {
 public:
  using Json = nlohmann::json;

  explicit MemberHandler(std::vector<Member>* members) : members_(members) {
    for (std::size_t m = 0; m < members->size(); ++m) index_[(*members)[m].name] = m;
  }

  // Parses one line into the members. Errors are InvalidArgument, without file and line.
  absl::Status Parse(absl::string_view line) {
    for (Member& member : *members_) {
      member.present = false;
      member.elements.clear();
    }
    depth_ = 0;
    current_ = nullptr;
    error_.clear();
    error_at_ = 0;
    // nlohmann-json treats a NUL as the end of its input and skips a byte order mark.
    if (line.find('\0') != absl::string_view::npos)
      return absl::InvalidArgumentError("the line has a NUL byte, which JSON does not allow");
    if (absl::StartsWith(line, kByteOrderMark))
      return absl::InvalidArgumentError(
          "a byte order mark may stand only at the start of the file");
    if (Json::sax_parse(line.data(), line.data() + line.size(), this)) return absl::OkStatus();
    if (!error_.empty()) return absl::InvalidArgumentError(error_);
    if (error_at_ > line.size())
      return absl::InvalidArgumentError("the line ends in the middle of a JSON object");
    const std::size_t at = error_at_ == 0 ? 0 : error_at_ - 1;
    return absl::InvalidArgumentError(absl::StrCat("the line is not JSON at byte ", at, ": got `",
                                                   Quoted(line.substr(at), kQuotedMax), "`"));
  }

  // ---- events of the parser; the result false stops the parser
  bool null() { return Scalar({}); }
  bool boolean(bool v) { return Scalar({.kind = Item::Kind::kBoolean, .boolean = v}); }
  bool number_integer(Json::number_integer_t v) {
    return Scalar({.kind = Item::Kind::kInteger, .integer = v});
  }
  bool number_unsigned(Json::number_unsigned_t v) {
    if (v <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return number_integer(static_cast<std::int64_t>(v));
    return number_float(static_cast<double>(v), "");
  }
  bool number_float(Json::number_float_t v, const std::string&) {
    return Scalar({.kind = Item::Kind::kReal, .real = v});
  }
  bool string(std::string& v) {
    if (current_ == nullptr && depth_ > 0) return true;
    return Scalar({.kind = Item::Kind::kText, .text = std::move(v)});
  }
  bool binary(Json::binary_t&) { return false; }  // JSON texts have no binary values
  bool start_object(std::size_t) {
    if (depth_ > 0 && !Scalar({.kind = Item::Kind::kObject})) return false;
    return Enter();
  }
  bool start_array(std::size_t) { return Scalar({.kind = Item::Kind::kList}) && Enter(); }
  bool end_object() { return Leave(); }
  bool end_array() { return Leave(); }
  bool key(std::string& name) {
    if (depth_ != 1) return true;
    const auto found = index_.find(name);
    current_ = found == index_.end() ? nullptr : &(*members_)[found->second];
    if (current_ == nullptr) return true;
    if (current_->present)
      return Fail(absl::StrCat("duplicate member `", Quoted(name, kQuotedMax), "`"));
    current_->present = current_->seen = true;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const Json::exception&) {
    error_at_ = at;
    return false;
  }

 private:
  // Handles a value. A list or an object has only begun at this point.
  bool Scalar(Item item) {
    if (depth_ == 0) return Fail(absl::StrCat("expected a JSON object, got ", item.Describe()));
    if (current_ == nullptr) return true;
    if (depth_ == 1)
      current_->value = std::move(item);
    else if (depth_ == 2 && current_->value.kind == Item::Kind::kList)
      current_->elements.push_back(std::move(item));
    return true;
  }
  bool Enter() {
    if (++depth_ <= kDepthMax) return true;
    return Fail(absl::StrCat("lists and objects are nested deeper than ", kDepthMax));
  }
  bool Leave() {
    --depth_;
    return true;
  }
  bool Fail(std::string text) {
    error_ = std::move(text);
    return false;
  }

  std::vector<Member>* const members_;
  absl::flat_hash_map<std::string, std::size_t> index_;
  int depth_ = 0;
  // The member whose value is being parsed; nullptr for a value that no field reads.
  Member* current_ = nullptr;
  std::string error_;
  std::size_t error_at_ = 0;  // number of characters read by the parser, from 1
};

// Returns the settings with which the file is read, as a text for the data fingerprint. A job's
// plan does not contain these settings.
std::string Manner(const config::SourceSpec& source) {
  return absl::StrCat("read: format=jsonl missing=`", absl::StrJoin(source.missing, "`,`"),
                      "` split=", source.split.modulo, "/", source.split.equals,
                      source.split.taken ? " taken" : "");
}

class JsonlReader {
 public:
  JsonlReader(const config::SourceSpec& source, std::unique_ptr<DataFile> file,
              TypedDatasetBuilder builder)
      : source_(source), lines_(std::move(file)), builder_(std::move(builder)) {
    absl::flat_hash_map<std::string, std::size_t> index;
    for (const auto& column : builder_.columns()) {
      std::vector<std::size_t>& reads = reads_.emplace_back();
      for (const std::string& name : column->spec().columns) {
        const auto [entry, fresh] = index.try_emplace(name, members_.size());
        if (fresh) members_.emplace_back().name = name;
        reads.push_back(entry->second);
      }
    }
  }

  absl::StatusOr<std::unique_ptr<Dataset>> Read() {
    MemberHandler handler(&members_);
    absl::string_view line;
    for (std::uint64_t row = 0;;) {
      EG_ASSIGN_OR_RETURN(const bool more, lines_.Next(&line));
      if (!more) break;
      if (line.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
      if (const absl::Status parsed = handler.Parse(line); !parsed.ok())
        return BadRecord(source_.path, lines_.number(), parsed.message());
      if (builder_.Takes(row++)) EG_RETURN_IF_ERROR(AddExample());
    }
    return builder_.End(lines_.file(), Warnings());
  }

 private:
  absl::Status AddExample() {
    for (std::size_t f = 0; f < reads_.size(); ++f) {
      TypedColumn& column = *builder_.columns()[f];
      for (const std::size_t m : reads_[f]) {
        const absl::Status added = AddMember(column, members_[m]);
        if (!added.ok())
          return builder_.BadValue(lines_.number(), Quoted(members_[m].name, kQuotedMax),
                                   column.spec(), added);
      }
    }
    return builder_.EndExample(lines_.number());
  }

  absl::Status AddMember(TypedColumn& column, const Member& member) const {
    const std::size_t size = column.spec().size;
    const bool missing = !member.present || member.value.kind == Item::Kind::kNull;
    if (missing) {
      for (std::size_t i = 0; i < column.width() / column.spec().columns.size(); ++i)
        EG_RETURN_IF_ERROR(column.AddMissing(member.present ? "null" : "no such member"));
      return absl::OkStatus();
    }
    if (size == 0) return AddItem(column, member.value);
    if (member.value.kind != Item::Kind::kList)
      return absl::InvalidArgumentError(
          absl::StrCat("expected a list of ", size, " values, got ", member.value.Describe()));
    if (member.elements.size() != size)
      return absl::InvalidArgumentError(absl::StrCat(
          "expected a list of ", size, " values, got a list of ", member.elements.size()));
    for (const Item& item : member.elements) EG_RETURN_IF_ERROR(AddItem(column, item));
    return absl::OkStatus();
  }

  absl::Status AddItem(TypedColumn& column, const Item& item) const {
    if (item.kind == Item::Kind::kNull) return column.AddMissing("null");
    if (item.kind == Item::Kind::kText && std::find(source_.missing.begin(), source_.missing.end(),
                                                    item.text) != source_.missing.end())
      return column.AddMissing(item.Describe());
    const ValueKind kind = column.reads();
    if (kind == ValueKind::kText && item.kind == Item::Kind::kText)
      return column.Add(TextValue(item.text));
    if (kind == ValueKind::kInteger && item.kind == Item::Kind::kInteger)
      return column.Add(IntegerValue(item.integer));
    if (kind == ValueKind::kReal && item.kind == Item::Kind::kInteger)
      return column.Add(RealValue(static_cast<double>(item.integer)));
    if (kind == ValueKind::kReal && item.kind == Item::Kind::kReal)
      return column.Add(RealValue(item.real));
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", ExpectedOf(kind), ", got ", item.Describe()));
  }

  // Returns a warning for each member that occurs in no line, probably because of a mistake in the
  // job file.
  std::vector<std::string> Warnings() const {
    std::vector<std::string> warnings;
    for (const Member& member : members_)
      if (!member.seen)
        warnings.push_back(absl::StrCat("no line of a jsonl file has the member `",
                                        Quoted(member.name, kQuotedMax),
                                        "`, which a field reads: file=", source_.path));
    return warnings;
  }

  const config::SourceSpec& source_;
  Lines lines_;
  TypedDatasetBuilder builder_;
  std::vector<Member> members_;                  // members that some field reads, once each
  std::vector<std::vector<std::size_t>> reads_;  // indices in `members_`, by field
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenJsonl(const config::SourceSpec& source,
                                                   const std::vector<config::FieldSpec>& fields,
                                                   const Dataset* train,
                                                   const DataOptions& options) {
  EG_ASSIGN_OR_RETURN(TypedDatasetBuilder builder,
                      TypedDatasetBuilder::Make(source, fields, train, Manner(source), options));
  EG_ASSIGN_OR_RETURN(std::unique_ptr<DataFile> file,
                      DataFile::Open(source.path, options, "a jsonl file"));
  return JsonlReader(source, std::move(file), std::move(builder)).Read();
}

}  // namespace evergrad::worker
