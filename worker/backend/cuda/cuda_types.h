// Converts types of backend.h to types of the library's interface (cuda_abi.h, cuda_ops.h).
#pragma once

#include <cstdint>

#include "worker/backend/backend.h"
#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/cuda_ops.h"

namespace evergrad::worker {

constexpr std::int32_t QueueNumber(DeviceQueue queue) { return static_cast<std::int32_t>(queue); }
static_assert(QueueNumber(DeviceQueue::kCompute) == EG_LANE_COMPUTE &&
              QueueNumber(DeviceQueue::kIn) == EG_LANE_IN &&
              QueueNumber(DeviceQueue::kOut) == EG_LANE_OUT);

constexpr std::int32_t ToC(Element e) { return static_cast<std::int32_t>(e); }
static_assert(ToC(Element::kFloat32) == EG_FLOAT32 && ToC(Element::kFloat16) == EG_FLOAT16 &&
              ToC(Element::kBFloat16) == EG_BFLOAT16);

constexpr std::int32_t ToC(Activation a) {
  switch (a) {
    case Activation::kRelu: return EG_RELU;
    case Activation::kTanh: return EG_TANH;
    case Activation::kSigmoid: return EG_SIGMOID;
    default: return EG_LINEAR;
  }
}

inline EgPoolShape ToC(const PoolShape& s) {
  return {s.batch,  s.in_h,   s.in_w,     s.channels, s.out_h,   s.out_w,
          s.pool_h, s.pool_w, s.stride_h, s.stride_w, s.pad_top, s.pad_left};
}

inline EgEmbedding ToC(const EmbeddingShape& s) {
  EgEmbedding e{};
  e.batch = s.batch;
  e.dimension = s.dimension;
  e.combiner = s.combiner == Combiner::kNone   ? EG_NONE
               : s.combiner == Combiner::kSum  ? EG_BAG_SUM
               : s.combiner == Combiner::kMean ? EG_BAG_MEAN
                                               : EG_BAG_SQRTN;
  e.count = static_cast<std::int32_t>(s.widths.size());
  for (std::size_t i = 0; i < s.widths.size(); ++i) e.ids += e.widths[i] = s.widths[i];
  return e;
}

inline std::int64_t SizeOf(AnyIn x) { return static_cast<std::int64_t>(x.size()); }

}  // namespace evergrad::worker
