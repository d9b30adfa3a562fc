#include "worker/backend/cuda/device/context.h"

#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <cstring>

#include "worker/backend/cuda/device/context_table.h"
#include "worker/backend/cuda/device/kernels.h"

namespace evergrad::cuda {
namespace {

// The device that was opened last. Threads that open no device use this one. Otherwise they would
// use the first device and create a context there, which takes memory of that device.
std::atomic<int> opened{-1};

// A thread uses the first device until it selects another one. Every function with a context
// selects the device before it creates an object. The function that closes a context must select
// it, too.
cudaError_t Use(int ordinal) {
  thread_local int used = -1;
  if (used == ordinal) return cudaSuccess;
  const cudaError_t status = cudaSetDevice(ordinal);
  if (status == cudaSuccess) used = ordinal;
  return status;
}

int32_t OpenInto(EgContext* context, EgCudaError* error) {
  EG_CUDA_TRY(Use(context->ordinal));
  EG_CUDA_TRY(cudaFree(nullptr));  // creates the device's context
  opened = context->ordinal;
  // Copies are short compared with kernels, and kernels wait for copies. The queues of copies
  // therefore have a higher priority.
  int least = 0, greatest = 0;
  EG_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (int lane = 0; lane < 3; ++lane)
    EG_CUDA_TRY(cudaStreamCreateWithPriority(&context->lanes[lane], cudaStreamNonBlocking,
                                             lane == EG_LANE_COMPUTE ? least : greatest));
  EG_CUDA_RETURN_IF(LoadBlas(&context->blas, error));
  EG_CUDA_RETURN_IF(LoadDnn(&context->dnn, error));
  EG_CUDA_RETURN_IF(
      FromBlas(context->blas->cublasLtCreate(&context->blas_handle), "cublasLtCreate", error));
  EG_CUDA_RETURN_IF(FromDnn(*context->dnn, context->dnn->cudnnCreate(&context->dnn_handle),
                            "cudnnCreate", error));
  EG_CUDA_RETURN_IF(FromDnn(*context->dnn,
                            context->dnn->cudnnSetStream(context->dnn_handle, context->compute()),
                            "cudnnSetStream", error));
  return EG_CUDA_OK;
}

void Close(EgContext* context) {
  // An error is ignored, because this function cannot report it.
  Ignore(Use(context->ordinal));
  for (const cudaStream_t lane : context->lanes)
    if (lane != nullptr) Ignore(cudaStreamSynchronize(lane));
  context->offered.clear();
  if (context->dnn_handle != nullptr)
    static_cast<void>(context->dnn->cudnnDestroy(context->dnn_handle));
  if (context->blas_handle != nullptr)
    static_cast<void>(context->blas->cublasLtDestroy(context->blas_handle));
  for (const cudaStream_t lane : context->lanes)
    if (lane != nullptr) Ignore(cudaStreamDestroy(lane));
  delete context;
}

int32_t Open(const EgOpenOptions* options, EgContext** result, EgCudaError* error) {
  *result = nullptr;
  auto* const context = new EgContext;
  context->ordinal = options->ordinal;
  const int32_t kind = OpenInto(context, error);
  if (kind != EG_CUDA_OK) {
    Close(context);
    return kind;
  }
  *result = context;
  return EG_CUDA_OK;
}

int32_t MemoryOf(EgContext* context, uint64_t* free_bytes, uint64_t* total_bytes,
                 EgCudaError* error) {
  EG_CUDA_TRY(Use(context->ordinal));
  std::size_t available = 0, total = 0;
  EG_CUDA_TRY(cudaMemGetInfo(&available, &total));
  *free_bytes = available;
  *total_bytes = total;
  return EG_CUDA_OK;
}

int32_t Allocate(EgContext* context, uint64_t bytes, uint64_t* address, EgCudaError* error) {
  EG_CUDA_TRY(Use(context->ordinal));
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  EG_CUDA_RETURN_IF(FromRuntime(status, "cudaMalloc", error));
  *address = reinterpret_cast<uint64_t>(memory);
  return EG_CUDA_OK;
}

int32_t Release(EgContext* context, uint64_t address, EgCudaError* error) {
  EG_CUDA_TRY(Use(context->ordinal));
  EG_CUDA_TRY(cudaFree(reinterpret_cast<void*>(address)));
  return EG_CUDA_OK;
}

// Selects the opened device, for functions that are called on threads that have opened no device.
void UseOpened() {
  if (opened >= 0) Ignore(Use(opened));
}
int32_t AllocateHost(uint64_t bytes, void** memory, EgCudaError* error) {
  UseOpened();
  const cudaError_t status = cudaHostAlloc(memory, bytes, cudaHostAllocPortable);
  return FromRuntime(status, "cudaHostAlloc", error);
}

void ReleaseHost(void* memory) {
  UseOpened();
  Ignore(cudaFreeHost(memory));
}

int32_t Copy(EgContext* context, int32_t lane, int32_t direction, void* to, const void* from,
             uint64_t bytes, EgCudaError* error) {
  constexpr cudaMemcpyKind kKinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                       cudaMemcpyDeviceToDevice};
  EG_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, kKinds[direction], context->lanes[lane]));
  return EG_CUDA_OK;
}

