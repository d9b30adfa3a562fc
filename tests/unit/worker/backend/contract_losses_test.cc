// Tests the contract of Backend for the results that a step gives to the host. These are losses,
// with their gradients and with bad labels, metrics, sums of squares, and the flag of non-finite
// values.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/worker/backend/fixtures/contract_fixture.h"

namespace evergrad::worker {
namespace {

using namespace test;

constexpr double kEpsilon = 1e-7;
double Clip(double p) { return std::clamp(p, kEpsilon, 1 - kEpsilon); }

// Returns one example's loss in float64, and whether the prediction is correct.
double LossOf(const Loss& loss, const std::vector<double>& output, const std::vector<float>& labels,
              bool* correct) {
  double sum = 0;
  *correct = true;
  const std::size_t columns = static_cast<std::size_t>(loss.columns);
  if (loss.type == LossType::kSparseCategoricalCrossentropy) {
    for (std::size_t r = 0; r < static_cast<std::size_t>(loss.rows); ++r) {
      const auto row = output.begin() + static_cast<std::ptrdiff_t>(r * columns);
      const std::size_t label = static_cast<std::size_t>(labels[r]);
      double total = 0;
      for (std::size_t c = 0; c < columns; ++c)
        total += loss.from_logits ? std::exp(row[static_cast<std::ptrdiff_t>(c)])
                                  : Clip(row[static_cast<std::ptrdiff_t>(c)]);
      const double at = row[static_cast<std::ptrdiff_t>(label)];
      sum += std::log(total) - (loss.from_logits ? at : std::log(Clip(at)));
      *correct =
          *correct && std::max_element(row, row + static_cast<std::ptrdiff_t>(columns)) - row ==
                          static_cast<std::ptrdiff_t>(label);
    }
    return sum / static_cast<double>(loss.rows);
  }
  for (std::size_t i = 0; i < output.size(); ++i) {
    const double x = output[i], t = labels[i];
    if (loss.type == LossType::kMeanSquaredError) {
      sum += (x - t) * (x - t);
    } else if (loss.from_logits) {
      sum += std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0) - x * t;
    } else {
      sum -= t * std::log(Clip(x) + kEpsilon) + (1 - t) * std::log(1 - Clip(x) + kEpsilon);
    }
    *correct = *correct && (x > (loss.from_logits ? 0.0 : 0.5)) == (t > 0.5f);
  }
  return sum / static_cast<double>(output.size());
}

std::vector<Loss> Losses() {
  std::vector<Loss> losses;
  for (const LossType type : {LossType::kSparseCategoricalCrossentropy,
                              LossType::kBinaryCrossentropy, LossType::kMeanSquaredError}) {
    for (const bool logits : {false, true}) {
      for (const auto& [rows, columns] :
           {std::array<std::int64_t, 2>{1, 2}, {1, 10}, {3, 7}, {1, 1000}}) {
        if (type == LossType::kMeanSquaredError && logits) continue;
        losses.push_back({type, logits, true, rows, columns});
      }
    }
  }
  losses.push_back({LossType::kBinaryCrossentropy, true, true, 1, 1});
  losses.push_back({LossType::kMeanSquaredError, false, false, 1, 1});
  return losses;
}

TEST_CASE("a loss, its gradient and the count of correct examples equal their definitions") {
  ForEachBackend([](Backend& backend) {
    for (const Loss& loss : Losses()) {
      for (const std::size_t batch : {std::size_t{1}, std::size_t{5}, std::size_t{300}}) {
        INFO("type " << static_cast<int>(loss.type) << " logits " << loss.from_logits << " "
                     << loss.rows << "x" << loss.columns << " batch " << batch);
        const std::size_t each = static_cast<std::size_t>(loss.rows * loss.columns),
                          label_each = static_cast<std::size_t>(loss.label_elements());
        std::vector<float> output = Draw(1, batch * each), labels(batch * label_each);
        for (float& v : output)
          v = loss.from_logits                           ? 3 * v
              : loss.type == LossType::kMeanSquaredError ? v
                                                         : 0.5f + 0.49f * v;
        for (std::size_t i = 0; i < labels.size(); ++i) {
          const float u = random::Uniform(2, i);
          labels[i] = loss.type == LossType::kSparseCategoricalCrossentropy
                          ? std::floor(u * static_cast<float>(loss.columns))
                      : i % 3 == 0 ? std::round(u)
                                   : u;
        }
        double want = 0;
        std::int64_t want_correct = 0;
        std::vector<double> want_gradient(output.size());
        for (std::size_t n = 0; n < batch; ++n) {
          std::vector<double> example(output.begin() + static_cast<std::ptrdiff_t>(n * each),
                                      output.begin() + static_cast<std::ptrdiff_t>((n + 1) * each));
          const std::vector<float> label(
              labels.begin() + static_cast<std::ptrdiff_t>(n * label_each),
              labels.begin() + static_cast<std::ptrdiff_t>((n + 1) * label_each));
          bool correct, unused;
          want += LossOf(loss, example, label, &correct);
          want_correct += correct ? 1 : 0;
          for (std::size_t i = 0; i<each; i += each> 100 ? 37 : 1) {
            constexpr double kStep = 1e-5;
            const double at = example[i];
            example[i] = at + kStep;
            const double above = LossOf(loss, example, label, &unused);
            example[i] = at - kStep;
            const double below = LossOf(loss, example, label, &unused);
            example[i] = at;
            want_gradient[n * each + i] =
                (above - below) / (2 * kStep) / static_cast<double>(batch);
          }
        }
        std::vector<float> gradient = Poison(output.size());
        LossResult result{-1, -1, -7, 0};
        backend.ComputeLoss(loss, static_cast<std::int64_t>(batch), output, labels, gradient,
                            &result);
        CHECK(result.bad_label == -1);
        CHECK(result.sum == Approx(want).epsilon(1e-5));
        CHECK(result.correct ==
              (loss.accuracy && loss.type != LossType::kMeanSquaredError ? want_correct : 0));
        for (std::size_t n = 0; n < batch; ++n) {
          for (std::size_t i = 0; i < each; ++i) {
            const double got = gradient[n * each + i], w = want_gradient[n * each + i];
            if (each > 100 && i % 37 != 0 ? !std::isfinite(got)
                                          : !(std::abs(got - w) <= 1e-4 * std::abs(w) + 2e-6))
              FAIL("element " << n * each + i << ": " << got << ", want " << w);
          }
        }
        LossResult alone{-1, -1, -7, 0};
        backend.ComputeLoss(loss, static_cast<std::int64_t>(batch), output, labels, {}, &alone);
        CHECK(
            (alone.sum == result.sum && alone.correct == result.correct && alone.bad_label == -1));
      }
    }
  });
}

TEST_CASE(
    "probabilities of 0 and 1 are clipped and have no gradient, and huge logits stay finite") {
  ForEachBackend([](Backend& backend) {
    LossResult result{};
    std::vector<float> gradient = Poison(2);
    backend.ComputeLoss({LossType::kBinaryCrossentropy, false, false, 1, 2}, 1,
                        std::vector<float>{0, 1}, std::vector<float>{1, 0}, gradient, &result);
    CHECK(result.sum == Approx(-std::log(2e-7)).epsilon(1e-3));
    CHECK((gradient[0] == 0 && gradient[1] == 0));
    gradient = Poison(2);
    backend.ComputeLoss({LossType::kSparseCategoricalCrossentropy, false, false, 1, 2}, 1,
                        std::vector<float>{0, 1}, std::vector<float>{0}, gradient, &result);
    CHECK(result.sum == Approx(-std::log(1e-7)).epsilon(1e-6));
    CHECK((gradient[0] == 0 && gradient[1] == 0));
    gradient = Poison(2);
    backend.ComputeLoss({LossType::kSparseCategoricalCrossentropy, true, false, 1, 2}, 1,
                        std::vector<float>{1e4f, -1e4f}, std::vector<float>{1}, gradient, &result);
    CHECK(result.sum == Approx(2e4));
    CHECK((gradient[0] == 1 && gradient[1] == -1));
    gradient = Poison(2);
    backend.ComputeLoss({LossType::kBinaryCrossentropy, true, false, 1, 2}, 1,
                        std::vector<float>{1e4f, -1e4f}, std::vector<float>{0, 1}, gradient,
                        &result);
    CHECK(result.sum == Approx(1e4));
    CHECK((gradient[0] == 0.5f && gradient[1] == -0.5f));
  });
}

TEST_CASE("the first invalid label is reported with its value, and all outputs stay finite") {
  ForEachBackend([](Backend& backend) {
    const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
    for (const bool logits : {false, true}) {
      for (const float bad : {-1.0f, 3.0f, 1.5f, 1e9f, -0.5f, nan, inf, -inf}) {
        std::vector<float> output(4 * 2 * 3, 0.25f), gradient = Poison(output.size()),
                                                     labels = {0, 1, 2, 0, 1, 2, 0, 1};
        labels[5] = bad, labels[6] = 7;
        LossResult result{};
        backend.ComputeLoss({LossType::kSparseCategoricalCrossentropy, logits, true, 2, 3}, 4,
                            output, labels, gradient, &result);
        CHECK(result.bad_label == 5);
        CHECK((std::isnan(bad) ? std::isnan(result.bad_value) : result.bad_value == bad));
        CHECK(std::all_of(gradient.begin(), gradient.end(),
                          [](float g) { return std::isfinite(g); }));
      }
      for (const float bad : {-0.01f, 1.01f, nan, inf}) {
        std::vector<float> output(300, 0.25f), gradient = Poison(300), labels(300, 0.5f);
        labels[257] = labels[299] = bad;
        LossResult result{};
        backend.ComputeLoss({LossType::kBinaryCrossentropy, logits, true, 1, 3}, 100, output,
                            labels, gradient, &result);
        CHECK(result.bad_label == 257);
        CHECK((std::isnan(bad) ? std::isnan(result.bad_value)
                               : result.bad_value == static_cast<double>(bad)));
        CHECK(std::all_of(gradient.begin(), gradient.end(),
                          [](float g) { return std::isfinite(g); }));
      }
    }
  });
}

TEST_CASE("a NaN in an output makes the loss NaN") {
  ForEachBackend([](Backend& backend) {
    for (const Loss& loss : Losses()) {
      std::vector<float> output(static_cast<std::size_t>(2 * loss.rows * loss.columns), 0.25f),
          labels(static_cast<std::size_t>(2 * loss.label_elements()), 0.0f);
      output.back() = std::nanf("");
      LossResult result{};
      backend.ComputeLoss(loss, 2, output, labels, {}, &result);
      INFO("type " << static_cast<int>(loss.type) << " logits " << loss.from_logits << " "
                   << loss.rows << "x" << loss.columns);
      CHECK(std::isnan(result.sum));
    }
  });
}

TEST_CASE("the bins of AUC count the predictions between their thresholds") {
  ForEachBackend([](Backend& backend) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{7}, std::size_t{5000}}) {
      for (const bool logits : {false, true}) {
        std::vector<float> output = Draw(1, n), labels(n);
        for (std::size_t i = 0; i < n; ++i) {
          output[i] = logits ? 5 * output[i] : 0.5f + 0.5f * output[i];
          labels[i] = random::Uniform(2, i) > 0.7f ? 1.0f : 0.0f;
        }
        std::vector<std::int64_t> counts(2 * kAucBins, -1), want(2 * kAucBins);
        for (std::size_t i = 0; i < n; ++i) {
          const double p = logits ? 1 / (1 + std::exp(-static_cast<double>(output[i]))) : output[i];
          int bin = 0;
          while (bin + 1 < kAucBins && p > static_cast<double>(bin + 1) / kAucBins) ++bin;
          ++want[static_cast<std::size_t>(bin + (labels[i] > 0.5f ? 0 : kAucBins))];
        }
        backend.CountAuc(logits, output, labels, counts);
        CHECK(counts == want);
      }
    }
    std::vector<std::int64_t> counts(2 * kAucBins, -1);
    backend.CountAuc(false, std::vector<float>{-3, 0, 1, 9, std::nanf("")},
                     std::vector<float>{1, 1, 1, 0, 0}, counts);
    CHECK((counts[0] == 2 && counts[kAucBins - 1] == 1 && counts[2 * kAucBins - 1] == 1 &&
           counts[kAucBins] == 1));
  });
}

