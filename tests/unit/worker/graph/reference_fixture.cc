#include "tests/unit/worker/graph/reference_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>

#include "common/random/philox.h"

namespace evergrad::worker::test {
namespace {

struct Tensor {
  std::vector<std::uint64_t> shape;  // the shape of one example
  std::vector<double> data;          // [batch, shape…]
};

std::int64_t Elements(const std::vector<std::uint64_t>& shape) {
  std::int64_t n = 1;
  for (const std::uint64_t d : shape) n *= static_cast<std::int64_t>(d);
  return n;
}

void Activate(const std::string& name, std::int64_t columns, std::vector<double>& x) {
  if (name == "relu") {
    for (double& v : x) v = std::max(v, 0.0);
  } else if (name == "tanh") {
    for (double& v : x) v = std::tanh(v);
  } else if (name == "sigmoid") {
    for (double& v : x) v = 1.0 / (1.0 + std::exp(-v));
  } else if (name == "softmax") {
    for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(columns)) {
      double sum = 0;
      for (std::int64_t c = 0; c < columns; ++c)
        sum += std::exp(x[row + static_cast<std::size_t>(c)]);
      for (std::int64_t c = 0; c < columns; ++c)
        x[row + static_cast<std::size_t>(c)] = std::exp(x[row + static_cast<std::size_t>(c)]) / sum;
    }
  } else if (name != "linear") {
    std::abort();
  }
}

// The rule is from TensorFlow's documentation: out = ceil(in / stride), and the smaller half of the
// padding comes first.
void Axis(std::int64_t in, std::int64_t window, std::int64_t stride, const std::string& padding,
          std::int64_t& out, std::int64_t& before) {
  if (padding == "valid") {
    out = 0;
    while (out * stride + window <= in) ++out;
    before = 0;
    return;
  }
  out = 0;
  while (out * stride < in) ++out;
  before = std::max<std::int64_t>(0, (out - 1) * stride + window - in) / 2;
}

}  // namespace

