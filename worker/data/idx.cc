// Reads IDX files, the format of MNIST and similar data sets. A file has the bytes `00 00 type
// rank`, then `rank` big-endian dimensions of 32 bits, then the elements.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "worker/data/data_file.h"
#include "worker/data/openers.h"
#include "worker/data/transforms.h"

namespace evergrad::worker {
namespace {

constexpr std::uint32_t kUnsignedByte = 0x08;
// Deflate cannot compress better than 1032 to 1, so a header that claims more is wrong.
constexpr std::uint64_t kDeflateRatioMax = 1032;

absl::Status Bad(absl::string_view words, const std::string& path, absl::string_view values) {
  return UserError(absl::InvalidArgumentError(absl::StrCat(words, ": file=", path, " ", values)));
}

// Reads the next `bytes` bytes of `file`; `what` describes them in errors.
absl::Status ReadAll(DataFile& file, void* to, std::uint64_t bytes, absl::string_view what) {
  const std::uint64_t begin = file.offset();
  EG_ASSIGN_OR_RETURN(const std::size_t got, file.Read(to, bytes));
  if (got == bytes) return absl::OkStatus();
  return Bad("file too short", file.path(),
             absl::StrCat("offset=", file.offset(), " want=", bytes, " bytes of ", what,
                          " from offset ", begin, " got=", got));
}
// Checks that the file ends here. The check also reads the rest of the compressed data.
absl::Status ExpectEnd(DataFile& file) {
  char extra;
  const std::uint64_t end = file.offset();
  EG_ASSIGN_OR_RETURN(const std::size_t got, file.Read(&extra, 1));
  return got == 0 ? absl::OkStatus()
                  : Bad("file longer than its header states", file.path(),
                        absl::StrCat("offset=", end, " want=end of file"));
}
// Returns whether the file can hold `bytes` decompressed bytes at all.
bool CanHold(const DataFile& file, std::uint64_t bytes) {
  return file.packed() ? bytes / kDeflateRatioMax <= file.stored_bytes()
                       : bytes <= file.stored_bytes();
}

struct Header {
  std::vector<std::uint64_t> dims;
};

std::uint32_t BigEndian(const unsigned char* b) {
  return static_cast<std::uint32_t>(b[0]) << 24 | static_cast<std::uint32_t>(b[1]) << 16 |
         static_cast<std::uint32_t>(b[2]) << 8 | b[3];
}

// Reads and checks the header. `rank_min` and `rank_max` are the limits of the rank.
absl::StatusOr<Header> ReadHeader(DataFile& file, int rank_min, int rank_max,
                                  absl::string_view want) {
  std::array<unsigned char, 4> raw{};
  EG_RETURN_IF_ERROR(ReadAll(file, raw.data(), raw.size(), "magic number"));
  const std::uint32_t magic = BigEndian(raw.data());
  const int rank = static_cast<int>(magic & 0xff);
  if (magic >> 16 != 0 || (magic >> 8 & 0xff) != kUnsignedByte || rank < rank_min ||
      rank > rank_max) {
    return Bad("wrong magic number", file.path(),
               absl::StrFormat("offset=0 want=%s got=0x%08x", want, magic));
  }
  Header header;
  for (int i = 0; i < rank; ++i) {
    const std::uint64_t at = file.offset();
    EG_RETURN_IF_ERROR(ReadAll(file, raw.data(), raw.size(), absl::StrCat("dimension ", i)));
    header.dims.push_back(BigEndian(raw.data()));
    if (header.dims.back() == 0)
      return Bad("a dimension is zero", file.path(),
                 absl::StrCat("offset=", at, " dimension=", i, " want=1 or more"));
  }
  return header;
}

absl::StatusOr<std::vector<std::uint8_t>> ReadElements(DataFile& file, const Header& header,
                                                       std::uint64_t bytes_max) {
  const auto bytes = CheckedProduct(header.dims);
  if (!bytes || *bytes > bytes_max) {
    return UserError(absl::ResourceExhaustedError(
        absl::StrCat("data set too large: file=", file.path(), " offset=4 shape=",
                     tensor::Shape(header.dims).ToString(), " limit=", bytes_max, " bytes")));
  }
  if (!CanHold(file, *bytes)) {
    return Bad("file too short", file.path(),
               absl::StrCat("offset=4 want=", *bytes,
                            " bytes of elements according to the header got=", file.stored_bytes(),
                            " bytes stored"));
  }
  std::vector<std::uint8_t> elements(*bytes);
  EG_RETURN_IF_ERROR(ReadAll(file, elements.data(), elements.size(), "elements"));
  EG_RETURN_IF_ERROR(ExpectEnd(file));
  return elements;
}

using ByteTable = std::array<float, 256>;

// Returns the result of the transforms for each of the 256 values of a byte, computed in double and
// rounded once.
absl::StatusOr<ByteTable> TransformedBytes(const config::FieldSpec& field) {
  std::vector<TransformStep> steps;
  for (const config::Transform& transform : field.transforms) {
    if (transform.type != "scale")
      return UserError(absl::InvalidArgumentError(absl::StrCat(
          "unknown transform: field=", field.name, " want=scale got=", transform.type)));
    EG_ASSIGN_OR_RETURN(steps.emplace_back(),
                        MakeTransformStep(transform, config::ValueKind::kReal));
  }
  ByteTable table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte) {
    Value value = RealValue(static_cast<double>(byte));
    for (const TransformStep& step : steps) {
      EG_ASSIGN_OR_RETURN(value, step(value));
    }
    table[byte] = static_cast<float>(value.number());
  }
  return table;
}

class IdxDataset final : public Dataset {
 public:
  IdxDataset(std::vector<std::uint8_t> images, std::vector<std::uint8_t> labels,
             tensor::Shape shape, ByteTable image_table, ByteTable label_table,
             std::string fingerprint)
      : images_(std::move(images)),
        labels_(std::move(labels)),
        elements_(shape.elements()),
        fields_{{"image", tensor::DType::kFloat32, std::move(shape)},
                {"label", tensor::DType::kFloat32, {}}},
        image_table_(image_table),
        label_table_(label_table),
        fingerprint_(std::move(fingerprint)) {}

