/* The interface between the worker and libevergrad_cuda.so: plain C, so that a worker built without
 * CUDA can load a library built with CUDA.
 *
 * The library exports one function, evergrad_cuda_api(), which returns one table. The first two
 * members of the table never move. The loader compares these two members with its own header, and
 * refuses another version before it reads any other member.
 *
 * Every function with an `error` argument returns a kind (EgCudaKind), and fills in *error unless
 * it returns EG_CUDA_OK. No exception crosses the interface. Unless stated, a function may be
 * called from any thread. One thread at a time uses a context and the objects made from it. */
#ifndef EVERGRAD_WORKER_BACKEND_CUDA_CUDA_ABI_H_
#define EVERGRAD_WORKER_BACKEND_CUDA_CUDA_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EG_CUDA_ABI_VERSION 7u
#define EG_CUDA_ENTRY "evergrad_cuda_api"

enum EgCudaKind {
  EG_CUDA_OK = 0,
  EG_CUDA_NO_DRIVER = 1,  /* error 35 of cudart: no driver, or one older than the runtime */
  EG_CUDA_NO_DEVICE = 2,  /* error 100 of cudart, or an ordinal that does not exist */
  EG_CUDA_NO_LIBRARY = 3, /* cuBLASLt or cuDNN cannot be loaded */
  EG_CUDA_NO_MEMORY = 4,  /* out of device memory or pinned memory */
  EG_CUDA_BAD_SHAPE = 5,  /* the library refuses this shape, or has no algorithm for it */
  EG_CUDA_FAILED = 6      /* other errors; after some of these this process has lost the device */
};

typedef struct EgCudaError {
  int32_t kind;
  int32_t code;   /* code of CUDA, cuBLAS or cuDNN; `text` names the library */
  char text[496]; /* "cudaMalloc: out of memory (cudart 2)" */
} EgCudaError;

typedef struct EgCudaDevice {
  int32_t ordinal, major, minor, multiprocessors;
  uint64_t memory_bytes;
  char name[256];
} EgCudaDevice;

typedef struct EgContext EgContext; /* one device, its three queues (streams), its handles */
typedef struct EgEvent EgEvent;
typedef struct EgGraph EgGraph; /* a captured step, ready to be launched */
typedef struct EgPlan EgPlan;   /* one algorithm of cuBLASLt or cuDNN for one shape */

enum EgLane { EG_LANE_COMPUTE = 0, EG_LANE_IN = 1, EG_LANE_OUT = 2 };
enum EgCopy { EG_COPY_IN = 0, EG_COPY_OUT = 1, EG_COPY_WITHIN = 2 };

typedef struct EgOpenOptions {
  int32_t ordinal;
  int32_t reserved;
} EgOpenOptions;

/* A computation of cuBLASLt or cuDNN. a and b have `type` (EgElement of cuda_ops.h), d has
 * `d_type`, bias and sums are float32. 16-bit elements are added in float32; float32 is multiplied
 * as float32 unless `tf32`. Arrays are row-major or NHWC; filters are KRSC
 * ([filters][kernel_h][kernel_w][in_c]).
 *
 *   EG_PLAN_MATMUL       d[m,n] = op(a) op(b) (+ bias[n])
 *   EG_PLAN_CONV         d = conv(a = x, b = w) (+ bias, relu)
 *   EG_PLAN_CONV_DATA    d = dx, from a = dy and b = w
 *   EG_PLAN_CONV_FILTER  d = dw, from a = dy and b = x
 *
 * In a product, a is [m,k] or, transposed, [k,m]; b is [k,n] or, transposed, [n,k]. With
 * bias_gradient, sums[n] are also computed: the sums of the columns of b (not transposed). */
enum EgPlanKind {
  EG_PLAN_MATMUL = 0,
  EG_PLAN_CONV = 1,
  EG_PLAN_CONV_DATA = 2,
  EG_PLAN_CONV_FILTER = 3
};
typedef struct EgPlanKey {
  int32_t kind, bias, relu, transpose_a, transpose_b, bias_gradient;
  int32_t alignment; /* in bytes, of every array: 2, 4 or 16 */
  int32_t type, d_type, tf32;
  int32_t reserved; /* for the caller */
  int32_t zero;     /* explicit padding, because keys are compared as bytes */
  int64_t m, n, k;  /* matmul */
  int64_t batch, in_h, in_w, in_c, out_h, out_w, filters, kernel_h, kernel_w, stride_h, stride_w;
  int64_t pad_top, pad_left, pad_bottom, pad_right;
} EgPlanKey;
typedef struct EgPlanInfo {
  uint64_t workspace_bytes;
  int32_t deterministic;
  int32_t reserved;
} EgPlanInfo;
typedef struct EgPlanArguments {
  const void *a, *b, *bias;
  void *d, *sums, *workspace;
  uint64_t workspace_bytes;
} EgPlanArguments;

