// Identifiers of the computations that a job file names. The tables of this room map the names to
// the identifiers; the worker's backends perform the computations.
#pragma once

namespace evergrad::config {

enum class Activation { kLinear, kRelu, kTanh, kSigmoid, kSoftmax };

// kNone keeps the rows of an example separate. The other combiners combine the rows of an example
// into one row (a bag).
enum class Combiner { kNone, kSum, kMean, kSqrtN };

enum class LossType { kSparseCategoricalCrossentropy, kBinaryCrossentropy, kMeanSquaredError };

enum class MetricType { kAccuracy, kAuc, kRootMeanSquaredError };

}  // namespace evergrad::config
