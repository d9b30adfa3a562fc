// Tests generated examples. The same seed must give the same examples, in whatever order they are
// read. They must have the requested distribution, and a model must be able to learn from them.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "common/base/status.h"
#include "worker/data/openers.h"

namespace evergrad::worker {
namespace {

config::FieldSpec Ids(std::uint64_t size, std::uint64_t ids,
                      const std::string& distribution = "uniform", double exponent = 1.05) {
  config::FieldSpec field;
  field.name = "ids", field.type = "ids", field.size = size, field.ids = ids,
  field.distribution = distribution, field.exponent = exponent;
  return field;
}
config::FieldSpec Plain(const std::string& name, const std::string& type, std::uint64_t size = 0) {
  config::FieldSpec field;
  field.name = name, field.type = type, field.size = size;
  return field;
}
config::SourceSpec Source(std::uint64_t examples, std::uint64_t seed, std::uint64_t skip = 0) {
  config::SourceSpec source;
  source.format = "synthetic", source.examples = examples, source.seed = seed, source.skip = skip;
  return source;
}

struct Examples {
  std::vector<std::int64_t> ids;
  std::vector<float> numbers, labels;
};
Examples ReadSome(const Dataset& data, const std::vector<std::uint64_t>& indices) {
  Examples out;
  out.ids.resize(indices.size() * data.fields()[0].shape.elements());
  out.numbers.resize(indices.size() * data.fields()[1].shape.elements());
  out.labels.resize(indices.size());
  REQUIRE(data.Read(indices, {std::as_writable_bytes(std::span(out.ids)),
                              std::as_writable_bytes(std::span(out.numbers)),
                              std::as_writable_bytes(std::span(out.labels))})
              .ok());
  return out;
}
std::unique_ptr<Dataset> Open(const config::SourceSpec& source, const config::FieldSpec& ids) {
  auto data =
      OpenDataset(source, {ids, Plain("numbers", "float", 3), Plain("label", "label")}, nullptr);
  INFO(data.status());
  REQUIRE(data.ok());
  return *std::move(data);
}
std::vector<std::uint64_t> Range(std::uint64_t begin, std::uint64_t end) {
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = begin; i < end; ++i) indices.push_back(i);
  return indices;
}

TEST_CASE("an example depends only on seed and number, in any order and with any gaps") {
  const auto data = Open(Source(1000, 7), Ids(4, 50, "zipf"));
  const Examples all = ReadSome(*data, Range(0, 1000));
  const Examples some = ReadSome(*data, {999, 3, 999});
  CHECK(std::equal(some.ids.begin(), some.ids.begin() + 4, all.ids.begin() + 999 * 4));
  CHECK(std::equal(some.ids.begin() + 4, some.ids.begin() + 8, all.ids.begin() + 3 * 4));
  CHECK(some.labels[2] == all.labels[999]);
  const Examples later = ReadSome(*Open(Source(100, 7, 900), Ids(4, 50, "zipf")), Range(0, 100));
  CHECK(std::equal(later.ids.begin(), later.ids.end(), all.ids.begin() + 900 * 4));
  CHECK(std::equal(later.numbers.begin(), later.numbers.end(), all.numbers.begin() + 900 * 3));
  CHECK(std::equal(later.labels.begin(), later.labels.end(), all.labels.begin() + 900));
  CHECK(ReadSome(*Open(Source(1000, 8), Ids(4, 50, "zipf")), Range(0, 1000)).ids != all.ids);
  CHECK(data->Fingerprint() != Open(Source(1000, 8), Ids(4, 50, "zipf"))->Fingerprint());
  std::vector<std::int64_t> ids(4);
  std::vector<float> numbers(3), label(1);
  CHECK_FALSE(data->Read({1000}, {std::as_writable_bytes(std::span(ids)),
                                  std::as_writable_bytes(std::span(numbers)),
                                  std::as_writable_bytes(std::span(label))})
                  .ok());
}

TEST_CASE("the examples are the same on all machines and in all releases") {
  const Examples first = ReadSome(*Open(Source(10, 7), Ids(3, 100000, "zipf")), {0, 9});
  std::uint64_t hash = 14695981039346656037ull;
  const auto add = [&hash](std::uint64_t word) { hash = (hash ^ word) * 1099511628211ull; };
  for (const std::int64_t id : first.ids) add(static_cast<std::uint64_t>(id));
  for (const float number : first.numbers) {
    std::uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    add(bits);
  }
  for (const float label : first.labels) add(label > 0 ? 1 : 0);
  CHECK(hash == 316660888848490245ull);
}

TEST_CASE("ids are drawn from their own ranges, uniformly or by Zipf's law") {
  constexpr std::uint64_t kExamples = 40000, kIds = 10;
  for (const bool zipf : {false, true}) {
    const auto data = Open(Source(kExamples, 3), Ids(2, kIds, zipf ? "zipf" : "uniform", 1.5));
    const Examples all = ReadSome(*data, Range(0, kExamples));
    double sum = 0;
    for (std::uint64_t k = 0; k < kIds; ++k) sum += std::pow(static_cast<double>(k + 1), -1.5);
    std::vector<double> counts(2 * kIds);
    for (std::size_t i = 0; i < all.ids.size(); ++i) {
      REQUIRE(all.ids[i] >= static_cast<std::int64_t>(i % 2 * kIds));
      REQUIRE(all.ids[i] < static_cast<std::int64_t>((i % 2 + 1) * kIds));
      ++counts[static_cast<std::size_t>(all.ids[i])];
    }
    for (std::uint64_t k = 0; k < kIds; ++k) {
      const double want = static_cast<double>(kExamples) *
                          (zipf ? std::pow(static_cast<double>(k + 1), -1.5) / sum : 1.0 / kIds);
      CHECK(counts[k] == Approx(want).margin(5 * std::sqrt(want)));
      CHECK(counts[kIds + k] == Approx(want).margin(5 * std::sqrt(want)));
    }
    double mean = 0, square = 0;
    for (const float number : all.numbers)
      mean += number, square += static_cast<double>(number) * number;
    CHECK(mean / static_cast<double>(all.numbers.size()) == Approx(0).margin(0.02));
    CHECK(square / static_cast<double>(all.numbers.size()) == Approx(1).epsilon(0.02));
    const double positives = std::accumulate(all.labels.begin(), all.labels.end(), 0.0) / kExamples;
    CHECK(positives > 0.2);
    CHECK(positives < 0.8);
  }
}

TEST_CASE(
    "labels depend on ids: rates of ids in one half of the examples predict labels in the other") {
  constexpr std::uint64_t kExamples = 40000;
  const Examples all = ReadSome(*Open(Source(kExamples, 5), Ids(3, 20)), Range(0, kExamples));
  std::vector<double> seen[2], positive[2];
  for (auto* counts : {seen, positive}) counts[0].resize(60), counts[1].resize(60);
  for (std::size_t i = 0; i < kExamples; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      const std::size_t id = static_cast<std::size_t>(all.ids[3 * i + j]);
      ++seen[i % 2][id];
      positive[i % 2][id] += all.labels[i];
    }
  }
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t id = 0; id < 60; ++id) {
    const double a = positive[0][id] / seen[0][id] - 0.5, b = positive[1][id] / seen[1][id] - 0.5;
    ab += a * b, aa += a * a, bb += b * b;
  }
  CHECK(ab / std::sqrt(aa * bb) > 0.9);
}

