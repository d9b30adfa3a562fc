// Typed columns of a csv file, transformed and held column-wise: 8 bytes an integer, 4 a real
// number.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/data_formats/transform_type.h"
#include "common/data_formats/typed_field.h"
#include "common/random/philox.h"
#include "common/schema/scalar.h"
#include "worker/data/csv_records.h"
#include "worker/data/dataset.h"

namespace evergrad::worker {
namespace {

using config::ValueKind;

struct Value {
  ValueKind kind = ValueKind::kText;
  absl::string_view text;
  std::int64_t integer = 0;
  double real = 0;
  double number() const {
    return kind == ValueKind::kInteger ? static_cast<double>(integer) : real;
  }
};

Value Integer(std::int64_t v) { return {ValueKind::kInteger, {}, v, 0}; }
Value Real(double v) { return {ValueKind::kReal, {}, 0, v}; }

bool IsNumber(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

// Ids of what the training data has at least min_count times: 1, 2, … by descending count, then by
// text. 0 is what it has less often, or not.
using Vocabulary = absl::flat_hash_map<std::string, std::int64_t>;

// An error's words; the caller knows file, line and column. Of what stands in the file only the
// beginning is shown: whoever submits a job learns what the readers say, and the file may not be
// his.
absl::Status Wrong(absl::string_view expected, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", expected, ", got `", Quoted(text, kQuotedMax), "`"));
}

// Said of a text that would be a number without the spaces around it.
constexpr char kSpaces[] =
    "; spaces around a value are part of it: `separator: \", \"` takes them off";

absl::StatusOr<Value> Typed(ValueKind kind, absl::string_view text) {
  if (kind == ValueKind::kText) return Value{kind, text, 0, 0};
  if (kind == ValueKind::kInteger) {
    const std::optional<std::int64_t> integer = config::IntegerOf(text);
    if (integer) return Integer(*integer);
  } else if (const std::optional<double> real = config::RealOf(text)) {
    return Real(*real);
  }
  const absl::string_view bare = absl::StripAsciiWhitespace(text);
  const bool spaces = bare.size() != text.size() &&
                      (kind == ValueKind::kInteger ? config::IntegerOf(bare).has_value()
                                                   : config::RealOf(bare).has_value());
  const absl::Status wrong =
      Wrong(kind == ValueKind::kInteger ? "an integer of 64 bits" : "a finite number", text);
  return spaces ? absl::InvalidArgumentError(absl::StrCat(wrong.message(), kSpaces)) : wrong;
}

// One field of the job file, and what was read of it.
class Column {
 public:
  explicit Column(const config::FieldSpec& spec) : spec_(spec) {}

  // UserError. `vocabulary` is the training data's, where this is read beside it.
  absl::Status Prepare(const Vocabulary* vocabulary) {
    const auto kind = config::KindOfField(spec_);
    if (!kind.ok())
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("field `", spec_.name, "`: ", kind.status().message())));
    integers_ = *kind == ValueKind::kInteger;
    from_ = config::KindOf(spec_);
    const auto found = std::find_if(spec_.transforms.begin(), spec_.transforms.end(),
                                    [](const auto& t) { return t.type == "vocabulary"; });
    before_ = static_cast<std::size_t>(found - spec_.transforms.begin());
    has_vocabulary_ = found != spec_.transforms.end();
    given_ = vocabulary;
    for (const config::Transform& transform : spec_.transforms) {
      auto& entries = maps_.emplace_back();
      for (const auto& [text, number] : transform.entries) entries[text] = number;
    }
    return absl::OkStatus();
  }

