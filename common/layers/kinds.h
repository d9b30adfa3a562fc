// The computations that names of the tables stand for. The tables map the names; the worker's
// backends compute.
#pragma once

namespace evergrad::config {

enum class Activation { kLinear, kRelu, kTanh, kSigmoid, kSoftmax };

enum class LossType { kSparseCategoricalCrossentropy, kBinaryCrossentropy, kMeanSquaredError };

enum class MetricType { kAccuracy, kAuc, kRootMeanSquaredError };

}  // namespace evergrad::config