int32_t MakeEvent(EgContext* context, int32_t timed, EgEvent** event, EgCudaError* error) {
  *event = nullptr;
  EG_CUDA_TRY(Use(context->ordinal));
  cudaEvent_t made = nullptr;
  EG_CUDA_TRY(
      cudaEventCreateWithFlags(&made, timed != 0 ? cudaEventDefault : cudaEventDisableTiming));
  *event = new EgEvent{made};
  return EG_CUDA_OK;
}

void DropEvent(EgEvent* event) {
  Ignore(cudaEventDestroy(event->event));
  delete event;
}

// Returns whether an event of the queue becomes a node of the graph, that is, whether the compute
// queue is being captured.
bool Captured(const EgContext* context, int32_t lane) {
  return context->capturing && lane == EG_LANE_COMPUTE;
}

int32_t Record(EgContext* context, int32_t lane, EgEvent* event, EgCudaError* error) {
  const unsigned flags = Captured(context, lane) ? cudaEventRecordExternal : cudaEventRecordDefault;
  EG_CUDA_TRY(cudaEventRecordWithFlags(event->event, context->lanes[lane], flags));
  return EG_CUDA_OK;
}

int32_t Await(EgContext* context, int32_t lane, EgEvent* event, EgCudaError* error) {
  const unsigned flags = Captured(context, lane) ? cudaEventWaitExternal : cudaEventWaitDefault;
  EG_CUDA_TRY(cudaStreamWaitEvent(context->lanes[lane], event->event, flags));
  return EG_CUDA_OK;
}

int32_t Wait(EgEvent* event, EgCudaError* error) {
  EG_CUDA_TRY(cudaEventSynchronize(event->event));
  return EG_CUDA_OK;
}

int32_t Passed(EgEvent* event, int32_t* yes, EgCudaError* error) {
  const cudaError_t status = cudaEventQuery(event->event);
  *yes = status == cudaSuccess ? 1 : 0;
  if (status == cudaErrorNotReady) return Ignore(status), EG_CUDA_OK;
  return FromRuntime(status, "cudaEventQuery", error);
}

int32_t Milliseconds(EgEvent* from, EgEvent* to, float* milliseconds, EgCudaError* error) {
  EG_CUDA_TRY(cudaEventElapsedTime(milliseconds, from->event, to->event));
  return EG_CUDA_OK;
}

int32_t BeginCapture(EgContext* context, EgCudaError* error) {
  // Only calls of this thread may invalidate the capture. The thread of another worker in this
  // process continues undisturbed.
  EG_CUDA_TRY(cudaStreamBeginCapture(context->compute(), cudaStreamCaptureModeThreadLocal));
  context->capturing = true;
  return EG_CUDA_OK;
}

int32_t Utilization(EgContext* context, float* share, EgCudaError* error) {
  *share = 0;
  const Nvml* nvml = nullptr;
  EG_CUDA_RETURN_IF(LoadNvml(&nvml, error));
  if (context->nvml_device == nullptr) {
    char bus[32];
    EG_CUDA_TRY(cudaDeviceGetPCIBusId(bus, sizeof bus, context->ordinal));
    if (const int status = nvml->DeviceGetHandleByPciBusId(bus, &context->nvml_device); status != 0)
      return Fail(EG_CUDA_NO_LIBRARY, status, error, "nvmlDeviceGetHandleByPciBusId: nvml %d",
                  status);
  }
  Nvml::Rates rates{};
  if (const int status = nvml->DeviceGetUtilizationRates(context->nvml_device, &rates); status != 0)
    return Fail(EG_CUDA_NO_LIBRARY, status, error, "nvmlDeviceGetUtilizationRates: nvml %d",
                status);
  *share = static_cast<float>(rates.gpu) / 100.0f;
  return EG_CUDA_OK;
}

int32_t EndCapture(EgContext* context, EgGraph** result, EgCudaError* error) {
  *result = nullptr;
  context->capturing = false;
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(context->compute(), &graph);
  cudaGraphExec_t made = nullptr;
  cudaError_t status = ended;
  if (status == cudaSuccess) status = cudaGraphInstantiate(&made, graph, 0);
  if (graph != nullptr) Ignore(cudaGraphDestroy(graph));
  EG_CUDA_RETURN_IF(FromRuntime(
      status, ended == cudaSuccess ? "cudaGraphInstantiate" : "cudaStreamEndCapture", error));
  *result = new EgGraph{made};
  return EG_CUDA_OK;
}

int32_t LaunchGraph(EgContext* context, EgGraph* graph, EgCudaError* error) {
  EG_CUDA_TRY(cudaGraphLaunch(graph->graph, context->compute()));
  return EG_CUDA_OK;
}

void DropGraph(EgGraph* graph) {
  Ignore(cudaGraphExecDestroy(graph->graph));
  delete graph;
}

