#include "worker/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/backend/cuda/cuda_products.h"
#include "worker/backend/cuda/cuda_types.h"
#include "worker/backend/cuda/kernels/columns.h"
#include "worker/backend/cuda/kernels/embedding.h"
#include "worker/backend/cuda/kernels/scratch.h"
#include "worker/backend/cuda/library.h"

namespace evergrad::worker {
namespace {

static_assert(sizeof(EgLossResult) == sizeof(LossResult) &&
              offsetof(EgLossResult, bad_value) == offsetof(LossResult, bad_value));
static_assert(cuda::kNoRow == kAbsent);

// The primitives that are kernels of our own. Each function fills in the struct of its kernel.
class CudaBackendImpl final : public CudaProducts {
 public:
  using CudaProducts::CudaProducts;

  // ---- Windows

  void MaxPoolForward(const PoolShape& s, AnyIn x, AnyOut y,
                      std::span<std::int32_t> argmax) override {
    Compute(EgMaxPool{ToC(s), x.data(), y.data(), argmax.data(), ToC(x.type()), 0});
  }
  void MaxPoolBackward(const PoolShape& s, AnyIn dy, std::span<const std::int32_t> argmax,
                       AnyOut dx) override {
    Compute(EgMaxPoolBack{ToC(s), dy.data(), argmax.data(), dx.data(), ToC(dy.type()), 0});
  }
  void GlobalAveragePoolForward(std::int64_t batch, std::int64_t positions, std::int64_t channels,
                                AnyIn x, AnyOut y) override {
    Compute(EgAveragePool{batch, positions, channels, x.data(), y.data(), ToC(x.type()), 0});
  }
  void GlobalAveragePoolBackward(std::int64_t batch, std::int64_t positions, std::int64_t channels,
                                 AnyIn dy, AnyOut dx) override {
    Compute(EgAveragePoolBack{batch, positions, channels, dy.data(), dx.data(), ToC(dy.type()), 0});
  }

  // ---- Element by element

  void ActivationForward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn x,
                         AnyOut y) override {
    if (a == Activation::kSoftmax)
      Compute(EgSoftmax{rows, columns, x.data(), y.data(), ToC(x.type()), 0});
    else
      Compute(EgActivate{rows * columns, x.data(), y.data(), ToC(a), ToC(x.type())});
  }
  void ActivationBackward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn y, AnyIn dy,
                          AnyOut dx) override {
    if (a == Activation::kSoftmax)
      Compute(EgSoftmaxBack{rows, columns, y.data(), dy.data(), dx.data(), ToC(y.type()), 0});
    else
      Compute(
          EgActivateBack{rows * columns, y.data(), dy.data(), dx.data(), ToC(a), ToC(y.type())});
  }
  void Dropout(double rate, std::span<const std::uint64_t> key, AnyIn x, AnyOut y) override {
    Compute(EgDropout{SizeOf(x), rate, key.data(), x.data(), y.data(), ToC(x.type()), 0});
  }
  void Zero(std::span<std::byte> memory) override { Compute(EgZero{memory.size(), memory.data()}); }
  void Copy(AnyIn x, AnyOut y) override {
    Compute(EgCast{SizeOf(x), x.data(), y.data(), ToC(x.type()), ToC(y.type())});
  }
  void Scale(float factor, In x, Out y) override {
    Compute(EgScale{SizeOf(x), x.data(), y.data(), factor, 0, EG_FLOAT32, EG_FLOAT32});
  }
  void AddScaled(float factor, AnyIn x, AnyOut y) override {
    Compute(EgScale{SizeOf(x), x.data(), y.data(), factor, 1, ToC(x.type()), ToC(y.type())});
  }
  void Sum(std::span<const AnyIn> inputs, AnyOut y) override {
    // Inputs beyond the limit of one launch are added to the float32 result of the previous launch.
    float* so_far = nullptr;
    if (inputs.size() > EG_LIST_MAX) {
      so_far = y.is_float32()
                   ? y.floats().data()
                   : Scratch<float>(static_cast<std::int64_t>(sizeof(float)) * SizeOf(y));
      if (so_far == nullptr) return;
    }
    for (std::size_t begin = 0; begin < inputs.size(); begin += EG_LIST_MAX) {
      const bool last = begin + EG_LIST_MAX >= inputs.size();
      EgSum a{};
      a.n = SizeOf(y);
      a.before = begin == 0 ? nullptr : so_far;
      a.y = last ? y.data() : so_far;
      a.x_type = ToC(inputs[begin].type());
      a.y_type = last ? ToC(y.type()) : EG_FLOAT32;
      a.count =
          static_cast<std::int32_t>(std::min<std::size_t>(EG_LIST_MAX, inputs.size() - begin));
      for (std::int32_t i = 0; i < a.count; ++i)
        a.inputs[i] = inputs[begin + static_cast<std::size_t>(i)].data();
      Compute(a);
    }
  }
  void Multiply(AnyIn a, AnyIn b, AnyOut y) override {
    Compute(EgMultiply{SizeOf(y), a.data(), b.data(), y.data(), ToC(y.type()), 0});
  }
  void CopyColumns(std::int64_t rows, std::int64_t width, AnyIn x, std::int64_t x_columns,
                   std::int64_t x_begin, AnyOut y, std::int64_t y_columns,
                   std::int64_t y_begin) override {
    Compute(EgCopyColumns{rows, width, x_columns, x_begin, y_columns, y_begin, x.data(), y.data(),
                          ToC(x.type()), 0});
  }

