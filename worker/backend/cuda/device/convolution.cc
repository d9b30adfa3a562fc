// Convolutions with cuDNN 9's backend API. For each key a graph of descriptors is made: tensors, a
// convolution, and a pointwise operation each for a bias and for relu. cuDNN's heuristics offer
// engines for the graph, and one of them becomes an execution plan.
//
// Engines that are less exact than the key requires, or that may lose a NaN, are skipped, based on
// the library's notes about them (engine_notes.h).
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/device/context.h"
#include "worker/backend/cuda/engine_notes.h"

namespace evergrad::cuda {
namespace {

#define EG_DNN_TRY(call) EG_CUDA_RETURN_IF(FromDnn(dnn, dnn.call, #call, error))

// Limit of engines per heuristic mode. The limit is high because, with float32, most of the first
// engines may use TF32.
constexpr int64_t kEnginesMax = 256;
// Limit of engines whose kernels are compiled when they are requested. Compiling one engine takes
// a large part of a second, and a network has about a hundred keys.
constexpr int kCompiledMax = 3;
// Names of tensors in a graph.
constexpr int64_t kX = 'x', kW = 'w', kY = 'y', kBias = 'b', kSum = 's', kRaw = 'r';

class Descriptor {
 public:
  explicit Descriptor(const Dnn& dnn) : dnn_(&dnn) {}
  Descriptor(Descriptor&& other) noexcept
      : dnn_(other.dnn_), handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (handle_ != nullptr) static_cast<void>(dnn_->cudnnBackendDestroyDescriptor(handle_));
  }
  cudnnBackendDescriptor_t get() const { return handle_; }

  int32_t Make(cudnnBackendDescriptorType_t type, EgCudaError* error) {
    const Dnn& dnn = *dnn_;
    EG_DNN_TRY(cudnnBackendCreateDescriptor(type, &handle_));
    return EG_CUDA_OK;
  }
  int32_t Finalize(EgCudaError* error) {
    const Dnn& dnn = *dnn_;
    EG_DNN_TRY(cudnnBackendFinalize(handle_));
    return EG_CUDA_OK;
  }
  int32_t Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              const void* values, EgCudaError* error) {
    const Dnn& dnn = *dnn_;
    EG_DNN_TRY(cudnnBackendSetAttribute(handle_, name, type, count, values));
    return EG_CUDA_OK;
  }
  int32_t Set(cudnnBackendAttributeName_t name, const Descriptor& other, EgCudaError* error) {
    const cudnnBackendDescriptor_t handle = other.get();
    return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle, error);
  }
  int32_t Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t wanted,
              int64_t* count, void* values, EgCudaError* error) const {
    const Dnn& dnn = *dnn_;
    EG_DNN_TRY(cudnnBackendGetAttribute(handle_, name, type, wanted, count, values));
    return EG_CUDA_OK;
  }

 private:
  const Dnn* dnn_;
  cudnnBackendDescriptor_t handle_ = nullptr;
};

using Dims = std::array<int64_t, 4>;

// Returns the strides of [n][c][h][w] stored in the order n, h, w, c.
Dims ChannelsLast(const Dims& d) { return {d[1] * d[2] * d[3], 1, d[3] * d[1], d[1]}; }

cudnnDataType_t DataTypeOf(int32_t element) {
  return element == EG_FLOAT16    ? CUDNN_DATA_HALF
         : element == EG_BFLOAT16 ? CUDNN_DATA_BFLOAT16
                                  : CUDNN_DATA_FLOAT;
}

int32_t MakeTensor(Descriptor* to, int64_t uid, const Dims& dims, int32_t element,
                   int64_t alignment, bool inside, EgCudaError* error) {
  const Dims strides = ChannelsLast(dims);
  const cudnnDataType_t type = DataTypeOf(element);
  EG_CUDA_RETURN_IF(to->Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR, error));
  EG_CUDA_RETURN_IF(to->Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, error));
  EG_CUDA_RETURN_IF(to->Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data(), error));
  EG_CUDA_RETURN_IF(to->Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data(), error));
  EG_CUDA_RETURN_IF(to->Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, error));
  EG_CUDA_RETURN_IF(
      to->Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, error));
  if (inside)
    EG_CUDA_RETURN_IF(to->Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside, error));
  return to->Finalize(error);
}

