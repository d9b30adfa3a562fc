// Dense layers with cuBLASLt, which stores matrices by columns. Our row-major d[m,n] = a[m,k]
// b[k,n] is cuBLASLt's d'[n,m] = b'[n,k] a'[k,m] on the same bytes: A of cuBLASLt is our b, and B
// of cuBLASLt is our a. Our bias has one number per column, which is one number per row for
// cuBLASLt. The epilogue of cuBLASLt supports such a bias.
//
// relu is not fused into the epilogue. The contract requires that relu propagates NaN
// (worker/backend/cuda/README.md), and cuBLASLt does not document this for its fused relu.
#include <memory>
#include <vector>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/device/context.h"

namespace evergrad::cuda {
namespace {

constexpr int kHeuristicsMax = 16;
constexpr std::uint64_t kWorkspaceMax = 64ull << 20;

#define EG_BLAS_TRY(call) EG_CUDA_RETURN_IF(FromBlas(blas.call, #call, error))

cudaDataType_t DataTypeOf(int32_t element) {
  return element == EG_FLOAT16 ? CUDA_R_16F : element == EG_BFLOAT16 ? CUDA_R_16BF : CUDA_R_32F;
}

struct Product {
  const Blas& blas;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;

  explicit Product(const Blas& functions) : blas(functions) {}
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    for (const cublasLtMatrixLayout_t layout : {a, b, d})
      if (layout != nullptr) static_cast<void>(blas.cublasLtMatrixLayoutDestroy(layout));
    if (operation != nullptr) static_cast<void>(blas.cublasLtMatmulDescDestroy(operation));
  }

  int32_t Set(cublasLtMatmulDescAttributes_t attribute, const void* value, std::size_t bytes,
              EgCudaError* error) {
    EG_BLAS_TRY(cublasLtMatmulDescSetAttribute(operation, attribute, value, bytes));
    return EG_CUDA_OK;
  }

  int32_t Make(const EgPlanKey& key, EgCudaError* error) {
    EG_BLAS_TRY(cublasLtMatmulDescCreate(
        &operation, key.tf32 != 0 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t of_a = key.transpose_b != 0 ? CUBLAS_OP_T : CUBLAS_OP_N,
                            of_b = key.transpose_a != 0 ? CUBLAS_OP_T : CUBLAS_OP_N;
    EG_CUDA_RETURN_IF(Set(CUBLASLT_MATMUL_DESC_TRANSA, &of_a, sizeof of_a, error));
    EG_CUDA_RETURN_IF(Set(CUBLASLT_MATMUL_DESC_TRANSB, &of_b, sizeof of_b, error));
    if (key.bias != 0 || key.bias_gradient != 0) {
      const cublasLtEpilogue_t epilogue =
          key.bias != 0 ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADA;
      EG_CUDA_RETURN_IF(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, error));
      const cudaDataType_t type = CUDA_R_32F;
      EG_CUDA_RETURN_IF(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type, error));
      // A pointer is set because the offered algorithms may depend on its alignment. Each run sets
      // its own pointer.
      const void* const somewhere =
          reinterpret_cast<const void*>(static_cast<std::uintptr_t>(key.alignment));
      EG_CUDA_RETURN_IF(
          Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &somewhere, sizeof somewhere, error));
    }
    const cudaDataType_t in = DataTypeOf(key.type), out = DataTypeOf(key.d_type);
    const auto rows = [](int64_t n) { return static_cast<std::uint64_t>(n); };
    // The layouts describe the matrices as stored, by columns.
    if (key.transpose_b != 0) {
      EG_BLAS_TRY(cublasLtMatrixLayoutCreate(&a, in, rows(key.k), rows(key.n), key.k));
    } else {
      EG_BLAS_TRY(cublasLtMatrixLayoutCreate(&a, in, rows(key.n), rows(key.k), key.n));
    }
    if (key.transpose_a != 0) {
      EG_BLAS_TRY(cublasLtMatrixLayoutCreate(&b, in, rows(key.m), rows(key.k), key.m));
    } else {
      EG_BLAS_TRY(cublasLtMatrixLayoutCreate(&b, in, rows(key.k), rows(key.m), key.k));
    }
    EG_BLAS_TRY(cublasLtMatrixLayoutCreate(&d, out, rows(key.n), rows(key.m), key.n));
    return EG_CUDA_OK;
  }
};