int32_t Plans(EgContext* context, const EgPlanKey* key, EgPlanInfo* infos, int32_t infos_max,
              int32_t* count, EgCudaError* error) {
  *count = 0;
  return key->kind == EG_PLAN_MATMUL
             ? MatmulPlans(context, *key, infos, infos_max, count, error)
             : ConvolutionPlans(context, *key, infos, infos_max, count, error);
}

int32_t MakePlan(EgContext* context, const EgPlanKey* key, int32_t index, EgPlan** plan,
                 EgCudaError* error) {
  *plan = nullptr;
  return key->kind == EG_PLAN_MATMUL ? MakeMatmulPlan(context, *key, index, plan, error)
                                     : MakeConvolutionPlan(context, *key, index, plan, error);
}

int32_t RunPlan(EgContext* context, EgPlan* plan, const EgPlanArguments* arguments,
                EgCudaError* error) {
  return plan->Run(context, *arguments, error);
}

void DropPlan(EgPlan* plan) { delete plan; }

int32_t CheckPlan(const EgPlanKey* key, EgCudaError* error) {
  return key->kind == EG_PLAN_MATMUL ? CheckMatmul(*key, error) : CheckConvolution(*key, error);
}

template <typename Arguments>
int32_t RunOp(EgContext* context, const void* arguments, uint64_t bytes, EgCudaError* error) {
  if (bytes != sizeof(Arguments))
    return Fail(EG_CUDA_FAILED, 0, error, "an operation's arguments are from another version");
  return Run(context->compute(), *static_cast<const Arguments*>(arguments), error);
}

int32_t Compute(EgContext* context, int32_t op, const void* arguments, uint64_t bytes,
                EgCudaError* error) {
  switch (op) {
#define EG_CASE_(name, type) \
  case name: return RunOp<type>(context, arguments, bytes, error);
    EG_OPS(EG_CASE_)
#undef EG_CASE_
    default: return Fail(EG_CUDA_FAILED, op, error, "unknown operation: %d", op);
  }
}

// NVTX returns a negative number if no profiler is attached. A profiler is attached at the first
// call of NVTX in the process, or never.
int32_t PushRange(const char* name) { return nvtxRangePushA(name) < 0 ? 0 : 1; }
void PopRange() { nvtxRangePop(); }

}  // namespace

int32_t FromBlas(cublasStatus_t status, const char* call, EgCudaError* error) {
  if (status == CUBLAS_STATUS_SUCCESS) return EG_CUDA_OK;
  const int32_t kind =
      status == CUBLAS_STATUS_ALLOC_FAILED ? EG_CUDA_NO_MEMORY
      : status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE
          ? EG_CUDA_BAD_SHAPE
          : EG_CUDA_FAILED;
  const Blas* blas = nullptr;
  EgCudaError ignored{};
  const char* const words =
      LoadBlas(&blas, &ignored) == EG_CUDA_OK ? blas->cublasLtGetStatusString(status) : "";
  return Fail(kind, status, error, "%s: %s (cublasLt %d)", call, words, status);
}

int32_t FromDnn(const Dnn& dnn, cudnnStatus_t status, const char* call, EgCudaError* error) {
  if (status == CUDNN_STATUS_SUCCESS) return EG_CUDA_OK;
  const int32_t kind = CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ||
                               CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_BAD_PARAM
                           ? EG_CUDA_BAD_SHAPE
                       : status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                               status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
                           ? EG_CUDA_NO_MEMORY
                           : EG_CUDA_FAILED;
  char why[256] = "";  // text of this thread's last error; some errors have none
  dnn.cudnnGetLastErrorString(why, sizeof why);
  return Fail(kind, status, error, "%.*s: %s (cudnn %d)%s%s",
              static_cast<int>(std::strcspn(call, "(")), call, dnn.cudnnGetErrorString(status),
              status, why[0] != 0 ? ": " : "", why);
}

void FillContext(EgCudaApi* table) {
  table->open = &Open;
  table->close = &Close;
  table->memory = &MemoryOf;
  table->allocate = &Allocate;
  table->release = &Release;
  table->allocate_host = &AllocateHost;
  table->release_host = &ReleaseHost;
  table->copy = &Copy;
  table->make_event = &MakeEvent;
  table->drop_event = &DropEvent;
  table->record = &Record;
  table->await = &Await;
  table->wait = &Wait;
  table->passed = &Passed;
  table->milliseconds = &Milliseconds;
  table->begin_capture = &BeginCapture;
  table->end_capture = &EndCapture;
  table->launch = &LaunchGraph;
  table->drop_graph = &DropGraph;
  table->plans = &Plans;
  table->make_plan = &MakePlan;
  table->run_plan = &RunPlan;
  table->drop_plan = &DropPlan;
  table->check_plan = &CheckPlan;
  table->compute = &Compute;
  table->sort_bytes = [](EgContext*, int64_t n) { return SortScratchBytes(n); };
  table->push_range = &PushRange;
  table->pop_range = &PopRange;
  table->utilization = &Utilization;
}

}  // namespace evergrad::cuda