int32_t MakePointwise(Descriptor* mode, Descriptor* operation, cudnnPointwiseMode_t what,
                      const Descriptor& x, const Descriptor* b, const Descriptor& y,
                      EgCudaError* error) {
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  EG_CUDA_RETURN_IF(mode->Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, error));
  EG_CUDA_RETURN_IF(
      mode->Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &what, error));
  EG_CUDA_RETURN_IF(
      mode->Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type, error));
  // By default cuDNN's relu turns NaN into 0, also in the engines that promise STRICT_NAN_PROP.
  const cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
  if (what == CUDNN_POINTWISE_RELU_FWD)
    EG_CUDA_RETURN_IF(mode->Set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1,
                                &nan, error));
  EG_CUDA_RETURN_IF(mode->Finalize(error));
  EG_CUDA_RETURN_IF(operation->Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, error));
  EG_CUDA_RETURN_IF(operation->Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *mode, error));
  EG_CUDA_RETURN_IF(operation->Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, error));
  if (b != nullptr)
    EG_CUDA_RETURN_IF(operation->Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b, error));
  EG_CUDA_RETURN_IF(operation->Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, error));
  return operation->Finalize(error);
}

// The operations of one key. Building them needs no device.
struct Operations {
  std::vector<Descriptor> kept;  // keeps alive everything to which the operations point
  std::vector<cudnnBackendDescriptor_t> list;

  int32_t Make(const Dnn& dnn, const EgPlanKey& key, EgCudaError* error) {
    kept.reserve(16);  // keeps references into it valid
    const auto add = [&]() -> Descriptor& { return kept.emplace_back(dnn); };
    const Dims x_dims = {key.batch, key.in_c, key.in_h, key.in_w},
               w_dims = {key.filters, key.in_c, key.kernel_h, key.kernel_w};
    const Dims y_dims = {key.batch, key.filters, key.out_h, key.out_w};
    const bool add_bias = key.bias != 0, relu = key.relu != 0;
    Descriptor &x = add(), &w = add(), &y = add(), &convolution = add(), &operation = add();
    EG_CUDA_RETURN_IF(MakeTensor(&x, kX, x_dims,
                                 key.kind == EG_PLAN_CONV_DATA ? key.d_type : key.type,
                                 key.alignment, false, error));
    EG_CUDA_RETURN_IF(MakeTensor(&w, kW, w_dims,
                                 key.kind == EG_PLAN_CONV_FILTER ? key.d_type : key.type,
                                 key.alignment, false, error));
    EG_CUDA_RETURN_IF(MakeTensor(&y, kY, y_dims, key.kind == EG_PLAN_CONV ? key.d_type : key.type,
                                 key.alignment, false, error));

    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t spatial = 2, dilations[] = {1, 1}, strides[] = {key.stride_h, key.stride_w};
    const int64_t before[] = {key.pad_top, key.pad_left},
                  behind[] = {key.pad_bottom, key.pad_right};
    EG_CUDA_RETURN_IF(convolution.Make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, error));
    EG_CUDA_RETURN_IF(
        convolution.Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, error));
    EG_CUDA_RETURN_IF(convolution.Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
                                      1, &mode, error));
    EG_CUDA_RETURN_IF(
        convolution.Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial, error));
    EG_CUDA_RETURN_IF(
        convolution.Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations, error));
    EG_CUDA_RETURN_IF(convolution.Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2,
                                      strides, error));
    EG_CUDA_RETURN_IF(
        convolution.Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, before, error));
    EG_CUDA_RETURN_IF(
        convolution.Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, behind, error));
    EG_CUDA_RETURN_IF(convolution.Finalize(error));

    const float one = 1, zero = 0;
    const auto scaled = [&](cudnnBackendAttributeName_t alpha,
                            cudnnBackendAttributeName_t beta) -> int32_t {
      EG_CUDA_RETURN_IF(operation.Set(alpha, CUDNN_TYPE_FLOAT, 1, &one, error));
      return operation.Set(beta, CUDNN_TYPE_FLOAT, 1, &zero, error);
    };
    if (key.kind == EG_PLAN_CONV_DATA) {
      EG_CUDA_RETURN_IF(
          operation.Make(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, error));
      EG_CUDA_RETURN_IF(
          operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, convolution, error));
      EG_CUDA_RETURN_IF(operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, w, error));
      EG_CUDA_RETURN_IF(operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, y, error));
      EG_CUDA_RETURN_IF(operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, x, error));
      EG_CUDA_RETURN_IF(scaled(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA));
    } else if (key.kind == EG_PLAN_CONV_FILTER) {
      EG_CUDA_RETURN_IF(
          operation.Make(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, error));
      EG_CUDA_RETURN_IF(
          operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, convolution, error));
      EG_CUDA_RETURN_IF(operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, x, error));
      EG_CUDA_RETURN_IF(operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, y, error));
      EG_CUDA_RETURN_IF(operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, w, error));
      EG_CUDA_RETURN_IF(scaled(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA));
    } else {
      // conv ─▶ raw ─▶ + bias ─▶ sum ─▶ relu ─▶ y; all tensors except the last are virtual.
      Descriptor* out = &y;
      if (add_bias || relu) {
        out = &add();
        EG_CUDA_RETURN_IF(MakeTensor(out, kRaw, y_dims, EG_FLOAT32, key.alignment, true, error));
      }
      EG_CUDA_RETURN_IF(
          operation.Make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, error));
      EG_CUDA_RETURN_IF(
          operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, convolution, error));
      EG_CUDA_RETURN_IF(operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x, error));
      EG_CUDA_RETURN_IF(operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w, error));
      EG_CUDA_RETURN_IF(operation.Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, *out, error));
      EG_CUDA_RETURN_IF(scaled(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA));
      list.push_back(nullptr);  // filled in below, in order
      if (add_bias) {
        Descriptor &bias = add(), &sum_mode = add(), &sum = add();
        EG_CUDA_RETURN_IF(MakeTensor(&bias, kBias, {1, key.filters, 1, 1}, EG_FLOAT32,
                                     key.alignment, false, error));
        Descriptor* into = &y;
        if (relu) {
          into = &add();
          EG_CUDA_RETURN_IF(MakeTensor(into, kSum, y_dims, EG_FLOAT32, key.alignment, true, error));
        }
        EG_CUDA_RETURN_IF(
            MakePointwise(&sum_mode, &sum, CUDNN_POINTWISE_ADD, *out, &bias, *into, error));
        list.push_back(sum.get());
        out = into;
      }
      if (relu) {
        Descriptor &relu_mode = add(), &positive = add();
        EG_CUDA_RETURN_IF(MakePointwise(&relu_mode, &positive, CUDNN_POINTWISE_RELU_FWD, *out,
                                        nullptr, y, error));
        list.push_back(positive.get());
      }
    }
    EG_CUDA_RETURN_IF(operation.Finalize(error));
    if (list.empty()) list.push_back(nullptr);
    list[0] = operation.get();
    return EG_CUDA_OK;
  }
};