ReferenceResult ReferenceForward(const config::ModelSpec& model,
                                 const std::vector<std::vector<double>>& weights,
                                 const ReferenceBatch& batch, bool training,
                                 std::uint64_t dropout_key) {
  std::map<std::string, Tensor> values;
  for (std::size_t i = 0; i < model.inputs.size(); ++i)
    values[model.inputs[i].name] = {model.inputs[i].shape, batch.inputs[i]};
  ReferenceResult result;
  std::size_t next = 0;
  double penalty = 0;
  std::map<std::string, std::set<std::int64_t>> read;  // the ids of each table
  for (const config::LayerSpec& layer : model.layers) {
    for (std::size_t v = next; v < weights.size() && v < next + (layer.use_bias ? 2u : 1u) &&
                               (layer.type == "dense" || layer.type == "conv2d");
         ++v) {
      for (const double w : weights[v])
        penalty += (v == next ? layer.kernel_l2 : layer.bias_l2) * w * w;
    }
    const Tensor& x = values.at(layer.inputs[0]);
    Tensor y;
    if (layer.type == "dense") {
      const std::vector<double>& kernel = weights[next++];
      const std::vector<double>* bias = layer.use_bias ? &weights[next++] : nullptr;
      const std::size_t in = x.shape.back(), out = layer.units;
      y.shape = x.shape;
      y.shape.back() = out;
      for (std::size_t row = 0; row < x.data.size() / in; ++row) {
        for (std::size_t o = 0; o < out; ++o) {
          double sum = bias ? (*bias)[o] : 0;
          for (std::size_t i = 0; i < in; ++i) sum += x.data[row * in + i] * kernel[i * out + o];
          y.data.push_back(sum);
        }
      }
      Activate(layer.activation, static_cast<std::int64_t>(out), y.data);
    } else if (layer.type == "conv2d") {
      const std::vector<double>& kernel = weights[next++];
      const std::vector<double>* bias = layer.use_bias ? &weights[next++] : nullptr;
      const std::int64_t ih = static_cast<std::int64_t>(x.shape[0]),
                         iw = static_cast<std::int64_t>(x.shape[1]),
                         ic = static_cast<std::int64_t>(x.shape[2]);
      const std::int64_t kh = static_cast<std::int64_t>(layer.kernel_h),
                         kw = static_cast<std::int64_t>(layer.kernel_w),
                         f = static_cast<std::int64_t>(layer.filters);
      const std::int64_t sh = static_cast<std::int64_t>(layer.stride_h),
                         sw = static_cast<std::int64_t>(layer.stride_w);
      std::int64_t oh, ow, top, left;
      Axis(ih, kh, sh, layer.padding, oh, top);
      Axis(iw, kw, sw, layer.padding, ow, left);
      y.shape = {static_cast<std::uint64_t>(oh), static_cast<std::uint64_t>(ow), layer.filters};
      for (std::int64_t n = 0; n < batch.size; ++n)
        for (std::int64_t a = 0; a < oh; ++a)
          for (std::int64_t b = 0; b < ow; ++b)
            for (std::int64_t o = 0; o < f; ++o) {
              double sum = bias ? (*bias)[static_cast<std::size_t>(o)] : 0;
              for (std::int64_t p = 0; p < kh; ++p)
                for (std::int64_t q = 0; q < kw; ++q) {
                  const std::int64_t r = a * sh - top + p, c = b * sw - left + q;
                  if (r < 0 || c < 0 || r >= ih || c >= iw) continue;
                  for (std::int64_t i = 0; i < ic; ++i)
                    sum += x.data[static_cast<std::size_t>(((n * ih + r) * iw + c) * ic + i)] *
                           kernel[static_cast<std::size_t>(((p * kw + q) * ic + i) * f + o)];
                }
              y.data.push_back(sum);
            }
      Activate(layer.activation, f, y.data);
    } else if (layer.type == "max_pooling2d") {
      const std::int64_t ih = static_cast<std::int64_t>(x.shape[0]),
                         iw = static_cast<std::int64_t>(x.shape[1]),
                         ic = static_cast<std::int64_t>(x.shape[2]);
      const std::int64_t ph = static_cast<std::int64_t>(layer.pool_h),
                         pw = static_cast<std::int64_t>(layer.pool_w);
      const std::int64_t sh = static_cast<std::int64_t>(layer.stride_h),
                         sw = static_cast<std::int64_t>(layer.stride_w);
      std::int64_t oh, ow, top, left;
      Axis(ih, ph, sh, layer.padding, oh, top);
      Axis(iw, pw, sw, layer.padding, ow, left);
      y.shape = {static_cast<std::uint64_t>(oh), static_cast<std::uint64_t>(ow), x.shape[2]};
      for (std::int64_t n = 0; n < batch.size; ++n)
        for (std::int64_t a = 0; a < oh; ++a)
          for (std::int64_t b = 0; b < ow; ++b)
            for (std::int64_t o = 0; o < ic; ++o) {
              double best = -std::numeric_limits<double>::infinity();
              for (std::int64_t p = 0; p < ph; ++p)
                for (std::int64_t q = 0; q < pw; ++q) {
                  const std::int64_t r = a * sh - top + p, c = b * sw - left + q;
                  if (r >= 0 && c >= 0 && r < ih && c < iw)
                    best = std::max(
                        best, x.data[static_cast<std::size_t>(((n * ih + r) * iw + c) * ic + o)]);
                }
              y.data.push_back(best);
            }
    } else if (layer.type == "global_average_pooling2d") {
      const std::size_t channels = x.shape[2], positions = x.shape[0] * x.shape[1];
      y.shape = {channels};
      for (std::size_t n = 0; n < static_cast<std::size_t>(batch.size); ++n) {
        for (std::size_t c = 0; c < channels; ++c) {
          double sum = 0;
          for (std::size_t p = 0; p < positions; ++p)
            sum += x.data[(n * positions + p) * channels + c];
          y.data.push_back(sum / static_cast<double>(positions));
        }
      }
    } else if (layer.type == "batch_normalization" || layer.type == "layer_normalization") {
      const std::size_t columns = x.shape.back(), rows = x.data.size() / columns;
      std::vector<double> gamma(columns, 1.0), beta(columns, 0.0);
      if (layer.scale) gamma = weights[next++];
      if (layer.center) beta = weights[next++];
      for (std::size_t c = 0; c < columns; ++c)
        penalty += (layer.scale ? layer.gamma_l2 * gamma[c] * gamma[c] : 0) +
                   (layer.center ? layer.beta_l2 * beta[c] * beta[c] : 0);
      const bool of_batch = layer.type == "batch_normalization";
      y = x;
      // `at` returns the position of element i of group g. A group is a channel with its rows, or a
      // row with its channels.
      const std::size_t groups = of_batch ? columns : rows, members = of_batch ? rows : columns;
      const auto at = [&](std::size_t g, std::size_t i) {
        return of_batch ? i * columns + g : g * columns + i;
      };
      std::vector<double> means, variances;
      for (std::size_t g = 0; g < groups; ++g) {
        double mean = 0, variance = 0;
        for (std::size_t i = 0; i < members; ++i)
          mean += x.data[at(g, i)] / static_cast<double>(members);
        for (std::size_t i = 0; i < members; ++i)
          variance += std::pow(x.data[at(g, i)] - mean, 2) / static_cast<double>(members);
        means.push_back(mean), variances.push_back(variance);
        if (of_batch && !training) mean = weights[next][g], variance = weights[next + 1][g];
        for (std::size_t i = 0; i < members; ++i) {
          const std::size_t e = at(g, i), c = e % columns;
          y.data[e] = gamma[c] * (x.data[e] - mean) / std::sqrt(variance + layer.epsilon) + beta[c];
        }
      }
      if (of_batch) {
        if (x.shape.size() == 3 && rows > 1)  // Bessel's correction, as in Keras' fused kernel
          for (double& v : variances)
            v *= static_cast<double>(rows) / static_cast<double>(rows - 1);
        result.moving[layer.name + "/moving_mean"] = means;
        result.moving[layer.name + "/moving_variance"] = variances;
        next += 2;
      }
    } else if (layer.type == "flatten") {
      y = {{static_cast<std::uint64_t>(Elements(x.shape))}, x.data};
    } else if (layer.type == "activation") {
      y = x;
      Activate(layer.activation, static_cast<std::int64_t>(x.shape.back()), y.data);
    } else if (layer.type == "dropout") {
      y = x;
      const std::uint64_t key = random::KeyOf(
          dropout_key, layer.seed ? layer.name + "#" + std::to_string(*layer.seed) : layer.name);
      for (std::size_t i = 0; training && i < y.data.size(); ++i)
        y.data[i] = random::Uniform(key, i) >= layer.rate ? y.data[i] / (1.0 - layer.rate) : 0.0;
    } else if (layer.type == "embedding") {
      const auto& rows = batch.tables.at(layer.table);
      std::uint64_t dimension = 0, ids = 0;
      for (const config::TableSpec& table : model.tables)
        if (table.name == layer.table) dimension = table.dimension;
      for (const std::string& input : layer.inputs)
        ids += static_cast<std::uint64_t>(Elements(values.at(input).shape));
      y.shape = {dimension};
      if (layer.combiner == "none" && (layer.inputs.size() > 1 || !x.shape.empty()))
        y.shape = {ids, dimension};
      for (std::int64_t n = 0; n < batch.size; ++n) {
        std::vector<double> bag(dimension);
        double sum = 0, squares = 0;
        for (const std::string& input : layer.inputs) {
          const std::int64_t width = Elements(values.at(input).shape);
          for (std::int64_t e = 0; e < width; ++e) {
            const std::size_t at = static_cast<std::size_t>(n * width + e);
            const std::int64_t id = static_cast<std::int64_t>(values.at(input).data[at]);
            const double w = layer.weights.empty() ? 1 : values.at(layer.weights).data[at];
            const std::vector<double> row = id < 0 ? std::vector<double>(dimension) : rows.at(id);
            if (id >= 0) read[layer.table].insert(id), sum += w, squares += w * w;
            if (layer.combiner == "none") y.data.insert(y.data.end(), row.begin(), row.end());
            for (std::size_t d = 0; d < dimension; ++d) bag[d] += w * row[d];
          }
        }
        if (layer.combiner == "none") continue;
        const double by = layer.combiner == "sum"    ? 1
                          : layer.combiner == "mean" ? sum
                                                     : std::sqrt(squares);
        for (const double b : bag) y.data.push_back(by == 0 ? 0 : b / by);
      }
    } else if (layer.type == "concatenate") {
      y.shape = x.shape;
      y.shape.back() = 0;
      for (const std::string& input : layer.inputs) y.shape.back() += values.at(input).shape.back();
      for (std::size_t row = 0; row < x.data.size() / x.shape.back(); ++row) {
        for (const std::string& input : layer.inputs) {
          const Tensor& part = values.at(input);
          for (std::size_t c = 0; c < part.shape.back(); ++c)
            y.data.push_back(part.data[row * part.shape.back() + c]);
        }
      }
    } else if (layer.type == "add") {
      y = x;
      for (std::size_t i = 1; i < layer.inputs.size(); ++i)
        for (std::size_t e = 0; e < y.data.size(); ++e)
          y.data[e] += values.at(layer.inputs[i]).data[e];
    } else if (layer.type == "multiply") {
      y = x;
      for (std::size_t i = 1; i < layer.inputs.size(); ++i)
        for (std::size_t e = 0; e < y.data.size(); ++e)
          y.data[e] *= values.at(layer.inputs[i]).data[e];
    } else if (layer.type == "dot") {
      y.shape = {1};
      const std::size_t width = x.shape[0];
      const std::vector<double>&a = x.data, &b = values.at(layer.inputs[1]).data;
      for (std::size_t n = 0; n < a.size(); n += width) {
        double ab = 0, aa = 0, bb = 0;
        for (std::size_t e = n; e < n + width; ++e)
          ab += a[e] * b[e], aa += a[e] * a[e], bb += b[e] * b[e];
        y.data.push_back(layer.normalize ? ab / std::sqrt(aa) / std::sqrt(bb) : ab);
      }
    } else if (layer.type == "factorization_machine") {
      y.shape = {1};
      const std::size_t dimension = x.shape.back();
      for (std::int64_t n = 0; n < batch.size; ++n) {
        std::vector<std::vector<double>> vectors;
        for (const std::string& input : layer.inputs) {
          const Tensor& part = values.at(input);
          const std::size_t fields = static_cast<std::size_t>(Elements(part.shape)) / dimension;
          for (std::size_t f = 0; f < fields; ++f) {
            const auto begin =
                part.data.begin() +
                static_cast<std::ptrdiff_t>((static_cast<std::size_t>(n) * fields + f) * dimension);
            vectors.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(dimension));
          }
        }
        double pairs = 0;
        for (std::size_t i = 0; i < vectors.size(); ++i)
          for (std::size_t j = i + 1; j < vectors.size(); ++j)
            for (std::size_t d = 0; d < dimension; ++d) pairs += vectors[i][d] * vectors[j][d];
        y.data.push_back(pairs);
      }
    } else {
      std::abort();
    }
    values[layer.name] = std::move(y);
  }
  for (const auto& [name, value] : values) result.shapes[name] = value.shape;

  const double epsilon = 1e-7;
  for (std::size_t l = 0; l < model.losses.size(); ++l) {
    const config::LossSpec& loss = model.losses[l];
    const Tensor& y = values.at(loss.output);
    const std::int64_t elements = Elements(y.shape),
                       columns = static_cast<std::int64_t>(y.shape.back());
    for (std::int64_t n = 0; n < batch.size; ++n) {
      const double* output = y.data.data() + n * elements;
      double sum = 0;
      bool correct = true;
      if (loss.type == "sparse_categorical_crossentropy") {
        const std::int64_t rows = elements / columns;
        for (std::int64_t r = 0; r < rows; ++r) {
          const double* row = output + r * columns;
          const std::int64_t label =
              static_cast<std::int64_t>(batch.labels[static_cast<std::size_t>(n * rows + r)]);
          double total = 0;
          for (std::int64_t c = 0; c < columns; ++c)
            total += loss.from_logits ? std::exp(row[c]) : std::clamp(row[c], epsilon, 1 - epsilon);
          sum += std::log(total) - (loss.from_logits
                                        ? row[label]
                                        : std::log(std::clamp(row[label], epsilon, 1 - epsilon)));
          correct = correct && std::max_element(row, row + columns) - row == label;
        }
        sum /= static_cast<double>(rows);
      } else {
        for (std::int64_t e = 0; e < elements; ++e) {
          const double t = batch.labels[static_cast<std::size_t>(n * elements + e)];
          if (loss.type == "mean_squared_error") {
            sum += (output[e] - t) * (output[e] - t);
          } else {
            double p = loss.from_logits ? 1.0 / (1.0 + std::exp(-output[e]))
                                        : std::clamp(output[e], epsilon, 1 - epsilon);
            const double inside = loss.from_logits ? 0 : epsilon;
            sum -= t * std::log(p + inside) + (1 - t) * std::log(1 - p + inside);
            correct = correct && (p > 0.5) == (t > 0.5);
          }
        }
        sum /= static_cast<double>(elements);
      }
      result.loss_sum += sum;
      if (l == 0 && correct && !model.metrics.empty()) ++result.correct;
    }
  }
  for (const config::TableSpec& table : model.tables) {
    for (const std::int64_t id : read[table.name])
      for (const double w : batch.tables.at(table.name).at(id)) penalty += table.l2 * w * w;
  }
  result.loss_sum += static_cast<double>(batch.size) * penalty;
  return result;
}

