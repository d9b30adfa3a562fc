// Tests the objects that cuDNN and cuBLASLt can make without a device: the descriptors of every
// plan that the backend can request. The test finds wrong attributes, types and counts.
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/support/paths.h"
#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/engine_notes.h"
#include "worker/backend/cuda/library.h"

namespace evergrad::worker {
namespace {

const EgCudaApi* RealLibrary() {
  const std::string path = absl::StrCat(test::BinDir(), "/libevergrad_cuda.so");
  if (!std::filesystem::exists(path)) {
    std::printf("\nskipped: built without CUDA\n");
    return nullptr;
  }
  return LoadCudaLibrary(path).value();
}

TEST_CASE(
    "engines with more rounding than a key allows are skipped, such as TF32, 16-bit sums and large "
    "Winograd tiles") {
  using cuda::Computes;
  using cuda::EngineNotes;
  EgPlanKey exact{}, tf32{}, narrow{}, relu{};
  exact.type = tf32.type = relu.type = EG_FLOAT32;
  tf32.tf32 = 1;
  narrow.type = EG_BFLOAT16;
  relu.relu = 1;
  for (const EgPlanKey& key : {exact, tf32, narrow}) {
    CHECK(Computes(key, {}));
    CHECK_FALSE(Computes(key, {.narrows_inputs = true}));
    CHECK_FALSE(Computes(key, {.tensor_cores = true, .narrows_inputs = true}));
    CHECK_FALSE(Computes(key, {.large_tiles = true}));
  }
  CHECK_FALSE(Computes(exact, {.tensor_cores = true}));
  CHECK(Computes(tf32, {.tensor_cores = true}));
  CHECK(Computes(narrow, {.tensor_cores = true}));
  CHECK_FALSE(Computes(narrow, {.tensor_cores = true, .narrow_sums = true}));
  CHECK_FALSE(Computes(relu, {}));
  CHECK(Computes(relu, {.carries_nan = true}));
  CHECK_FALSE(Computes(relu, {.tensor_cores = true, .carries_nan = true}));
}

TEST_CASE(
    "descriptors of convolutions and their gradients are finalized without a device, with and "
    "without bias and relu") {
  const EgCudaApi* const api = RealLibrary();
  if (api == nullptr) return;
  EgPlanKey key{};
  key.batch = 2, key.in_h = 8, key.in_w = 9, key.in_c = 3, key.out_h = 4, key.out_w = 9,
  key.filters = 5;
  key.kernel_h = 3, key.kernel_w = 3, key.stride_h = 2, key.stride_w = 1, key.pad_left = 1,
  key.pad_bottom = 1, key.pad_right = 1;
  for (const int type : {EG_FLOAT32, EG_FLOAT16, EG_BFLOAT16}) {
    // In a job with 16-bit elements, a weight gradient may be float32.
    for (const int d_type : {type, static_cast<int>(EG_FLOAT32)}) {
      key.type = type, key.d_type = d_type, key.kind = EG_PLAN_CONV_FILTER, key.alignment = 16;
      EgCudaError error{};
      CHECK(api->check_plan(&key, &error) == EG_CUDA_OK);
    }
    key.d_type = type;
    for (const int kind : {EG_PLAN_CONV, EG_PLAN_CONV_DATA, EG_PLAN_CONV_FILTER}) {
      for (const int bias : {0, 1}) {
        for (const int relu : {0, 1}) {
          for (const int alignment : {4, 16}) {
            key.kind = kind, key.bias = bias, key.relu = relu, key.alignment = alignment;
            INFO("kind " << kind << " bias " << bias << " relu " << relu << " alignment "
                         << alignment);
            EgCudaError error{};
            const int made = api->check_plan(&key, &error);
            INFO(error.text);
            CHECK(made == EG_CUDA_OK);
          }
        }
      }
    }
  }
  // A shape that is not a convolution must be refused with the library's message.
  key.stride_h = 0;
  EgCudaError error{};
  CHECK(api->check_plan(&key, &error) != EG_CUDA_OK);
  CHECK(std::string(error.text).find("cudnn") != std::string::npos);
}

TEST_CASE(
    "descriptors of products are made without a device, with transposition, bias and gradient") {
  const EgCudaApi* const api = RealLibrary();
  if (api == nullptr) return;
  EgPlanKey key{};
  key.kind = EG_PLAN_MATMUL;
  key.m = 64, key.n = 10, key.k = 33;
  for (const auto& [type, d_type, tf32] : {std::array<int, 3>{EG_FLOAT32, EG_FLOAT32, 0},
                                           {EG_FLOAT32, EG_FLOAT32, 1},
                                           {EG_BFLOAT16, EG_BFLOAT16, 0},
                                           {EG_BFLOAT16, EG_FLOAT32, 0},
                                           {EG_FLOAT16, EG_FLOAT16, 0},
                                           {EG_FLOAT16, EG_FLOAT32, 0}}) {
    key.type = type, key.d_type = d_type, key.tf32 = tf32;
    for (const int transposes : {0, 1, 2}) {
      for (const int epilogue : {0, 1, 2}) {
        for (const int alignment : {4, 16}) {
          key.transpose_a = transposes == 1, key.transpose_b = transposes == 2;
          key.bias = epilogue == 1, key.bias_gradient = epilogue == 2, key.alignment = alignment;
          EgCudaError error{};
          const int made = api->check_plan(&key, &error);
          INFO(error.text);
          CHECK(made == EG_CUDA_OK);
        }
      }
    }
  }
}

}  // namespace
}  // namespace evergrad::worker