  absl::Status Add(absl::string_view text, bool missing) {
    if (missing && !spec_.default_text) {
      if (!has_vocabulary_)
        return absl::InvalidArgumentError(absl::StrCat("the value is missing (`",
                                                       Quoted(text, kQuotedMax),
                                                       "`) and the field has no `default`"));
      return building() ? Hold(0) : Finish(Integer(0));
    }
    EG_ASSIGN_OR_RETURN(Value value,
                        Typed(from_, missing ? absl::string_view(*spec_.default_text) : text));
    EG_ASSIGN_OR_RETURN(value, Transformed(value, 0, before_));
    if (!has_vocabulary_) return Store(value);
    const std::string key =
        value.kind == ValueKind::kText ? std::string(value.text) : absl::StrCat(value.integer);
    if (!building()) {
      const auto found = given_->find(key);
      return Finish(Integer(found == given_->end() ? 0 : found->second));
    }
    const auto [word, fresh] =
        words_.try_emplace(key, static_cast<std::int64_t>(counts_.size()) + 1);
    if (fresh) {
      counts_.push_back(0);
      word_bytes_ += key.size() + 64;
    }
    ++counts_[static_cast<std::size_t>(word->second - 1)];
    return Hold(word->second);
  }

  // After the last record: the vocabulary is made, and every word gets its id.
  absl::Status End() {
    if (!building())
      given_ = nullptr;  // the training data may go before this
    else if (has_vocabulary_)
      return MakeVocabulary();
    return absl::OkStatus();
  }

  const config::FieldSpec& spec() const { return spec_; }
  bool integers() const { return integers_; }
  const std::vector<std::int64_t>& ints() const { return ints_; }
  const std::vector<float>& reals() const { return reals_; }
  const Vocabulary& vocabulary() const { return own_; }
  bool has_vocabulary() const { return has_vocabulary_; }
  std::uint64_t bytes() const {
    return (ints_.size() + held_.size()) * sizeof(std::int64_t) + reals_.size() * sizeof(float) +
           word_bytes_;
  }

  std::vector<std::size_t> at;  // positions in a record

 private:
  absl::Status MakeVocabulary() {
    const std::uint64_t least = spec_.transforms[before_].min_count;
    std::vector<std::pair<std::uint64_t, absl::string_view>> order;
    for (const auto& [text, word] : words_) {
      if (const std::uint64_t count = counts_[static_cast<std::size_t>(word - 1)]; count >= least)
        order.emplace_back(count, text);
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    std::vector<std::int64_t> id_of_word(counts_.size() + 1, 0);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::int64_t id = static_cast<std::int64_t>(i) + 1;
      id_of_word[static_cast<std::size_t>(words_.find(order[i].second)->second)] = id;
      own_[std::string(order[i].second)] = id;
    }
    words_ = {};
    const std::vector<std::int64_t> held = std::move(held_);
    held_ = {};
    for (const std::int64_t word : held)
      EG_RETURN_IF_ERROR(Finish(Integer(id_of_word[static_cast<std::size_t>(word)])));
    return absl::OkStatus();
  }

  bool building() const { return given_ == nullptr; }  // no vocabulary is given
  absl::Status Hold(std::int64_t word) {
    held_.push_back(word);
    return absl::OkStatus();
  }
  absl::Status Finish(Value id) {
    EG_ASSIGN_OR_RETURN(const Value value, Transformed(id, before_ + 1, spec_.transforms.size()));
    return Store(value);
  }
  absl::Status Store(const Value& value) {
    if (integers_) {
      ints_.push_back(value.integer);
      return absl::OkStatus();
    }
    const float rounded = static_cast<float>(value.number());
    if (!std::isfinite(rounded)) return absl::InvalidArgumentError("the value is beyond float32");
    reals_.push_back(rounded);
    return absl::OkStatus();
  }

