// The primitives that are products of cuBLASLt and cuDNN: dense layers and convolutions, forward
// and backward. If the library has no plan for a product, the result is computed by another product
// that is equally exact.
#pragma once

#include "worker/backend/cuda/cuda_steps.h"

namespace evergrad::worker {

class CudaProducts : public CudaSteps {
 public:
  using CudaSteps::CudaSteps;

  void DenseForward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x, AnyIn w, In b,
                    Activation activation, AnyOut y) override;
  void DenseBackward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x, AnyIn w,
                     Activation activation, AnyIn y, AnyOut dy, AnyOut dx, Out dw, Out db) override;
  void Conv2dForward(const Conv2dShape& s, AnyIn x, AnyIn w, In b, Activation activation,
                     AnyOut y) override;
  void Conv2dBackward(const Conv2dShape& s, AnyIn x, AnyIn w, Activation activation, AnyIn y,
                      AnyOut dy, AnyOut dx, Out dw, Out db) override;

 private:
  bool RunAnyPlan(const char* name, const EgPlanKey& key, const EgPlanArguments& arguments);
  void MustRunPlan(const char* name, const EgPlanKey& key, const EgPlanArguments& arguments);
  void RunWide(const char* name, EgPlanKey key, EgPlanArguments p);

  void FinishRows(std::int64_t rows, std::int64_t columns, In b, Activation activation, AnyOut y);
  void ThroughActivation(Activation activation, std::int64_t rows, std::int64_t columns, AnyIn y,
                         AnyOut dy);
  void ColumnSums(std::int64_t rows, std::int64_t columns, AnyIn x, Out y);
  AnyIn Narrow(AnyIn x, Element type);
  void SetTypes(EgPlanKey* key, Element operands, Element result) const;
  float* Filters(const Conv2dShape& s);
};

}  // namespace evergrad::worker