TEST_CASE("squared errors are summed in double, for each example and in total") {
  ForEachBackend([](Backend& backend) {
    for (const auto& [batch, elements] : {std::array<std::size_t, 2>{1, 1}, {7, 3}, {1000, 70}}) {
      const std::size_t n = batch * elements;
      const auto output = Draw(1, n), labels = Draw(2, n);
      double want = 0, squares = 0, got = -1;
      for (std::size_t i = 0; i < n; ++i) {
        want +=
            std::pow(static_cast<double>(output[i]) - labels[i], 2) / static_cast<double>(elements);
        squares += static_cast<double>(output[i]) * output[i];
      }
      backend.SumOfMeanSquares(static_cast<std::int64_t>(batch),
                               static_cast<std::int64_t>(elements), output, labels, &got);
      CHECK(got == Approx(want).epsilon(1e-12));
      got = -1;
      backend.SumOfSquares(output, &got);
      CHECK(got == Approx(squares).epsilon(1e-12));
      double again = -1;
      backend.SumOfSquares(output, &again);
      CHECK(again == got);
    }
    double got = -1;
    // The sum is beyond the range of float32.
    backend.SumOfSquares(std::vector<float>{1e30f, 1e30f}, &got);
    CHECK(got == Approx(2e60));
  });
}