  std::uint64_t examples() const override { return labels_.size(); }
  const std::vector<Field>& fields() const override { return fields_; }
  std::uint64_t bytes_held() const override { return images_.size() + labels_.size(); }
  std::string Fingerprint() const override { return fingerprint_; }

  absl::Status Read(const std::vector<std::uint64_t>& indices,
                    const std::vector<std::span<std::byte>>& to) const override {
    EG_RETURN_IF_ERROR(CheckBatchBuffers(*this, indices.size(), to));
    auto* const images = reinterpret_cast<float*>(to[0].data());
    auto* const labels = reinterpret_cast<float*>(to[1].data());
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] >= labels_.size())
        return absl::InvalidArgumentError(
            absl::StrCat("example out of range: examples=", labels_.size(), " got=", indices[i]));
      const std::uint8_t* from = images_.data() + indices[i] * elements_;
      float* image = images + i * elements_;
      for (std::uint64_t e = 0; e < elements_; ++e) image[e] = image_table_[from[e]];
      labels[i] = label_table_[labels_[indices[i]]];
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<std::uint8_t> images_, labels_;
  const std::uint64_t elements_;
  const std::vector<Field> fields_;
  const ByteTable image_table_, label_table_;
  const std::string fingerprint_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const config::SourceSpec& source,
                                                 const std::vector<config::FieldSpec>& fields,
                                                 const Dataset*, const DataOptions& options) {
  EG_ASSIGN_OR_RETURN(ByteTable image_table, TransformedBytes({}));
  ByteTable label_table = image_table;
  for (const config::FieldSpec& field : fields) {
    if (field.name != "image" && field.name != "label") {
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("unknown field of an idx source: want=image or label got=", field.name)));
    }
    EG_ASSIGN_OR_RETURN((field.name == "image" ? image_table : label_table),
                        TransformedBytes(field));
  }

  EG_ASSIGN_OR_RETURN(auto label_file,
                      DataFile::Open(source.labels, options, "an idx file of labels"));
  EG_ASSIGN_OR_RETURN(const Header label_header,
                      ReadHeader(*label_file, 1, 1, "0x00000801 (labels: unsigned bytes, rank 1)"));
  EG_ASSIGN_OR_RETURN(auto image_file,
                      DataFile::Open(source.images, options, "an idx file of images"));
  EG_ASSIGN_OR_RETURN(const Header image_header,
                      ReadHeader(*image_file, 2, 4,
                                 "0x00000802 to 0x00000804 (images: unsigned bytes, rank 2 to 4)"));
  if (label_header.dims[0] != image_header.dims[0]) {
    return Bad("number of labels differs from number of images", source.labels,
               absl::StrCat("offset=4 want=", image_header.dims[0], " as in ", source.images,
                            " got=", label_header.dims[0]));
  }
  EG_ASSIGN_OR_RETURN(auto labels, ReadElements(*label_file, label_header, options.bytes_max));
  EG_ASSIGN_OR_RETURN(auto images, ReadElements(*image_file, image_header, options.bytes_max));

  // A shape (n, h, w) has one channel; a shape (n, features) is flat.
  tensor::Shape shape;
  switch (image_header.dims.size()) {
    case 2: shape = {image_header.dims[1]}; break;
    case 3: shape = {image_header.dims[1], image_header.dims[2], 1}; break;
    default: shape = {image_header.dims[1], image_header.dims[2], image_header.dims[3]}; break;
  }
  EG_ASSIGN_OR_RETURN(const std::string image_fingerprint, image_file->Fingerprint());
  EG_ASSIGN_OR_RETURN(const std::string label_fingerprint, label_file->Fingerprint());
  return std::unique_ptr<Dataset>(new IdxDataset(
      std::move(images), std::move(labels), std::move(shape), image_table, label_table,
      absl::StrCat("images: ", image_fingerprint, "\nlabels: ", label_fingerprint)));
}

}  // namespace evergrad::worker
