// The computations that names of the tables stand for. The tables map the names; the worker's
// backends compute.
#pragma once

namespace evergrad::config {

enum class Activation { kLinear, kRelu, kTanh, kSigmoid, kSoftmax };

// Not at all, or into one row (a bag).
enum class Combiner { kNone, kSum, kMean, kSqrtN };

enum class LossType { kSparseCategoricalCrossentropy, kBinaryCrossentropy, kMeanSquaredError };

enum class MetricType { kAccuracy, kAuc, kRootMeanSquaredError };

}  // namespace evergrad::config
