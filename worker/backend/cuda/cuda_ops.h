/* The kernels of libevergrad_cuda.so, each with one struct of arguments in plain C.
 * worker/backend/backend.h specifies their results; this file describes only the differences.
 * Pointers point into the device's memory unless stated. A null output is not computed; a null
 * input is absent. All sizes are in elements.
 *
 * void pointers point to elements of the `type` beside them (EgElement).
 *
 * `scratch` is memory that the kernel may overwrite; kernels/scratch.h gives its size. EG_OPS lists
 * all kernels as X(enumerator, struct). */
#ifndef EVERGRAD_WORKER_BACKEND_CUDA_CUDA_OPS_H_
#define EVERGRAD_WORKER_BACKEND_CUDA_CUDA_OPS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lists are part of the arguments, which CUDA limits to 4 KB. */
#define EG_LIST_MAX 96

enum EgElement { EG_FLOAT32 = 1, EG_FLOAT16 = 3, EG_BFLOAT16 = 4 };
enum EgActivation { EG_LINEAR = 0, EG_RELU = 1, EG_TANH = 2, EG_SIGMOID = 3 };

typedef struct EgActivate {
  int64_t n;
  const void* x;
  void* y;
  int32_t activation, type;
} EgActivate;
typedef struct EgActivateBack {
  int64_t n;
  const void* y;
  const void* dy;
  void* dx;
  int32_t activation, type;
} EgActivateBack;
typedef struct EgSoftmax {
  int64_t rows, columns;
  const void* x;
  void* y;
  int32_t type, reserved;
} EgSoftmax;
typedef struct EgSoftmaxBack {
  int64_t rows, columns;
  const void* y;
  const void* dy;
  void* dx;
  int32_t type, reserved;
} EgSoftmaxBack;
typedef struct EgDropout {
  int64_t n;
  double rate;
  const uint64_t* key;
  const void* x;
  void* y;
  int32_t type, reserved;
} EgDropout;
typedef struct EgZero {
  uint64_t bytes;
  void* to;
} EgZero;
typedef struct EgCast {
  int64_t n;
  const void* x;
  void* y;
  int32_t x_type, y_type;
} EgCast; /* a copy if the types are equal */
typedef struct EgScale {
  int64_t n;
  const void* x;
  void* y;
  float factor;
  int32_t add, x_type, y_type;
} EgScale; /* add: y += factor x */
typedef struct EgSum {
  int64_t n;
  int32_t count, reserved;
  const void* inputs[EG_LIST_MAX];
  const float* before;
  void* y;
  int32_t x_type, y_type;
} EgSum; /* y = before + inputs[0] + …, added in this order; `before` may be y */
typedef struct EgMultiply {
  int64_t n;
  const void* a;
  const void* b;
  void* y;
  int32_t type, reserved;
} EgMultiply; /* y may be a */
typedef struct EgCopyColumns {
  int64_t rows, width, x_columns, x_begin, y_columns, y_begin;
  const void* x;
  void* y;
  int32_t type, reserved;
} EgCopyColumns;
typedef struct EgTranspose {
  int64_t rows, columns;
  const void* x;
  void* y;
  int32_t x_type, y_type;
} EgTranspose; /* y[c][r] = x[r][c] */
/* Turns images of [in_h][in_w][channels] into images of [out_h][out_w][channels]: y[h][w] =
 * x[h - top][w - left], and zeros outside of x. */
typedef struct EgPad {
  int64_t batch, in_h, in_w, out_h, out_w, channels, top, left;
  const void* x;
  void* y;
  int32_t type, reserved;
} EgPad;
/* y = activation(y + bias), in place, for rows of `columns`. */
typedef struct EgBiasActivate {
  int64_t rows, columns;
  const float* bias;
  void* y;
  int32_t activation, type;
} EgBiasActivate;
typedef struct EgColumnSums {
  int64_t rows, columns;
  const void* x;
  float* y;
  double* scratch;
  int32_t type, reserved;
} EgColumnSums;

typedef struct EgBatchNorm {
  int64_t rows, channels;
  double epsilon;
  const void* x;
  const float* gamma;
  const float* beta;
  float* mean;
  float* variance;
  void* y;
  double* scratch;
  int32_t type, reserved;
} EgBatchNorm;
typedef struct EgBatchNormInference {
  int64_t rows, channels;
  double epsilon;
  const void* x;
  const float* gamma;
  const float* beta;
  const float* mean;
  const float* variance;
  void* y;
  int32_t type, reserved;
} EgBatchNormInference;
typedef struct EgBatchNormBack {
  int64_t rows, channels;
  double epsilon;
  const void* x;
  const float* gamma;
  const float* mean;
  const float* variance;
  const void* dy;
  void* dx;
  float* dgamma;
  float* dbeta;
  double* scratch;
  int32_t type, reserved;
} EgBatchNormBack;
typedef struct EgLayerNorm {
  int64_t rows, columns;
  double epsilon;
  const void* x;
  const float* gamma;
  const float* beta;
  float* mean;
  float* variance;
  void* y;
  int32_t type, reserved;
} EgLayerNorm;
typedef struct EgLayerNormBack {
  int64_t rows, columns;
  double epsilon;
  const void* x;
  const float* gamma;
  const float* mean;
  const float* variance;
  const void* dy;
  void* dx;
  float* dgamma;
  float* dbeta;
  double* scratch;
  int32_t type, reserved;
} EgLayerNormBack;