typedef struct EgCudaApi {
  uint32_t abi_version; /* EG_CUDA_ABI_VERSION */
  uint32_t table_bytes; /* sizeof(EgCudaApi) */

  const char* (*build)(void); /* "CUDA 13.0, cuDNN 9.19" */
  /* Counts the devices of the host, without creating a context on any of them. Without a driver or
   * a device, returns EG_CUDA_NO_DRIVER or EG_CUDA_NO_DEVICE, and *count is 0. */
  int32_t (*device_count)(int32_t* count, EgCudaError* error);
  int32_t (*device)(int32_t ordinal, EgCudaDevice* device, EgCudaError* error);

  /* `open` loads cuBLASLt and cuDNN. Only the thread that opened a context uses the context.
   * `close` waits for queued work. */
  int32_t (*open)(const EgOpenOptions* options, EgContext** context, EgCudaError* error);
  void (*close)(EgContext* context);

  int32_t (*memory)(EgContext* context, uint64_t* free_bytes, uint64_t* total_bytes,
                    EgCudaError* error);
  int32_t (*allocate)(EgContext* context, uint64_t bytes, uint64_t* address, EgCudaError* error);
  int32_t (*release)(EgContext* context, uint64_t address, EgCudaError* error);
  /* These two functions allocate and release page-locked memory of the host, for all devices. Any
   * thread may call them, also after the context was closed. */
  int32_t (*allocate_host)(uint64_t bytes, void** memory, EgCudaError* error);
  void (*release_host)(void* memory);

  /* Queues a copy on `lane`. If host memory is not page-locked, the caller waits. */
  int32_t (*copy)(EgContext* context, int32_t lane, int32_t direction, void* to, const void* from,
                  uint64_t bytes, EgCudaError* error);

  int32_t (*make_event)(EgContext* context, int32_t timed, EgEvent** event, EgCudaError* error);
  void (*drop_event)(EgEvent* event);
  int32_t (*record)(EgContext* context, int32_t lane, EgEvent* event, EgCudaError* error);
  int32_t (*await)(EgContext* context, int32_t lane, EgEvent* event, EgCudaError* error);
  int32_t (*wait)(
      EgEvent* event,
      EgCudaError* error); /* the host waits; an event that was never recorded counts as passed */
  int32_t (*passed)(EgEvent* event, int32_t* yes, EgCudaError* error);
  int32_t (*milliseconds)(EgEvent* from, EgEvent* to, float* milliseconds,
                          EgCudaError* error); /* both must be timed and have passed */

  /* Between begin_capture and end_capture, work queued on the compute queue is recorded and not
   * run. The events of this work are recorded and awaited when the graph runs. end_capture always
   * ends the capture; *graph is null after an error. */
  int32_t (*begin_capture)(EgContext* context, EgCudaError* error);
  int32_t (*end_capture)(EgContext* context, EgGraph** graph, EgCudaError* error);
  int32_t (*launch)(EgContext* context, EgGraph* graph,
                    EgCudaError* error); /* on the compute queue */
  void (*drop_graph)(EgGraph* graph);

  /* Returns the algorithms that the library offers for a shape, at most `infos_max`, in its order
   * of preference. If none of these is deterministic, the last one is replaced by a deterministic
   * algorithm, if there is one. Returns EG_CUDA_BAD_SHAPE with the reason if the library has no
   * algorithm for the shape. */
  int32_t (*plans)(EgContext* context, const EgPlanKey* key, EgPlanInfo* infos, int32_t infos_max,
                   int32_t* count, EgCudaError* error);
  /* Makes the plan of algorithm `index` in the list that the last call of `plans` returned. That
   * call must have had the same key. Each algorithm of a list may be made at most once. */
  int32_t (*make_plan)(EgContext* context, const EgPlanKey* key, int32_t index, EgPlan** plan,
                       EgCudaError* error);
  int32_t (*run_plan)(EgContext* context, EgPlan* plan, const EgPlanArguments* arguments,
                      EgCudaError* error); /* on the compute queue */
  void (*drop_plan)(EgPlan* plan);
  /* Makes the parts of a plan that need no device (descriptors of tensors, convolutions,
   * operations, products). The function also works on a machine without a device. */
  int32_t (*check_plan)(const EgPlanKey* key, EgCudaError* error);

  /* Queues one of our own kernels (cuda_ops.h) on the compute queue; `arguments` is its struct. */
  int32_t (*compute)(EgContext* context, int32_t op, const void* arguments,
                     uint64_t arguments_bytes, EgCudaError* error);

  /* Returns the size of EgScatter's scratch for a sort of n pairs; below 0 if unknown. */
  int64_t (*sort_bytes)(EgContext* context, int64_t n);

  /* These two functions begin and end a named range in a profile (NVTX), on the calling thread. If
   * no profiler is attached, push_range does nothing and returns 0. A profiler is attached for the
   * whole life of the process or never. */
  int32_t (*push_range)(const char* name);
  void (*pop_range)(void);

  /* Returns the driver's last sample (NVML): the share of time, 0 to 1, in which some kernel of
   * some process ran. Returns EG_CUDA_NO_LIBRARY if NVML is not usable. */
  int32_t (*utilization)(EgContext* context, float* share, EgCudaError* error);
} EgCudaApi;

typedef const EgCudaApi* (*EgCudaEntry)(void);

#ifdef __cplusplus
}
#endif
#endif