struct ConvolutionPlan final : EgPlan {
  Descriptor plan;
  int32_t kind = EG_PLAN_CONV;
  bool bias = false;
  explicit ConvolutionPlan(const Dnn& dnn) : plan(dnn) {}

  int32_t Run(EgContext* context, const EgPlanArguments& p, EgCudaError* error) override {
    const Dnn& dnn = *context->dnn;
    std::array<int64_t, 4> ids{};
    std::array<void*, 4> pointers{};
    int64_t count = 0;
    const auto bind = [&](int64_t id, const void* pointer) {
      ids[static_cast<std::size_t>(count)] = id,
      pointers[static_cast<std::size_t>(count++)] = const_cast<void*>(pointer);
    };
    bind(kind == EG_PLAN_CONV ? kX : kY, p.a);
    bind(kind == EG_PLAN_CONV_FILTER ? kX : kW, p.b);
    bind(kind == EG_PLAN_CONV ? kY : kind == EG_PLAN_CONV_DATA ? kX : kW, p.d);
    if (bias) bind(kBias, p.bias);
    Descriptor pack(dnn);
    EG_CUDA_RETURN_IF(pack.Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, error));
    EG_CUDA_RETURN_IF(pack.Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                               pointers.data(), error));
    EG_CUDA_RETURN_IF(
        pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data(), error));
    EG_CUDA_RETURN_IF(
        pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &p.workspace, error));
    EG_CUDA_RETURN_IF(pack.Finalize(error));
    EG_DNN_TRY(cudnnBackendExecute(context->dnn_handle, plan.get(), pack.get()));
    return EG_CUDA_OK;
  }
};

// The reason why the library offered no usable engine.
struct Refusals {
  int64_t found = 0, passed_over = 0;
  EgCudaError last{};  // error of an offered engine that refuses the graph
};

// The engines that one mode of the library's heuristics offers for a graph, in the library's order
// of preference.
struct Offer {
  Descriptor heuristics;
  std::vector<Descriptor> configurations;  // the first `found` of them are filled in
  std::size_t found = 0;
  explicit Offer(const Dnn& dnn) : heuristics(dnn) {}