TEST_CASE("images have the given shape, and labels of many classes depend on them") {
  constexpr std::uint64_t kExamples = 20000, kClasses = 10;
  config::FieldSpec image = Plain("image", "float"), flat = Plain("image", "float", 12),
                    label = Plain("label", "label");
  image.shape = {2, 2, 3};
  label.classes = kClasses;
  const auto read = [&](const config::FieldSpec& field) {
    auto data = OpenDataset(Source(kExamples, 3), {field, label}, nullptr);
    INFO(data.status());
    REQUIRE(data.ok());
    CHECK((*data)->fields()[0].shape.elements() == 12);
    std::vector<float> values(kExamples * 12), labels(kExamples);
    REQUIRE((*data)
                ->Read(Range(0, kExamples), {std::as_writable_bytes(std::span(values)),
                                             std::as_writable_bytes(std::span(labels))})
                .ok());
    return std::pair(std::move(values), std::move(labels));
  };
  const auto [values, labels] = read(image);
  CHECK(read(flat).first == values);
  CHECK((*OpenDataset(Source(1, 1), {image, label}, nullptr))->fields()[0].shape ==
        tensor::Shape{2, 2, 3});
  std::vector<double> counts(kClasses);
  for (const float l : labels) {
    REQUIRE((l >= 0 && l < kClasses && l == std::floor(l)));
    ++counts[static_cast<std::size_t>(l)];
  }
  for (const double count : counts) CHECK(count == Approx(kExamples / kClasses).epsilon(0.15));
  // The class is a rising linear function of the numbers. Therefore at least one of the numbers
  // predicts the class better than chance.
  double best = 0;
  for (std::size_t j = 0; j < 12; ++j) {
    double product = 0, square = 0;
    for (std::size_t i = 0; i < kExamples; ++i) {
      const double deviation = labels[i] - (kClasses - 1) / 2.0;
      product += values[12 * i + j] * deviation;
      square += deviation * deviation;
    }
    best = std::max(best, std::abs(product) / std::sqrt(square * kExamples));
  }
  CHECK(best > 0.15);
}

TEST_CASE("settings out of range are the user's error") {
  const auto refusal = [](config::FieldSpec field, std::uint64_t bytes_max = kDataBytesMax) {
    const auto data = OpenSynthetic(Source(1, 1), {std::move(field)}, nullptr, {bytes_max});
    REQUIRE_FALSE(data.ok());
    CHECK(BlameOf(data.status()) == Blame::kUser);
    return std::string(data.status().message());
  };
  CHECK_THAT(refusal(Ids(1, 0)), Catch::Contains("ids out of range"));
  CHECK_THAT(refusal(Ids(1u << 30, 1ull << 40)), Catch::Contains("ids out of range"));
  CHECK_THAT(refusal(Ids(1, 1u << 25, "zipf")), Catch::Contains("zipf draws from at most"));
  CHECK_THAT(refusal(Ids(1, 1000, "zipf"), 1000), Catch::Contains("data set too large"));
  CHECK_THAT(refusal(Plain("x", "bool")), Catch::Contains("unknown type `bool`"));
  config::FieldSpec label = Plain("x", "label");
  label.classes = 1;
  CHECK_THAT(refusal(label), Catch::Contains("classes out of range"));
}

}  // namespace
}  // namespace evergrad::worker
