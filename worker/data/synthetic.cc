// Generates examples from a seed while they are read. Example i is a function of (seed, field, i),
// so every machine can generate any example directly.
//
// A hidden model draws the label. The model is a factorization machine over all ids (a weight and
// kHidden factors each) and a linear term over all numbers. The labels can therefore be learned in
// part, but they also have noise, so even the hidden model makes errors.
//
// The bits are the same on every machine. Only +, -, *, / and sqrt are used; this file computes
// logarithms and powers from them.
#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "common/sharding/slots.h"
#include "worker/data/openers.h"

namespace evergrad::worker {
namespace {

constexpr std::size_t kHidden = 4;
constexpr std::uint64_t kClassesMax = 1u << 24;  // labels are float32

// Returns ln x for x > 0. With x = m * 2^e and m in [2/3, 4/3), the series of artanh((m - 1) / (m +
// 1)) has an argument of at most 1/5.
double Ln(double x) {
  int e = 0;
  double m = std::frexp(x, &e);  // exact
  if (m < 2.0 / 3) m *= 2, --e;
  const double z = (m - 1) / (m + 1), square = z * z;
  double term = z, sum = 0;
  for (int n = 1; n < 28; n += 2) {
    sum += term / n;
    term *= square;
  }
  return 2 * sum + e * 0.693147180559945309417;
}
// Returns e^x for |x| < 700.
double Exp(double x) {
  const double e = std::floor(x / 0.693147180559945309417 + 0.5);
  const double r = x - e * 0.693147180559945309417;
  double term = 1, sum = 1;
  for (int n = 1; n < 20; ++n) {
    term *= r / n;
    sum += term;
  }
  return std::ldexp(sum, static_cast<int>(e));  // exact
}

// Returns a number in [0, 1) with 53 bits.
double Unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }
double Unit(std::uint32_t high, std::uint32_t low) {
  return Unit(static_cast<std::uint64_t>(high) << 32 | low);
}
// Returns a number uniform in [-1, 1).
double Signed(std::uint64_t bits) { return 2 * Unit(bits) - 1; }
__extension__ typedef unsigned __int128 Wide;
// Returns a number in [0, n) from 64 bits.
std::uint64_t Below(std::uint64_t bits, std::uint64_t n) {
  return static_cast<std::uint64_t>((static_cast<Wide>(bits) * n) >> 64);
}

// Draws from a discrete distribution in constant time (Vose, "A linear algorithm for generating
// random numbers with a given distribution", 1991).
class AliasTable {
 public:
  AliasTable() = default;
  explicit AliasTable(std::vector<double> weights) : keep_(weights.size()), other_(weights.size()) {
    double sum = 0;
    for (const double weight : weights) sum += weight;
    std::vector<std::uint32_t> small, large;
    for (std::uint32_t i = 0; i < weights.size(); ++i) {
      weights[i] *= static_cast<double>(weights.size()) / sum;
      (weights[i] < 1 ? small : large).push_back(i);
    }
    while (!small.empty() && !large.empty()) {
      const std::uint32_t s = small.back(), l = large.back();
      small.pop_back();
      keep_[s] = weights[s];
      other_[s] = l;
      weights[l] -= 1 - weights[s];
      if (weights[l] < 1) {
        large.pop_back();
        small.push_back(l);
      }
    }
    for (const auto* rest : {&small, &large}) {
      for (const std::uint32_t i : *rest) keep_[i] = 1;
    }
  }
  bool empty() const { return keep_.empty(); }
  std::uint64_t bytes() const { return keep_.size() * (sizeof(double) + sizeof(std::uint32_t)); }
  std::uint64_t Draw(std::uint64_t which, double u) const {
    const std::uint64_t i = Below(which, keep_.size());
    return u < keep_[i] ? i : other_[i];
  }

 private:
  std::vector<double> keep_;
  std::vector<std::uint32_t> other_;
};

struct Generated {
  config::FieldSpec spec;
  std::uint64_t key = 0;     // key of the values
  std::uint64_t hidden = 0;  // key of the hidden model's parameters for this field
  std::size_t width = 1;
  AliasTable zipf;
};

class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(const config::SourceSpec& source, std::vector<Generated> generated)
      : source_(source),
        generated_(std::move(generated)),
        label_key_(random::KeyOf(source.seed, "label")) {
    for (const Generated& g : generated_) {
      Field& field = fields_.emplace_back();
      field.name = g.spec.name;
      field.dtype = g.spec.type == "ids" ? tensor::DType::kInt64 : tensor::DType::kFloat32;
      if (!g.spec.shape.empty())
        field.shape = *tensor::Shape::Checked(g.spec.shape);
      else if (g.spec.size > 0)
        field.shape = tensor::Shape{g.spec.size};
      if (g.spec.type == "label")
        label_ = true;
      else if (g.spec.type == "ids")
        ids_ += g.width;
      else
        numbers_ += g.width;
    }
  }