typedef struct EgPoolShape {
  int64_t batch, in_h, in_w, channels, out_h, out_w, pool_h, pool_w, stride_h, stride_w, pad_top,
      pad_left;
} EgPoolShape;
typedef struct EgMaxPool {
  EgPoolShape s;
  const void* x;
  void* y;
  int32_t* argmax;
  int32_t type, reserved;
} EgMaxPool;
typedef struct EgMaxPoolBack {
  EgPoolShape s;
  const void* dy;
  const int32_t* argmax;
  void* dx;
  int32_t type, reserved;
} EgMaxPoolBack;
typedef struct EgAveragePool {
  int64_t batch, positions, channels;
  const void* x;
  void* y;
  int32_t type, reserved;
} EgAveragePool;
typedef struct EgAveragePoolBack {
  int64_t batch, positions, channels;
  const void* dy;
  void* dx;
  int32_t type, reserved;
} EgAveragePoolBack;

typedef struct EgDot {
  int64_t batch, elements;
  int32_t normalize, reserved;
  const float *a, *b;
  float* y;
} EgDot;
typedef struct EgDotBack {
  int64_t batch, elements;
  int32_t normalize, reserved;
  const float *a, *b, *dy;
  float* da;
} EgDotBack;
typedef struct EgFactorization {
  int64_t batch, dimension;
  int32_t count, reserved;
  const float* inputs[EG_LIST_MAX];
  int64_t fields[EG_LIST_MAX];
  float *sums, *y;
} EgFactorization;
typedef struct EgFactorizationBack {
  int64_t batch, fields, dimension;
  const float *v, *sums, *dy;
  float* dv;
} EgFactorizationBack;

enum EgCombiner { EG_NONE = 0, EG_BAG_SUM = 1, EG_BAG_MEAN = 2, EG_BAG_SQRTN = 3 };
typedef struct EgEmbedding {
  int64_t batch, dimension, ids;
  int32_t combiner, count;
  int64_t widths[EG_LIST_MAX];
} EgEmbedding; /* ids: per example */
typedef struct EgGather {
  EgEmbedding s;
  const uint32_t* position;
  const float* rows;
  const float* weights;
  void* y;
  int32_t type, reserved;
} EgGather;
typedef struct EgScatter {
  EgEmbedding s;
  int64_t rows;
  const uint32_t* position;
  const float* weights;
  const void* dy;
  float* row_gradients;
  void* scratch;
  int32_t type, reserved;
} EgScatter;

enum EgLossType { EG_SPARSE_CATEGORICAL = 0, EG_BINARY = 1, EG_MEAN_SQUARED = 2 };
typedef struct EgLossResult {
  double sum;
  int64_t correct, bad_label;
  double bad_value;
} EgLossResult;
typedef struct EgLoss {
  int32_t type, from_logits, accuracy, reserved;
  int64_t batch, rows, columns;
  const float *output, *labels;
  float* gradient;
  EgLossResult* result;
  void* scratch;
} EgLoss;
typedef struct EgAuc {
  int64_t n;
  int32_t from_logits, bins;
  const float *output, *labels;
  int64_t* counts;
} EgAuc;
typedef struct EgMeanSquares {
  int64_t batch, elements;
  const float *output, *labels;
  double *sum, *scratch;
} EgMeanSquares;
typedef struct EgSquares {
  int64_t n;
  const float* x;
  double *sum, *scratch;
} EgSquares;
typedef struct EgNotFinite {
  int64_t n;
  const void* x;
  uint64_t* found;
  int32_t type, reserved;
} EgNotFinite;

// clang-format off
#define EG_OPS(X) \
  X(EG_OP_ACTIVATE, EgActivate) X(EG_OP_ACTIVATE_BACK, EgActivateBack) X(EG_OP_SOFTMAX, EgSoftmax) \
  X(EG_OP_SOFTMAX_BACK, EgSoftmaxBack) X(EG_OP_DROPOUT, EgDropout) X(EG_OP_ZERO, EgZero) \
  X(EG_OP_CAST, EgCast) X(EG_OP_SCALE, EgScale) X(EG_OP_SUM, EgSum) X(EG_OP_MULTIPLY, EgMultiply) \
  X(EG_OP_COPY_COLUMNS, EgCopyColumns) X(EG_OP_TRANSPOSE, EgTranspose) X(EG_OP_PAD, EgPad) \
  X(EG_OP_BIAS_ACTIVATE, EgBiasActivate) X(EG_OP_COLUMN_SUMS, EgColumnSums) \
  X(EG_OP_BATCH_NORM, EgBatchNorm) X(EG_OP_BATCH_NORM_INFERENCE, EgBatchNormInference) \
  X(EG_OP_BATCH_NORM_BACK, EgBatchNormBack) X(EG_OP_LAYER_NORM, EgLayerNorm) \
  X(EG_OP_LAYER_NORM_BACK, EgLayerNormBack) X(EG_OP_MAX_POOL, EgMaxPool) \
  X(EG_OP_MAX_POOL_BACK, EgMaxPoolBack) X(EG_OP_AVERAGE_POOL, EgAveragePool) \
  X(EG_OP_AVERAGE_POOL_BACK, EgAveragePoolBack) X(EG_OP_DOT, EgDot) X(EG_OP_DOT_BACK, EgDotBack) \
  X(EG_OP_FACTORIZATION, EgFactorization) X(EG_OP_FACTORIZATION_BACK, EgFactorizationBack) \
  X(EG_OP_GATHER, EgGather) X(EG_OP_SCATTER, EgScatter) X(EG_OP_LOSS, EgLoss) X(EG_OP_AUC, EgAuc) \
  X(EG_OP_MEAN_SQUARES, EgMeanSquares) X(EG_OP_SQUARES, EgSquares) \
  X(EG_OP_NOT_FINITE, EgNotFinite)
// clang-format on

#define EG_OP_NUMBER_(name, type) name,
enum EgOp { EG_OPS(EG_OP_NUMBER_) EG_OP_COUNT };
#undef EG_OP_NUMBER_

#ifdef __cplusplus
}
#endif
#endif