TEST_CASE("trailing zeros change no bit of a sum of squares") {
  ForEachBackend([](Backend& backend) {
    for (const std::size_t n :
         {std::size_t{1}, std::size_t{7}, std::size_t{300}, std::size_t{5001}}) {
      std::vector<float> x = Draw(n, n);
      double want = -1;
      backend.SumOfSquares(x, &want);
      for (const std::size_t more :
           {std::size_t{1}, std::size_t{3}, std::size_t{260}, std::size_t{70001}}) {
        std::vector<float> longer = x;
        longer.resize(n + more);
        double got = -1;
        backend.SumOfSquares(longer, &got);
        CHECK(got == want);
      }
    }
  });
}

TEST_CASE("infinity and NaN are detected at any position, and the result is kept") {
  ForEachBackend([](Backend& backend) {
    for (const std::size_t n :
         {std::size_t{1}, std::size_t{5}, std::size_t{4097}, std::size_t{300001}}) {
      std::vector<float> x = Draw(1, n);
      x[0] = std::numeric_limits<float>::max();
      std::uint64_t found = 0;
      backend.FindNotFinite(x, &found);
      CHECK(found == 0);
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()}) {
          std::vector<float> y = x;
          y[at] = bad;
          found = 0;
          backend.FindNotFinite(y, &found);
          CHECK(found == 1);
          backend.FindNotFinite(x, &found);
          CHECK(found == 1);
        }
      }
    }
  });
}

}  // namespace
}  // namespace evergrad::worker