struct Preference {
  const Blas& blas;
  cublasLtMatmulPreference_t preference = nullptr;
  explicit Preference(const Blas& functions) : blas(functions) {}
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  ~Preference() {
    if (preference != nullptr) static_cast<void>(blas.cublasLtMatmulPreferenceDestroy(preference));
  }
  int32_t Make(const EgPlanKey& key, EgCudaError* error) {
    EG_BLAS_TRY(cublasLtMatmulPreferenceCreate(&preference));
    EG_BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(preference,
                                                     CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &kWorkspaceMax, sizeof kWorkspaceMax));
    // Split sums must not be added in the output's type, because each part would be rounded.
    const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                                  (key.d_type == EG_FLOAT32 ? CUBLASLT_REDUCTION_SCHEME_MASK : 0);
    EG_BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    const std::uint32_t alignment = static_cast<std::uint32_t>(key.alignment);
    for (const cublasLtMatmulPreferenceAttributes_t of :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      EG_BLAS_TRY(
          cublasLtMatmulPreferenceSetAttribute(preference, of, &alignment, sizeof alignment));
    return EG_CUDA_OK;
  }
};

// Returns the library's algorithms, in its order of preference.
int32_t Heuristics(EgContext* context, const EgPlanKey& key, const Product& product,
                   std::vector<cublasLtMatmulHeuristicResult_t>* results, EgCudaError* error) {
  const Blas& blas = *context->blas;
  Preference preference(blas);
  EG_CUDA_RETURN_IF(preference.Make(key, error));
  results->resize(kHeuristicsMax);
  int found = 0;
  const cublasStatus_t status = blas.cublasLtMatmulAlgoGetHeuristic(
      context->blas_handle, product.operation, product.a, product.b, product.d, product.d,
      preference.preference, kHeuristicsMax, results->data(), &found);
  const bool fused = key.bias != 0 || key.bias_gradient != 0;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (fused && status == CUBLAS_STATUS_INVALID_VALUE))
    found = 0;  // the library offers none, which is a valid answer
  else
    EG_CUDA_RETURN_IF(FromBlas(status, "cublasLtMatmulAlgoGetHeuristic", error));
  results->resize(static_cast<std::size_t>(found));
  std::erase_if(*results, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  return EG_CUDA_OK;
}

struct MatmulPlan final : EgPlan {
  Product product;
  cublasLtMatmulAlgo_t algorithm{};
  bool bias = false, bias_gradient = false;
  explicit MatmulPlan(const Blas& blas) : product(blas) {}

  int32_t Run(EgContext* context, const EgPlanArguments& p, EgCudaError* error) override {
    const Blas& blas = product.blas;
    if (bias || bias_gradient) {
      const void* const pointer = bias ? p.bias : p.sums;
      EG_CUDA_RETURN_IF(
          product.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer, sizeof pointer, error));
    }
    const float one = 1, zero = 0;
    EG_BLAS_TRY(cublasLtMatmul(context->blas_handle, product.operation, &one, p.b, product.a, p.a,
                               product.b, &zero, p.d, product.d, p.d, product.d, &algorithm,
                               p.workspace, p.workspace_bytes, context->compute()));
    return EG_CUDA_OK;
  }
};

}  // namespace

int32_t MatmulPlans(EgContext* context, const EgPlanKey& key, EgPlanInfo* infos, int32_t infos_max,
                    int32_t* count, EgCudaError* error) {
  Product product(*context->blas);
  EG_CUDA_RETURN_IF(product.Make(key, error));
  std::vector<cublasLtMatmulHeuristicResult_t> results;
  EG_CUDA_RETURN_IF(Heuristics(context, key, product, &results, error));
  for (const cublasLtMatmulHeuristicResult_t& result : results)
    if (*count < infos_max)
      infos[(*count)++] =
          EgPlanInfo{result.workspaceSize, 1, 0};  // its split sums have no fixed order
  return EG_CUDA_OK;
}

int32_t MakeMatmulPlan(EgContext* context, const EgPlanKey& key, int32_t index, EgPlan** plan,
                       EgCudaError* error) {
  auto made = std::make_unique<MatmulPlan>(*context->blas);
  EG_CUDA_RETURN_IF(made->product.Make(key, error));
  std::vector<cublasLtMatmulHeuristicResult_t> results;
  EG_CUDA_RETURN_IF(Heuristics(context, key, made->product, &results, error));
  if (static_cast<std::size_t>(index) >= results.size())
    return Fail(EG_CUDA_BAD_SHAPE, 0, error,
                "cuBLASLt has no algorithm with this index: index=%d algorithms=%zu", index,
                results.size());
  made->algorithm = results[static_cast<std::size_t>(index)].algo;
  made->bias = key.bias != 0;
  made->bias_gradient = key.bias_gradient != 0;
  *plan = made.release();
  return EG_CUDA_OK;
}

int32_t CheckMatmul(const EgPlanKey& key, EgCudaError* error) {
  const Blas* blas = nullptr;
  EG_CUDA_RETURN_IF(LoadBlas(&blas, error));
  Product product(*blas);
  EG_CUDA_RETURN_IF(product.Make(key, error));
  Preference preference(*blas);
  return preference.Make(key, error);
}

}  // namespace evergrad::cuda