  absl::StatusOr<Value> Transformed(Value value, std::size_t begin, std::size_t end) const {
    for (std::size_t t = begin; t < end; ++t) {
      const config::Transform& transform = spec_.transforms[t];
      if (transform.type == "scale") {
        value = Real(value.number() * transform.value);
      } else if (transform.type == "log1p") {
        const double x = value.number();
        value = Real(std::copysign(std::log1p(std::abs(x)), x));
      } else if (transform.type == "offset") {
        EG_ASSIGN_OR_RETURN(const ValueKind kind, config::KindAfter(transform, value.kind));
        if (kind == ValueKind::kInteger) {
          std::int64_t sum = 0;
          if (__builtin_add_overflow(value.integer, static_cast<std::int64_t>(transform.value),
                                     &sum))
            return Wrong("an integer of 64 bits after the offset", absl::StrCat(value.integer));
          value = Integer(sum);
        } else {
          value = Real(value.number() + transform.value);
        }
      } else if (transform.type == "bucketize") {
        const auto& bounds = transform.bounds;
        value = Integer(std::upper_bound(bounds.begin(), bounds.end(), value.number()) -
                        bounds.begin());
      } else if (transform.type == "hash") {
        const std::uint64_t hash = value.kind == ValueKind::kText
                                       ? random::KeyOf(0, value.text)
                                       : random::KeyOf(0, absl::StrCat(value.integer));
        value = Integer(static_cast<std::int64_t>(hash % transform.buckets));
      } else if (transform.type == "map") {
        const std::string text =
            value.kind == ValueKind::kText ? std::string(value.text) : absl::StrCat(value.integer);
        const auto found = maps_[t].find(text);
        if (found == maps_[t].end()) return Wrong("one of the texts of `map`", text);
        EG_ASSIGN_OR_RETURN(const ValueKind kind, config::KindAfter(transform, value.kind));
        value = kind == ValueKind::kInteger ? Integer(static_cast<std::int64_t>(found->second))
                                            : Real(found->second);
      }
    }
    return value;
  }

  const config::FieldSpec spec_;
  bool integers_ = false, has_vocabulary_ = false;
  ValueKind from_ = ValueKind::kText;
  std::size_t before_ = 0;  // transforms before the vocabulary; all, where there is none
  std::vector<absl::flat_hash_map<std::string, double>> maps_;  // by transform
  std::vector<std::int64_t> ints_;
  std::vector<float> reals_;
  // While a vocabulary is built: the words, numbered from 1 in order of appearance, and those of
  // every value; 0: missing.
  absl::flat_hash_map<std::string, std::int64_t> words_;
  std::vector<std::uint64_t> counts_;
  std::vector<std::int64_t> held_;
  std::uint64_t word_bytes_ = 0;
  Vocabulary own_;
  const Vocabulary* given_ = nullptr;
};

class CsvDataset final : public Dataset {
 public:
  CsvDataset(std::vector<std::unique_ptr<Column>> columns, std::uint64_t examples,
             std::string fingerprint, std::vector<std::string> warnings)
      : columns_(std::move(columns)),
        examples_(examples),
        fingerprint_(std::move(fingerprint)),
        warnings_(std::move(warnings)) {
    for (const auto& column : columns_) {
      Field& field = fields_.emplace_back();
      field.name = column->spec().name;
      field.dtype = column->integers() ? tensor::DType::kInt64 : tensor::DType::kFloat32;
      if (column->spec().list) field.shape = tensor::Shape{column->at.size()};
    }
  }
  std::uint64_t examples() const override { return examples_; }
  const std::vector<Field>& fields() const override { return fields_; }
  std::string Fingerprint() const override { return fingerprint_; }
  std::vector<std::string> Warnings() const override { return warnings_; }
  std::uint64_t bytes_held() const override {
    std::uint64_t bytes = 0;
    for (const auto& column : columns_) bytes += column->bytes();
    return bytes;
  }
  absl::Status Read(const std::vector<std::uint64_t>& indices,
                    const std::vector<std::span<std::byte>>& to) const override {
    EG_RETURN_IF_ERROR(CheckBatchBuffers(*this, indices.size(), to));
    for (const std::uint64_t index : indices) {
      if (index >= examples_)
        return absl::InvalidArgumentError(
            absl::StrCat("example out of range: examples=", examples_, " got=", index));
    }
    for (std::size_t f = 0; f < columns_.size(); ++f) {
      const Column& column = *columns_[f];
      const std::size_t width = column.at.size();
      if (column.integers())
        Gather(column.ints(), indices, width, reinterpret_cast<std::int64_t*>(to[f].data()));
      else
        Gather(column.reals(), indices, width, reinterpret_cast<float*>(to[f].data()));
    }
    return absl::OkStatus();
  }
  std::vector<FieldVocabulary> Vocabularies() const override {
    std::vector<FieldVocabulary> all;
    for (const auto& column : columns_) {
      if (!column->has_vocabulary()) continue;
      FieldVocabulary& one = all.emplace_back();
      one.field = column->spec().name;
      one.words.resize(column->vocabulary().size());
      for (const auto& [text, id] : column->vocabulary())
        one.words[static_cast<std::size_t>(id) - 1] = text;
    }
    return all;
  }
  // nullptr: no such field, or it has none.
  const Vocabulary* FindVocabulary(const std::string& field) const {
    for (const auto& column : columns_) {
      if (column->spec().name == field) return &column->vocabulary();
    }
    return nullptr;
  }

