// A worker with its own functions. The functions draw noisy points and fit a plane through them
// (README.md).
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "worker/sdk/sdk.h"

namespace {

namespace sdk = evergrad::sdk;

constexpr std::array<float, 2> kSlope{3.0f, -2.0f};
constexpr float kHeight = 0.5f, kNoise = 0.05f;

struct Batch {
  std::vector<std::array<float, 2>> x;
  std::vector<float> y;
  bool last = false;
};

// Parses "BATCHES POINTS": the number of batches, and the number of points in each batch.
absl::StatusOr<std::pair<std::uint32_t, std::uint32_t>> ReadArguments(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
  std::uint32_t batches = 0, points = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &batches) ||
      !absl::SimpleAtoi(parts[1], &points) || points == 0)
    return evergrad::UserError(absl::InvalidArgumentError(
        absl::StrCat("arguments of fit: want=BATCHES POINTS got=", text.substr(0, 100))));
  return std::make_pair(batches, points);
}

// The input function. The points come from the closure's random numbers, so they are the same on
// every worker and in every run.
absl::StatusOr<sdk::Source<Batch>> DrawPoints(const sdk::ClosureContext& closure) {
  EG_ASSIGN_OR_RETURN(const auto sizes, ReadArguments(closure.arguments()));
  const auto [batches, points] = sizes;
  return sdk::Source<Batch>([closure, next = 0u, batches = batches,
                             points = points]() mutable -> absl::StatusOr<std::optional<Batch>> {
    if (next == batches) return std::nullopt;
    Batch batch;
    for (std::uint64_t i = 0; i < points; ++i) {
      const std::uint64_t at = (std::uint64_t{next} * points + i) * 3;
      batch.x.push_back({closure.Normal(at), closure.Normal(at + 1)});
      batch.y.push_back(kSlope[0] * batch.x.back()[0] + kSlope[1] * batch.x.back()[1] + kHeight +
                        kNoise * closure.Normal(at + 2));
    }
    batch.last = ++next == batches;
    return batch;
  });
}

// The step function: the gradient of the mean squared error of one batch. The closure's result is
// the error of its last batch.
absl::Status FitStep(sdk::StepContext& step, Batch& batch) {
  EG_ASSIGN_OR_RETURN(const sdk::Values slope, step.Pull("slope"));
  EG_ASSIGN_OR_RETURN(const sdk::Values height, step.Pull("height"));
  const double n = static_cast<double>(batch.y.size());
  double error = 0;
  std::array<double, 3> gradient{};
  for (std::size_t i = 0; i < batch.y.size(); ++i) {
    const double off =
        slope.data[0] * batch.x[i][0] + slope.data[1] * batch.x[i][1] + height.data[0] - batch.y[i];
    error += off * off / n;
    gradient[0] += 2 * off * batch.x[i][0] / n;
    gradient[1] += 2 * off * batch.x[i][1] / n;
    gradient[2] += 2 * off / n;
  }
  const std::array<float, 2> by_slope{static_cast<float>(gradient[0]),
                                      static_cast<float>(gradient[1])};
  const std::array<float, 1> by_height{static_cast<float>(gradient[2])};
  EG_RETURN_IF_ERROR(step.Push("slope", by_slope));
  EG_RETURN_IF_ERROR(step.Push("height", by_height));
  // Plain SGD with rate 1 adds 1 to the variable for this gradient. After a run, the variable
  // therefore shows how often the servers have applied a step.
  const std::array<float, 1> one{-1.0f};
  EG_RETURN_IF_ERROR(step.Push("steps", one));
  step.CountExamples(batch.y.size());
  return batch.last ? step.SetResult(absl::StrFormat("%.6f", error)) : absl::OkStatus();
}

// A step without input. Its result is the present values of the variables, as text.
absl::Status ReadStep(sdk::StepContext& step) {
  EG_ASSIGN_OR_RETURN(const sdk::Values slope, step.Pull("slope"));
  EG_ASSIGN_OR_RETURN(const sdk::Values height, step.Pull("height"));
  EG_ASSIGN_OR_RETURN(const sdk::Values steps, step.Pull("steps"));
  return step.SetResult(absl::StrFormat("%.4f %.4f %.4f %.0f", slope.data[0], slope.data[1],
                                        height.data[0], steps.data[0]));
}

}  // namespace

int main(int argc, char** argv) {
  sdk::Registry functions;
  functions.Register("fit", DrawPoints, FitStep);
  functions.Register("read", ReadStep);
  return sdk::WorkerMain(argc, argv, std::move(functions));
}