namespace {

config::ModelSpec Model(std::vector<config::InputSpec> inputs,
                        std::vector<config::LayerSpec> layers,
                        std::vector<config::LossSpec> losses) {
  config::ModelSpec model;
  model.inputs = std::move(inputs), model.layers = std::move(layers),
  model.losses = std::move(losses);
  return model;
}

config::LayerSpec WithoutBias(config::LayerSpec spec) {
  spec.use_bias = false;
  return spec;
}

}  // namespace

std::vector<GradientCase> GradientCases() {
  const auto sparse = [](const char* output) {
    return LossOf("sparse_categorical_crossentropy", output, true);
  };
  std::vector<GradientCase> cases;
  cases.push_back(
      {"mlp of odd sizes, relu",
       Model({{"x", {7}}}, {DenseSpec("a", "x", 5, "relu"), DenseSpec("b", "a", 3)}, {sparse("b")}),
       3});
  cases.push_back(
      {"softmax and probabilities",
       Model({{"x", {6}}}, {DenseSpec("a", "x", 5, "tanh"), DenseSpec("b", "a", 4, "softmax")},
             {LossOf("sparse_categorical_crossentropy", "b")}),
       4});
  cases.push_back(
      {"sigmoid and binary",
       Model({{"x", {5}}}, {DenseSpec("a", "x", 3, "sigmoid"), DenseSpec("b", "a", 1, "sigmoid")},
             {LossOf("binary_crossentropy", "b")}),
       2});
  cases.push_back(
      {"binary from logits, soft targets, three outputs",
       Model({{"x", {5}}}, {DenseSpec("a", "x", 3)}, {LossOf("binary_crossentropy", "a", true)}),
       0});
  cases.push_back({"mean squared error, no bias",
                   Model({{"x", {4}}}, {WithoutBias(DenseSpec("a", "x", 3))},
                         {LossOf("mean_squared_error", "a")}),
                   0});
  cases.push_back({"conv valid, pool, flatten",
                   Model({{"x", {9, 7, 2}}},
                         {Conv2dSpec("c", "x", 3, 3, 2, 1, 1, "valid", "relu"),
                          MaxPooling2dSpec("p", "c", 2, 2, 2, 2), FlattenSpec("f", "p"),
                          DenseSpec("d", "f", 4)},
                         {sparse("d")}),
                   4});
  cases.push_back({"conv same with strides, asymmetric padding, overlapping pool same",
                   Model({{"x", {6, 7, 3}}},
                         {Conv2dSpec("c", "x", 5, 3, 2, 2, 1, "same", "tanh"),
                          MaxPooling2dSpec("p", "c", 3, 3, 2, 2, "same"), FlattenSpec("f", "p"),
                          DenseSpec("d", "f", 3)},
                         {sparse("d")}),
                   3});
  cases.push_back({"two convs, the second through the first, even kernel same",
                   Model({{"x", {5, 6, 1}}},
                         {Conv2dSpec("c1", "x", 4, 2, 2, 1, 1, "same", "sigmoid"),
                          WithoutBias(Conv2dSpec("c2", "c1", 3, 4, 4, 3, 2, "same")),
                          FlattenSpec("f", "c2"), DenseSpec("d", "f", 3)},
                         {sparse("d")}),
                   3});
  cases.push_back({"conv 1x1 with stride larger than kernel, softmax over channels",
                   Model({{"x", {5, 5, 3}}},
                         {Conv2dSpec("c", "x", 4, 1, 1, 2, 3, "valid", "softmax"),
                          FlattenSpec("f", "c"), DenseSpec("d", "f", 2)},
                         {LossOf("mean_squared_error", "d")}),
                   0});
  cases.push_back({"pool with gaps between windows, 17 channels",
                   Model({{"x", {7, 8, 1}}},
                         {Conv2dSpec("c", "x", 17, 2, 3), MaxPooling2dSpec("p", "c", 2, 1, 3, 2),
                          FlattenSpec("f", "p"), DenseSpec("d", "f", 3)},
                         {sparse("d")}),
                   3});
  cases.push_back({"dense over the last axis, one label a position",
                   Model({{"x", {2, 3, 4}}},
                         {DenseSpec("a", "x", 5, "relu"), DenseSpec("b", "a", 3)}, {sparse("b")}),
                   3});
  cases.push_back({"activation layers",
                   Model({{"x", {6}}},
                         {DenseSpec("a", "x", 5), ActivationSpec("t", "a", "tanh"),
                          DenseSpec("b", "t", 4), ActivationSpec("r", "b", "relu"),
                          DenseSpec("c", "r", 4), ActivationSpec("g", "c", "sigmoid"),
                          ActivationSpec("l", "g", "linear"), ActivationSpec("s", "l", "softmax")},
                         {LossOf("sparse_categorical_crossentropy", "s")}),
                   4});
  cases.push_back({"dropout between and before variables",
                   Model({{"x", {9}}},
                         {DropoutSpec("e", "x", 0.2), DenseSpec("a", "e", 8, "tanh"),
                          DropoutSpec("o", "a", 0.5), DenseSpec("b", "o", 3)},
                         {sparse("b")}),
                   3});
  cases.push_back(
      {"fan-out: a trunk feeds two heads, a view and its source are both used",
       Model(
           {{"x", {6, 6, 2}}},
           {Conv2dSpec("trunk", "x", 3, 3, 3, 1, 1, "valid", "tanh"), FlattenSpec("flat", "trunk"),
            DenseSpec("head1", "flat", 3), MaxPooling2dSpec("pool", "trunk", 2, 2, 2, 2),
            FlattenSpec("flat2", "pool"), DenseSpec("mid", "flat2", 4, "sigmoid"),
            DenseSpec("head2", "mid", 3), DenseSpec("head3", "mid", 3, "softmax")},
           {sparse("head1"), sparse("head2"), LossOf("sparse_categorical_crossentropy", "head3")}),
       3});
  const auto wide = [](config::LayerSpec spec) {
    spec.dtype = "float32";
    return spec;
  };
  cases.push_back(
      {"layers of float32 between, before and beside others",
       Model({{"x", {6, 6, 2}}},
             {wide(Conv2dSpec("trunk", "x", 4, 3, 3, 1, 1, "valid", "tanh")),
              Conv2dSpec("narrow", "trunk", 4, 3, 3, 1, 1, "same", "tanh"),
              wide(Conv2dSpec("wide", "narrow", 4, 1, 1, 1, 1, "same", "sigmoid")),
              wide(MergeSpec("sum", "add", {"narrow", "wide", "trunk"})),
              MaxPooling2dSpec("pool", "sum", 2, 2, 2, 2), FlattenSpec("flat", "pool"),
              wide(DenseSpec("mid", "flat", 4, "sigmoid")), wide(DenseSpec("head", "mid", 3))},
             {sparse("head")}),
       3});
  cases.push_back({"two inputs, one head each",
                   Model({{"x", {3}}, {"z", {4}}}, {DenseSpec("a", "x", 3), DenseSpec("b", "z", 3)},
                         {sparse("a"), sparse("b")}),
                   3});
  cases.push_back({"two losses on one output",
                   Model({{"x", {3}}}, {DenseSpec("a", "x", 2, "sigmoid")},
                         {LossOf("mean_squared_error", "a"), LossOf("binary_crossentropy", "a")}),
                   0});
  const auto with_tables = [](std::vector<config::TableSpec> tables, config::ModelSpec model) {
    model.tables = std::move(tables);
    return model;
  };
  const auto regular = [](config::LayerSpec spec) {
    spec.kernel_l2 = 0.03, spec.bias_l2 = 0.5;
    return spec;
  };
  cases.push_back(
      {"l2 of kernels and biases",
       Model({{"x", {3}}}, {regular(DenseSpec("a", "x", 4, "tanh")), DenseSpec("b", "a", 2)},
             {sparse("b")}),
       2});
  // A parameter that only shifts the input of a batch normalization has no gradient, so there would
  // be nothing to compare.
  config::LayerSpec without_beta = PlainSpec("n", "batch_normalization", "x");
  without_beta.center = false, without_beta.gamma_l2 = 0.1;
  cases.push_back({"batch normalization of vectors, first and in the middle",
                   Model({{"x", {4}}},
                         {without_beta, WithoutBias(DenseSpec("a", "n", 5)),
                          PlainSpec("m", "batch_normalization", "a"),
                          ActivationSpec("r", "m", "tanh"), DenseSpec("b", "r", 3)},
                         {sparse("b")}),
                   3});
  config::LayerSpec bare = PlainSpec("m", "batch_normalization", "c2");
  bare.center = bare.scale = false;
  bare.epsilon = 0.2;
  cases.push_back(
      {"batch normalization of images between convolutions, without gamma and beta; global average "
       "pooling",
       Model({{"x", {5, 4, 2}}},
             {WithoutBias(Conv2dSpec("c", "x", 3, 3, 3, 1, 1, "same")),
              PlainSpec("n", "batch_normalization", "c"), ActivationSpec("r", "n", "tanh"),
              WithoutBias(Conv2dSpec("c2", "r", 3, 1, 1)), bare, MergeSpec("s", "add", {"m", "r"}),
              PlainSpec("g", "global_average_pooling2d", "s"), DenseSpec("d", "g", 3)},
             {sparse("d")}),
       3});
  config::LayerSpec only_gamma = PlainSpec("n", "layer_normalization", "a"),
                    only_beta = PlainSpec("o", "layer_normalization", "t");
  only_gamma.center = false, only_gamma.gamma_l2 = 0.2;
  only_beta.scale = false, only_beta.beta_l2 = 0.3, only_beta.epsilon = 0.05;
  cases.push_back({"layer normalization over the last axis, each part alone",
                   Model({{"x", {2, 4}}},
                         {DenseSpec("a", "x", 5), only_gamma, ActivationSpec("t", "n", "tanh"),
                          only_beta, DenseSpec("b", "o", 4),
                          PlainSpec("p", "layer_normalization", "b"), DenseSpec("c", "p", 2)},
                         {sparse("c")}),
                   2});
  cases.push_back(
      {"concatenate, add and dot of layers and inputs, one of them twice",
       Model({{"x", {4}}, {"z", {3}}},
             {DenseSpec("a", "x", 3, "tanh"), DenseSpec("b", "z", 3),
              MergeSpec("sum", "add", {"a", "b", "a"}), MergeSpec("dot", "dot", {"a", "sum"}),
              MergeSpec("all", "concatenate", {"sum", "dot", "z", "b"}), DenseSpec("c", "all", 3)},
             {sparse("c")}),
       3});
  cases.push_back({"concatenate along the last of two axes, and of a view",
                   Model({{"x", {2, 3}}},
                         {DenseSpec("a", "x", 4, "tanh"), DenseSpec("b", "x", 2),
                          MergeSpec("ab", "concatenate", {"a", "b"}), FlattenSpec("f", "ab"),
                          FlattenSpec("g", "a"), MergeSpec("fg", "concatenate", {"f", "g"}),
                          DenseSpec("c", "fg", 2)},
                         {sparse("c")}),
                   2});
  cases.push_back({"multiply two and three inputs, one of them twice",
                   Model({{"x", {2, 3}}},
                         {DenseSpec("a", "x", 4, "tanh"), DenseSpec("b", "x", 4),
                          MergeSpec("ab", "multiply", {"a", "b"}),
                          MergeSpec("aba", "multiply", {"a", "ab", "a"}), DenseSpec("c", "aba", 3)},
                         {sparse("c")}),
                   3});
  config::LayerSpec cosine = MergeSpec("cosine", "dot", {"a", "b"});
  cosine.normalize = true;
  cases.push_back(
      {"dot of unit vectors",
       Model({{"x", {4}}}, {DenseSpec("a", "x", 3), DenseSpec("b", "x", 3, "tanh"), cosine},
             {LossOf("mean_squared_error", "cosine")}),
       0});
  cases.push_back(
      {"factorization machine over a list of vectors and a matrix",
       Model({{"x", {4}}, {"z", {2, 3}}},
             {DenseSpec("a", "x", 5, "tanh"), DenseSpec("m", "z", 5), DenseSpec("b", "x", 5),
              MergeSpec("fm", "factorization_machine", {"a", "m", "b"})},
             {LossOf("binary_crossentropy", "fm", true)}),
       2});
  cases.push_back(
      {"embeddings: matrix factorization with biases and l2",
       with_tables(
           {TableOf("users", 4, 0.05), TableOf("movies", 4), TableOf("biases", 1, 0.3)},
           Model({{"user", {}}, {"movie", {}}},
                 {EmbeddingSpec("u", "users", {"user"}), EmbeddingSpec("m", "movies", {"movie"}),
                  EmbeddingSpec("ub", "biases", {"user"}), EmbeddingSpec("mb", "biases", {"movie"}),
                  MergeSpec("um", "dot", {"u", "m"}), MergeSpec("s", "add", {"um", "ub", "mb"})},
                 {LossOf("mean_squared_error", "s")})),
       0});
  cases.push_back({"embeddings: DeepFM, one table read by two layers of other shapes",
                   with_tables({TableOf("factors", 3, 0.01), TableOf("weights", 1)},
                               Model({{"f", {5}}, {"more", {2}}},
                                     {EmbeddingSpec("linear", "weights", {"f", "more"}, "sum"),
                                      EmbeddingSpec("v", "factors", {"f"}),
                                      EmbeddingSpec("w", "factors", {"more", "f"}),
                                      MergeSpec("fm", "factorization_machine", {"v", "w"}),
                                      FlattenSpec("flat", "w"), DenseSpec("h", "flat", 4, "tanh"),
                                      DenseSpec("deep", "h", 1),
                                      MergeSpec("logit", "add", {"linear", "fm", "deep"})},
                                     {LossOf("binary_crossentropy", "logit", true)})),
                   2});
  for (const char* combiner : {"sum", "mean", "sqrtn"}) {
    cases.push_back({std::string("embeddings: bags with and without weights, ") + combiner,
                     with_tables({TableOf("t", 3)},
                                 Model({{"ids", {4}}, {"w", {4}}},
                                       {EmbeddingSpec("plain", "t", {"ids"}, combiner),
                                        EmbeddingSpec("weighted", "t", {"ids"}, combiner, "w"),
                                        MergeSpec("both", "concatenate", {"plain", "weighted"}),
                                        DenseSpec("d", "both", 2)},
                                       {sparse("d")})),
                     2});
  }
  return cases;
}