  std::uint64_t examples() const override { return source_.examples; }
  const std::vector<Field>& fields() const override { return fields_; }
  std::uint64_t bytes_held() const override {
    std::uint64_t bytes = 0;
    for (const Generated& g : generated_) bytes += g.zipf.bytes();
    return bytes;
  }
  std::string Fingerprint() const override {
    return absl::StrCat("synthetic: examples=", source_.examples, " seed=", source_.seed,
                        " skip=", source_.skip, " version=1");
  }

  absl::Status Read(const std::vector<std::uint64_t>& indices,
                    const std::vector<std::span<std::byte>>& to) const override {
    EG_RETURN_IF_ERROR(CheckBatchBuffers(*this, indices.size(), to));
    for (std::size_t n = 0; n < indices.size(); ++n) {
      if (indices[n] >= source_.examples)
        return absl::InvalidArgumentError(
            absl::StrCat("example out of range: examples=", source_.examples, " got=", indices[n]));
      const std::uint64_t example = source_.skip + indices[n];
      Hidden hidden;
      for (std::size_t f = 0; f < generated_.size(); ++f) {
        const Generated& g = generated_[f];
        if (g.spec.type == "ids")
          Ids(g, example, reinterpret_cast<std::int64_t*>(to[f].data()) + n * g.width, &hidden);
        else if (g.spec.type == "float")
          Numbers(g, example, reinterpret_cast<float*>(to[f].data()) + n * g.width, &hidden);
      }
      if (!label_) continue;
      const double logit = std::clamp(Logit(hidden), -30.0, 30.0);
      const random::Block drawn = random::Philox(label_key_, example, 0);
      for (std::size_t f = 0; f < generated_.size(); ++f) {
        if (generated_[f].spec.type == "label")
          reinterpret_cast<float*>(to[f].data())[n] =
              Label(logit, Unit(drawn[0], drawn[1]), generated_[f]);
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Hidden {
    double linear = 0;                     // sum over ids
    double numbers = 0;                    // sum over numbers
    std::array<double, kHidden> sum = {};  // sums of factors
    double squares = 0;                    // sum of the squares of all factors
  };

  void Ids(const Generated& g, std::uint64_t example, std::int64_t* to, Hidden* hidden) const {
    for (std::size_t j = 0; j < g.width; ++j) {
      const random::Block block = random::Philox(g.key, example, j);
      const std::uint64_t bits = static_cast<std::uint64_t>(block[0]) << 32 | block[1];
      const std::uint64_t id =
          j * g.spec.ids +
          (g.zipf.empty() ? Below(bits, g.spec.ids) : g.zipf.Draw(bits, Unit(block[2], block[3])));
      to[j] = static_cast<std::int64_t>(id);
      if (!label_) continue;
      std::uint64_t word = sharding::Mix64(g.hidden + id);
      hidden->linear += Signed(word);
      for (double& sum : hidden->sum) {
        word = sharding::Mix64(word + 0x9e3779b97f4a7c15ull);
        const double factor = Signed(word);
        sum += factor;
        hidden->squares += factor * factor;
      }
    }
  }

  // Each number is approximately standard normal: the sum of twelve uniform numbers minus six.
  void Numbers(const Generated& g, std::uint64_t example, float* to, Hidden* hidden) const {
    for (std::size_t j = 0; j < g.width; ++j) {
      double sum = -6;
      for (std::uint64_t part = 0; part < 3; ++part) {
        for (const std::uint32_t word : random::Philox(g.key, example, j * 4 + part))
          sum += word * 0x1p-32;
      }
      to[j] = static_cast<float>(sum);
      if (label_) hidden->numbers += sum * Signed(sharding::Mix64(g.hidden + j));
    }
  }

  // Returns the logit, with each of its parts scaled to a variance of about one. The parts are the
  // linear terms (each has a variance of 1/3) and the n (n - 1) / 2 products of pairs (each has a
  // variance of kHidden / 9).
  double Logit(const Hidden& hidden) const {
    double logit = 0;
    if (ids_ > 0) logit += 1.5 * hidden.linear / std::sqrt(static_cast<double>(ids_) / 3);
    if (ids_ > 1) {
      double pairs = -hidden.squares;
      for (const double sum : hidden.sum) pairs += sum * sum;
      const double n = static_cast<double>(ids_);
      logit += 0.5 * pairs / std::sqrt(n * (n - 1) / 2 * kHidden / 9);
    }
    if (numbers_ > 0) logit += 1.5 * hidden.numbers / std::sqrt(static_cast<double>(numbers_) / 3);
    return logit;
  }

  // With two classes, the label is 1 with the logit's probability. With more classes, logistic
  // noise is added to the logit, and the label is the number of the quantile of this sum among all
  // examples. The sum of a normal number (deviation about 1.5) and a logistic number has nearly a
  // logistic distribution, with spread kSpread.
  static float Label(double logit, double u, const Generated& g) {
    if (g.spec.classes == 2) return u * (1 + Exp(-logit)) < 1 ? 1.0f : 0.0f;
    constexpr double kSpread = 1.3;
    const double noisy = logit + (u > 0 ? Ln(u / (1 - u)) : -30);
    const double part = 1 / (1 + Exp(-std::clamp(noisy / kSpread, -30.0, 30.0)));
    return static_cast<float>(std::min(std::floor(part * static_cast<double>(g.spec.classes)),
                                       static_cast<double>(g.spec.classes - 1)));
  }

  const config::SourceSpec source_;
  const std::vector<Generated> generated_;
  const std::uint64_t label_key_;
  std::vector<Field> fields_;
  bool label_ = false;
  std::size_t ids_ = 0, numbers_ = 0;  // numbers per example
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenSynthetic(const config::SourceSpec& source,
                                                       const std::vector<config::FieldSpec>& fields,
                                                       const Dataset*, const DataOptions& options) {
  std::vector<Generated> generated;
  std::uint64_t bytes = 0;
  for (const config::FieldSpec& field : fields) {
    const auto wrong = [&](absl::string_view text) {
      return UserError(
          absl::InvalidArgumentError(absl::StrCat("field `", field.name, "`: ", text)));
    };
    if (field.type != "ids" && field.type != "float" && field.type != "label")
      return wrong(absl::StrCat("unknown type `", field.type, "`; one of ids, float, label"));
    if (field.classes < 2 || field.classes > kClassesMax)
      return wrong(
          absl::StrCat("classes out of range: want=2..", kClassesMax, " got=", field.classes));
    if (const auto shape = tensor::Shape::Checked(field.shape); !shape.ok())
      return wrong(shape.status().message());
    Generated g{field,
                random::KeyOf(source.seed, absl::StrCat("values/", field.name)),
                random::KeyOf(source.seed, absl::StrCat("hidden/", field.name)),
                field.shape.empty() ? std::max<std::size_t>(1, field.size)
                                    : tensor::Shape::Checked(field.shape)->elements(),
                {}};
    if (field.type == "ids") {
      const std::uint64_t all[] = {field.ids, std::max<std::uint64_t>(1, field.size)};
      const auto product = CheckedProduct(std::vector<std::uint64_t>(all, all + 2));
      if (field.ids == 0 || !product || *product > (1ull << 62))
        return wrong(absl::StrCat("ids out of range: ids=", field.ids, " size=", field.size));
      if (field.distribution == "zipf") {
        if (field.ids > config::kZipfIdsMax)
          return wrong(absl::StrCat("zipf draws from at most ", config::kZipfIdsMax, " ids, got ",
                                    field.ids));
        bytes += field.ids * (sizeof(double) + sizeof(std::uint32_t));
        if (bytes > options.bytes_max) {
          return UserError(absl::ResourceExhaustedError(
              absl::StrCat("data set too large: field=", field.name, " bytes=", bytes,
                           " limit=", options.bytes_max)));
        }
        std::vector<double> weights(field.ids);
        for (std::uint64_t k = 0; k < field.ids; ++k)
          weights[k] = Exp(-field.exponent * Ln(static_cast<double>(k + 1)));
        g.zipf = AliasTable(std::move(weights));
      }
    }
    generated.push_back(std::move(g));
  }
  return std::unique_ptr<Dataset>(new SyntheticDataset(source, std::move(generated)));
}

}  // namespace evergrad::worker