  // An empty offer is no error. For an empty offer, refusals->last has the library's reason, if
  // known.
  int32_t Make(const Dnn& dnn, const Descriptor& graph, cudnnBackendHeurMode_t mode,
               Refusals* refusals, EgCudaError* error) {
    EG_CUDA_RETURN_IF(heuristics.Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, error));
    EG_CUDA_RETURN_IF(heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph, error));
    EG_CUDA_RETURN_IF(
        heuristics.Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, error));
    if (heuristics.Finalize(&refusals->last) != EG_CUDA_OK) return EG_CUDA_OK;
    int64_t count = 0;  // without a buffer, the call returns the number of engines
    EG_CUDA_RETURN_IF(heuristics.Get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                     0, &count, nullptr, error));
    std::vector<cudnnBackendDescriptor_t> handles;
    for (int64_t i = 0; i < count && i < kEnginesMax; ++i) {
      configurations.emplace_back(dnn);
      EG_CUDA_RETURN_IF(configurations.back().Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, error));
      handles.push_back(configurations.back().get());
    }
    if (handles.empty()) return EG_CUDA_OK;
    EG_CUDA_RETURN_IF(heuristics.Get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                     static_cast<int64_t>(handles.size()), &count, handles.data(),
                                     error));
    found = std::min(handles.size(), static_cast<std::size_t>(std::max<int64_t>(count, 0)));
    return EG_CUDA_OK;
  }
};

int32_t ReadNotes(const Descriptor& engine, EngineNotes* known, EgPlanInfo* info,
                  EgCudaError* error) {
  int64_t noted = 0;
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  EG_CUDA_RETURN_IF(engine.Get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &noted, notes.data(), error));
  for (int64_t n = 0; n < noted && n < static_cast<int64_t>(notes.size());
       ++n) {  // a newer library may have more notes
    const cudnnBackendNumericalNote_t note = notes[static_cast<std::size_t>(n)];
    if (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE) known->tensor_cores = true;
    if (note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) known->narrows_inputs = true;
    if (note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) known->narrow_sums = true;
    if (note == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13) known->large_tiles = true;
    if (note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP) known->carries_nan = true;
    if (note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) info->deterministic = 0;
  }
  return EG_CUDA_OK;
}

// Reads whether the engine's kernels are compiled when a plan is requested.
int32_t ReadCompiles(const Descriptor& engine, bool* compiles, EgCudaError* error) {
  int64_t noted = 0;
  std::array<cudnnBackendBehaviorNote_t, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT> notes{};
  EG_CUDA_RETURN_IF(engine.Get(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                               CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &noted, notes.data(), error));
  const auto end = notes.begin() + std::clamp<int64_t>(noted, 0, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT);
  *compiles = std::find(notes.begin(), end, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != end;
  return EG_CUDA_OK;
}

// Makes the plan of an offered engine, and fills in info->workspace_bytes. *plan stays null if the
// engine refuses the graph nevertheless.
int32_t MakeEnginePlan(EgContext* context, const EgPlanKey& key, const Descriptor& configuration,
                       std::unique_ptr<ConvolutionPlan>* plan, EgPlanInfo* info, Refusals* refusals,
                       EgCudaError* error) {
  auto made = std::make_unique<ConvolutionPlan>(*context->dnn);
  made->kind = key.kind;
  made->bias = key.bias != 0;
  EG_CUDA_RETURN_IF(made->plan.Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, error));
  EG_CUDA_RETURN_IF(made->plan.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                   &context->dnn_handle, error));
  EG_CUDA_RETURN_IF(made->plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration, error));
  if (made->plan.Finalize(&refusals->last) != EG_CUDA_OK) return EG_CUDA_OK;
  int64_t one = 0, workspace = 0;
  EG_CUDA_RETURN_IF(made->plan.Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                   &one, &workspace, error));
  info->workspace_bytes = static_cast<uint64_t>(workspace);
  *plan = std::move(made);
  return EG_CUDA_OK;
}