config::LayerSpec DenseSpec(const std::string& name, const std::string& input, std::uint64_t units,
                            const std::string& activation) {
  config::LayerSpec spec;
  spec.name = name, spec.type = "dense", spec.inputs = {input}, spec.units = units,
  spec.activation = activation;
  return spec;
}
config::LayerSpec Conv2dSpec(const std::string& name, const std::string& input,
                             std::uint64_t filters, std::uint64_t kernel_h, std::uint64_t kernel_w,
                             std::uint64_t stride_h, std::uint64_t stride_w,
                             const std::string& padding, const std::string& activation) {
  config::LayerSpec spec;
  spec.name = name, spec.type = "conv2d", spec.inputs = {input}, spec.filters = filters,
  spec.activation = activation, spec.padding = padding;
  spec.kernel_h = kernel_h, spec.kernel_w = kernel_w, spec.stride_h = stride_h,
  spec.stride_w = stride_w;
  return spec;
}
config::LayerSpec MaxPooling2dSpec(const std::string& name, const std::string& input,
                                   std::uint64_t pool_h, std::uint64_t pool_w,
                                   std::uint64_t stride_h, std::uint64_t stride_w,
                                   const std::string& padding) {
  config::LayerSpec spec;
  spec.name = name, spec.type = "max_pooling2d", spec.inputs = {input}, spec.padding = padding;
  spec.pool_h = pool_h, spec.pool_w = pool_w, spec.stride_h = stride_h, spec.stride_w = stride_w;
  return spec;
}
config::LayerSpec FlattenSpec(const std::string& name, const std::string& input) {
  config::LayerSpec spec;
  spec.name = name, spec.type = "flatten", spec.inputs = {input};
  return spec;
}
config::LayerSpec ActivationSpec(const std::string& name, const std::string& input,
                                 const std::string& activation) {
  config::LayerSpec spec;
  spec.name = name, spec.type = "activation", spec.inputs = {input}, spec.activation = activation;
  return spec;
}
config::LayerSpec PlainSpec(const std::string& name, const std::string& type,
                            const std::string& input) {
  config::LayerSpec spec;
  spec.name = name, spec.type = type, spec.inputs = {input};
  return spec;
}
config::LayerSpec MergeSpec(const std::string& name, const std::string& type,
                            std::vector<std::string> inputs) {
  config::LayerSpec spec;
  spec.name = name, spec.type = type, spec.inputs = std::move(inputs);
  return spec;
}
config::LayerSpec EmbeddingSpec(const std::string& name, const std::string& table,
                                std::vector<std::string> inputs, const std::string& combiner,
                                const std::string& weights) {
  config::LayerSpec spec = MergeSpec(name, "embedding", std::move(inputs));
  spec.table = table, spec.combiner = combiner, spec.weights = weights;
  return spec;
}
config::TableSpec TableOf(const std::string& name, std::uint32_t dimension, double l2) {
  config::TableSpec spec;
  spec.name = name, spec.dimension = dimension, spec.l2 = l2;
  return spec;
}
config::LayerSpec DropoutSpec(const std::string& name, const std::string& input, double rate) {
  config::LayerSpec spec;
  spec.name = name, spec.type = "dropout", spec.inputs = {input}, spec.rate = rate;
  return spec;
}
config::LossSpec LossOf(const std::string& type, const std::string& output, bool from_logits) {
  config::LossSpec spec;
  spec.type = type, spec.output = output, spec.from_logits = from_logits, spec.labels = "label";
  return spec;
}