  // ---- Normalization

  void BatchNormForward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x, In gamma,
                        In beta, Out mean, Out variance, AnyOut y) override {
    double* const scratch = Scratch<double>(cuda::ColumnScratch(rows, channels, 2));
    if (scratch == nullptr) return;
    Compute(EgBatchNorm{rows, channels, epsilon, x.data(), gamma.data(), beta.data(), mean.data(),
                        variance.data(), y.data(), scratch, ToC(x.type()), 0});
  }
  void BatchNormInference(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                          In gamma, In beta, In mean, In variance, AnyOut y) override {
    Compute(EgBatchNormInference{rows, channels, epsilon, x.data(), gamma.data(), beta.data(),
                                 mean.data(), variance.data(), y.data(), ToC(x.type()), 0});
  }
  void BatchNormBackward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                         In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                         Out dbeta) override {
    double* const scratch = Scratch<double>(cuda::BatchNormBackScratch(rows, channels));
    if (scratch == nullptr) return;
    Compute(EgBatchNormBack{rows, channels, epsilon, x.data(), gamma.data(), mean.data(),
                            variance.data(), dy.data(), dx.data(), dgamma.data(), dbeta.data(),
                            scratch, ToC(x.type()), 0});
  }
  void LayerNormForward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x, In gamma,
                        In beta, Out mean, Out variance, AnyOut y) override {
    Compute(EgLayerNorm{rows, columns, epsilon, x.data(), gamma.data(), beta.data(), mean.data(),
                        variance.data(), y.data(), ToC(x.type()), 0});
  }
  void LayerNormBackward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x, In gamma,
                         In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                         Out dbeta) override {
    double* const scratch = Scratch<double>(cuda::ColumnScratch(rows, columns, 2));
    if (scratch == nullptr) return;
    Compute(EgLayerNormBack{rows, columns, epsilon, x.data(), gamma.data(), mean.data(),
                            variance.data(), dy.data(), dx.data(), dgamma.data(), dbeta.data(),
                            scratch, ToC(x.type()), 0});
  }

  // ---- Products of vectors

  void DotForward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                  Out y) override {
    Compute(EgDot{batch, elements, normalize ? 1 : 0, 0, a.data(), b.data(), y.data()});
  }
  void DotBackward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b, In dy,
                   Out da) override {
    Compute(
        EgDotBack{batch, elements, normalize ? 1 : 0, 0, a.data(), b.data(), dy.data(), da.data()});
  }
  void FactorizationForward(std::int64_t batch, std::int64_t dimension, std::span<const In> inputs,
                            Out sums, Out y) override {
    if (!ListFits("factorization", inputs.size())) return;
    EgFactorization a{};
    a.batch = batch;
    a.dimension = dimension;
    a.count = static_cast<std::int32_t>(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      a.inputs[i] = inputs[i].data();
      a.fields[i] = SizeOf(inputs[i]) / (batch * dimension);
    }
    a.sums = sums.data();
    a.y = y.data();
    Compute(a);
  }
  void FactorizationBackward(std::int64_t batch, std::int64_t dimension, In v, In sums, In dy,
                             Out dv) override {
    Compute(EgFactorizationBack{batch, SizeOf(v) / (batch * dimension), dimension, v.data(),
                                sums.data(), dy.data(), dv.data()});
  }

  // ---- Embeddings

  void EmbeddingGather(const EmbeddingShape& s, std::span<const std::uint32_t> position, In rows,
                       In weights, AnyOut y) override {
    if (!ListFits("embedding", s.widths.size())) return;
    Compute(
        EgGather{ToC(s), position.data(), rows.data(), weights.data(), y.data(), ToC(y.type()), 0});
  }
  void EmbeddingScatter(const EmbeddingShape& s, std::span<const std::uint32_t> position,
                        In weights, AnyIn dy, Out row_gradients) override {
    if (!ListFits("embedding", s.widths.size()) || position.empty()) return;
    EgScatter a{ToC(s),
                SizeOf(row_gradients) / s.dimension,
                position.data(),
                weights.data(),
                dy.data(),
                row_gradients.data(),
                nullptr,
                ToC(dy.type()),
                0};
    const std::int64_t sort = api_->sort_bytes(context_, a.s.batch * a.s.ids);
    if (sort < 0)
      return error_.Refuse(
          "embedding", absl::InternalError("the sort does not report the memory that it needs"));
    a.scratch = Scratch<std::byte>(cuda::ScatterScratch::Of(a.s.batch, a.s.ids, sort).bytes);
    if (a.scratch != nullptr) Compute(a);
  }

  // ---- Results of a step for the host

  void ComputeLoss(const Loss& loss, std::int64_t batch, In output, In labels, Out gradient,
                   LossResult* result) override {
    std::byte* const scratch = Scratch<std::byte>(cuda::LossScratch(batch));
    if (scratch == nullptr) return;
    const std::int32_t type = loss.type == LossType::kSparseCategoricalCrossentropy
                                  ? EG_SPARSE_CATEGORICAL
                              : loss.type == LossType::kBinaryCrossentropy ? EG_BINARY
                                                                           : EG_MEAN_SQUARED;
    Compute(EgLoss{type, loss.from_logits ? 1 : 0, loss.accuracy ? 1 : 0, 0, batch, loss.rows,
                   loss.columns, output.data(), labels.data(), gradient.data(),
                   reinterpret_cast<EgLossResult*>(result), scratch});
  }
  void CountAuc(bool from_logits, In output, In labels, std::span<std::int64_t> counts) override {
    Compute(EgAuc{SizeOf(output), from_logits ? 1 : 0, kAucBins, output.data(), labels.data(),
                  counts.data()});
  }
  void SumOfMeanSquares(std::int64_t batch, std::int64_t elements, In output, In labels,
                        double* sum) override {
    double* const scratch = Scratch<double>(8 * batch);
    if (scratch != nullptr)
      Compute(EgMeanSquares{batch, elements, output.data(), labels.data(), sum, scratch});
  }
  void SumOfSquares(In x, double* sum) override {
    double* const scratch = Scratch<double>(std::max<std::int64_t>(8, cuda::SumScratch(SizeOf(x))));
    if (scratch != nullptr) Compute(EgSquares{SizeOf(x), x.data(), sum, scratch});
  }
  void FindNotFinite(AnyIn x, std::uint64_t* found) override {
    Compute(EgNotFinite{SizeOf(x), x.data(), found, ToC(x.type()), 0});
  }

 private:
  bool ListFits(absl::string_view primitive, std::size_t count) {
    if (count <= EG_LIST_MAX) return true;
    error_.Refuse(primitive, absl::InternalError(absl::StrCat(
                                 "too many inputs for a GPU: got=", count, " max=", EG_LIST_MAX)));
    return false;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> MakeCudaBackend(const DeviceChoice& choice,
                                                             const CudaOptions& options) {
  EG_CHECK(choice.gpu());
  EgCudaError error{};
  EgContext* context = nullptr;
  const EgOpenOptions open{choice.device.ordinal, 0};
  if (choice.api->open(&open, &context, &error) != EG_CUDA_OK) {
    const absl::Status status = StatusOf(error);
    return absl::Status(status.code(),
                        absl::StrCat(choice.name, " cannot be opened: ", status.message()));
  }
  return std::make_unique<CudaBackendImpl>(choice, options, context);
}

}  // namespace evergrad::worker