// Calls visit(plan, info) for each engine that accepts the key and for which wanted(info) is true,
// in the library's order of preference, until visit returns false.
template <typename Wanted, typename Visit>
int32_t ForEachPlan(EgContext* context, const EgPlanKey& key, Wanted wanted, Visit visit,
                    Refusals* refusals, EgCudaError* error) {
  const Dnn& dnn = *context->dnn;
  Operations operations;
  EG_CUDA_RETURN_IF(operations.Make(dnn, key, error));
  Descriptor graph(dnn);
  EG_CUDA_RETURN_IF(graph.Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, error));
  EG_CUDA_RETURN_IF(graph.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                              static_cast<int64_t>(operations.list.size()), operations.list.data(),
                              error));
  EG_CUDA_RETURN_IF(graph.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                              &context->dnn_handle, error));
  int compiled = 0;
  // No engine supports this graph, so none is offered.
  if (graph.Finalize(&refusals->last) != EG_CUDA_OK) return EG_CUDA_OK;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    Offer offer(dnn);
    EG_CUDA_RETURN_IF(offer.Make(dnn, graph, mode, refusals, error));
    for (std::size_t i = 0; i < offer.found; ++i) {
      const Descriptor& configuration = offer.configurations[i];
      ++refusals->found;
      Descriptor engine(dnn);
      EG_CUDA_RETURN_IF(engine.Make(CUDNN_BACKEND_ENGINE_DESCRIPTOR, error));
      cudnnBackendDescriptor_t engine_handle = engine.get();
      int64_t one = 0;
      EG_CUDA_RETURN_IF(configuration.Get(CUDNN_ATTR_ENGINECFG_ENGINE,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &engine_handle,
                                          error));
      EngineNotes known;
      EgPlanInfo info{0, 1, 0};
      EG_CUDA_RETURN_IF(ReadNotes(engine, &known, &info, error));
      if (!Computes(key, known)) {
        ++refusals->passed_over;
        continue;
      }
      bool compiles = false;
      EG_CUDA_RETURN_IF(ReadCompiles(engine, &compiles, error));
      if (!wanted(info) || (compiles && compiled == kCompiledMax)) continue;
      std::unique_ptr<ConvolutionPlan> plan;
      EG_CUDA_RETURN_IF(MakeEnginePlan(context, key, configuration, &plan, &info, refusals, error));
      if (plan == nullptr) continue;
      if (compiles) ++compiled;
      if (!visit(std::move(plan), info)) return EG_CUDA_OK;
    }
  }
  return EG_CUDA_OK;
}

}  // namespace

int32_t ConvolutionPlans(EgContext* context, const EgPlanKey& key, EgPlanInfo* infos,
                         int32_t infos_max, int32_t* count, EgCudaError* error) {
  context->offered.clear();
  context->offered_key = key;
  bool deterministic = false;
  Refusals refusals;
  EG_CUDA_RETURN_IF(ForEachPlan(
      context, key,
      [&](const EgPlanInfo& info) { return *count < infos_max || info.deterministic != 0; },
      [&](std::unique_ptr<ConvolutionPlan> plan, const EgPlanInfo& info) {
        if (*count == infos_max)
          // the last place is reserved for the first deterministic engine
          context->offered.pop_back(), --*count;
        infos[(*count)++] = info;
        context->offered.push_back(std::move(plan));
        deterministic = deterministic || info.deterministic != 0;
        return *count < infos_max || !deterministic;
      },
      &refusals, error));
  if (*count > 0) return EG_CUDA_OK;
  return Fail(EG_CUDA_BAD_SHAPE, refusals.last.code, error,
              "cuDNN offers %lld engines, but %lld of them are inexact or may lose a NaN%s%.400s",
              static_cast<long long>(refusals.found), static_cast<long long>(refusals.passed_over),
              refusals.last.text[0] != 0 ? "; last refusal: " : "", refusals.last.text);
}

int32_t MakeConvolutionPlan(EgContext* context, const EgPlanKey& key, int32_t index, EgPlan** plan,
                            EgCudaError* error) {
  const std::size_t place = static_cast<std::size_t>(index);
  if (std::memcmp(&key, &context->offered_key, sizeof key) != 0 ||
      place >= context->offered.size() || context->offered[place] == nullptr)
    return Fail(EG_CUDA_FAILED, index, error,
                "the last offer has no unused plan with this index: index=%d offered=%zu", index,
                context->offered.size());
  *plan = context->offered[place].release();
  return EG_CUDA_OK;
}

int32_t CheckConvolution(const EgPlanKey& key, EgCudaError* error) {
  const Dnn* dnn = nullptr;
  EG_CUDA_RETURN_IF(LoadDnn(&dnn, error));
  Operations operations;
  return operations.Make(*dnn, key, error);
}

}  // namespace evergrad::cuda