config::ModelSpec MlpModel() {
  config::ModelSpec model;
  model.inputs = {{"image", {28, 28, 1}}};
  model.layers = {FlattenSpec("flat", "image"), DenseSpec("dense1", "flat", 256, "relu"),
                  DenseSpec("dense2", "dense1", 128, "relu"), DenseSpec("logits", "dense2", 10)};
  model.losses = {LossOf("sparse_categorical_crossentropy", "logits", true)};
  model.metrics = {"accuracy"};
  return model;
}
config::ModelSpec SmallCnnModel() {
  config::ModelSpec model;
  model.inputs = {{"image", {28, 28, 1}}};
  model.layers = {Conv2dSpec("conv1", "image", 8, 3, 3, 1, 1, "valid", "relu"),
                  MaxPooling2dSpec("pool1", "conv1", 2, 2, 2, 2),
                  Conv2dSpec("conv2", "pool1", 16, 3, 3, 1, 1, "valid", "relu"),
                  MaxPooling2dSpec("pool2", "conv2", 2, 2, 2, 2),
                  FlattenSpec("flat", "pool2"),
                  DenseSpec("dense1", "flat", 32, "relu"),
                  DenseSpec("logits", "dense1", 10)};
  model.losses = {LossOf("sparse_categorical_crossentropy", "logits", true)};
  model.metrics = {"accuracy"};
  return model;
}

}  // namespace evergrad::worker::test