 private:
  template <typename T>
  static void Gather(const std::vector<T>& from, const std::vector<std::uint64_t>& indices,
                     std::size_t width, T* to) {
    if (width == 1) {
      for (std::size_t i = 0; i < indices.size(); ++i) to[i] = from[indices[i]];
      return;
    }
    for (const std::uint64_t index : indices)
      to = std::copy_n(from.data() + index * width, width, to);
  }

  const std::vector<std::unique_ptr<Column>> columns_;
  const std::uint64_t examples_;
  const std::string fingerprint_;
  const std::vector<std::string> warnings_;
  std::vector<Field> fields_;
};

// Why a header is taken for an example that was lost, "" where it is none. Only columns that are
// given by number say anything: a name that was found proves the header. So do numbers that count
// the columns.
std::string HeaderLooksLikeData(const config::SourceSpec& source,
                                const std::vector<std::unique_ptr<Column>>& columns,
                                const std::vector<std::string>& names) {
  std::string first;
  bool counts = true;
  for (const auto& column : columns) {
    for (std::size_t i = 0; i < column->at.size(); ++i) {
      const std::size_t at = column->at[i];
      if (!IsNumber(column->spec().columns[i])) return "";
      if (column->spec().type == "string") continue;
      const bool number = column->spec().type == "int" ? config::IntegerOf(names[at]).has_value()
                                                       : config::RealOf(names[at]).has_value();
      if (!number) return "";
      counts = counts && (names[at] == absl::StrCat(at) || names[at] == absl::StrCat(at + 1));
      if (first.empty())
        first = absl::StrCat("column ", at, " of it is `", Quoted(names[at], kQuotedMax), "`");
    }
  }
  if (first.empty() || counts) return "";
  return absl::StrCat(
      "the first record of a csv file looks like an example, and `header: true` leaves it out: "
      "file=",
      source.path, " (", first, "; write `header: false` if the file has no header)");
}

// How the file is read, where the plan's own text does not say it.
std::string Manner(const config::SourceSpec& source) {
  return absl::StrCat("read: header=", source.header ? 1 : 0, " quoting=", source.quoting ? 1 : 0,
                      " separator=`", source.separator, "` missing=`",
                      absl::StrJoin(source.missing, "`,`"), "` split=", source.split.modulo, "/",
                      source.split.equals, source.split.taken ? " taken" : "");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const config::SourceSpec& source,
                                                 const std::vector<config::FieldSpec>& fields,
                                                 const Dataset* train, const DataOptions& options) {
  const auto* const trained = dynamic_cast<const CsvDataset*>(train);
  std::vector<std::unique_ptr<Column>> columns;
  for (const config::FieldSpec& field : fields) {
    columns.push_back(std::make_unique<Column>(field));
    EG_RETURN_IF_ERROR(columns.back()->Prepare(
        trained == nullptr ? nullptr : trained->FindVocabulary(field.name)));
  }
  EG_ASSIGN_OR_RETURN(
      const std::unique_ptr<CsvRecords> records,
      CsvRecords::Open(source.path, source.separator, source.quoting, options.roots));
  const auto bad_file = [&](std::uint64_t line, absl::string_view text) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("bad record: ", source.path, ":", line, ": ", text)));
  };

  std::vector<absl::string_view> record;
  EG_ASSIGN_OR_RETURN(bool more, records->Next(&record));
  if (!more)
    return UserError(
        absl::InvalidArgumentError(absl::StrCat("data file without a record: file=", source.path)));
  const std::size_t width = record.size();
  std::vector<std::string> names;
  if (source.header)
    for (const absl::string_view name : record) names.emplace_back(name);
  for (const auto& column : columns) {
    for (const std::string& name : column->spec().columns) {
      std::uint64_t number = 0;
      const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), number);
      if (error == std::errc() && stop == name.data() + name.size()) {
        if (number >= width)
          return bad_file(records->line(),
                          absl::StrCat("field `", column->spec().name, "` is column ", number,
                                       ", the file has columns 0 to ", width - 1));
        column->at.push_back(number);
        continue;
      }
      if (!source.header) {
        return UserError(absl::InvalidArgumentError(absl::StrCat(
            "field `", column->spec().name, "` names the column `", name,
            "`, and `header: false` says that the file has no names: file=", source.path,
            " (give the column's number, from 0, or write `header: true`)")));
      }
      const auto found = std::find(names.begin(), names.end(), name);
      if (found == names.end()) {
        const std::string nearest = config::NearestName(name, names);
        return bad_file(
            records->line(),
            absl::StrCat("field `", column->spec().name, "`: the header has no column `", name, "`",
                         nearest.empty() ? ""
                                         : absl::StrCat("; did you mean `",
                                                        Quoted(nearest, kQuotedMax), "`?")));
      }
      if (std::find(found + 1, names.end(), name) != names.end())
        return bad_file(records->line(), absl::StrCat("two columns are called `", name, "`"));
      column->at.push_back(static_cast<std::size_t>(found - names.begin()));
    }
  }
  std::vector<std::string> warnings;
  if (source.header) {
    if (std::string looks = HeaderLooksLikeData(source, columns, names); !looks.empty())
      warnings.push_back(std::move(looks));
    EG_ASSIGN_OR_RETURN(more, records->Next(&record));
  }

  std::uint64_t examples = 0;
  for (std::uint64_t row = 0; more; ++row) {
    if (record.size() != width)
      return bad_file(
          records->line(),
          absl::StrCat("expected ", width, " columns as in the first record, got ", record.size()));
    const bool taken = source.split.modulo != 0 && row % source.split.modulo == source.split.equals;
    if (taken == source.split.taken || source.split.modulo == 0) {
      std::uint64_t bytes = 0;
      for (const auto& column : columns) {
        for (const std::size_t at : column->at) {
          const absl::string_view text = record[at];
          const bool missing =
              std::find(source.missing.begin(), source.missing.end(), text) != source.missing.end();
          if (const absl::Status added = column->Add(text, missing); !added.ok()) {
            const std::string name =
                names.empty() ? absl::StrCat(at) : Quoted(names[at], kQuotedMax);
            return UserError(absl::InvalidArgumentError(
                absl::StrCat("bad value: ", source.path, ":", records->line(), ":", name,
                             ": field `", column->spec().name, "`: ", added.message())));
          }
        }
        bytes += column->bytes();
      }
      if (bytes > options.bytes_max) {
        return UserError(absl::ResourceExhaustedError(
            absl::StrCat("data set too large: file=", source.path, " line=", records->line(),
                         " bytes=", bytes, " limit=", options.bytes_max)));
      }
      ++examples;
    }
    EG_ASSIGN_OR_RETURN(more, records->Next(&record));
  }
  if (examples == 0)
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("data file without an example: file=", source.path, " ", Manner(source))));
  for (const auto& column : columns) {
    if (const absl::Status ended = column->End(); !ended.ok())
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("field `", column->spec().name, "`: ", ended.message())));
  }
  EG_ASSIGN_OR_RETURN(const std::string fingerprint, records->file().Fingerprint());
  return std::unique_ptr<Dataset>(new CsvDataset(
      std::move(columns), examples, absl::StrCat("data: ", fingerprint, "\n", Manner(source)),
      std::move(warnings)));
}

}  // namespace evergrad::worker
