/* The border between the worker and libevergrad_cuda.so: plain C, so that a worker built without CUDA loads a library built with it.
 *
 * The library exports one function, evergrad_cuda_api(), which gives one table. The first two members of the table never move: whoever
 * loads it compares them with the ones of his own header and refuses another version before he reads on.
 *
 * Every function returns a kind (EgCudaKind) and, unless that is EG_CUDA_OK, fills in *error. Nothing throws across the border. Unless said,
 * a function may be called from any thread; a context and what was made of it belong to one thread at a time. */
#ifndef EVERGRAD_WORKER_BACKEND_CUDA_CUDA_ABI_H_
#define EVERGRAD_WORKER_BACKEND_CUDA_CUDA_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EG_CUDA_ABI_VERSION 1u
#define EG_CUDA_ENTRY "evergrad_cuda_api"

enum EgCudaKind {
  EG_CUDA_OK = 0,
  EG_CUDA_NO_DRIVER = 1,  /* cudart's 35: no driver, or one older than the runtime */
  EG_CUDA_NO_DEVICE = 2,  /* cudart's 100, or an ordinal that is not there */
  EG_CUDA_NO_LIBRARY = 3, /* cuBLASLt or cuDNN cannot be loaded */
  EG_CUDA_NO_MEMORY = 4,  /* of the device, or pinned */
  EG_CUDA_BAD_SHAPE = 5,  /* the library refuses this shape, or has no algorithm for it */
  EG_CUDA_FAILED = 6      /* anything else; after some of these the device is lost to this process */
};

typedef struct EgCudaError {
  int32_t kind;
  int32_t code;   /* of CUDA, cuBLAS or cuDNN, whichever `text` names */
  char text[496]; /* "cudaMalloc: out of memory (cudart 2)" */
} EgCudaError;

typedef struct EgCudaDevice {
  int32_t ordinal, major, minor, multiprocessors;
  uint64_t memory_bytes;
  char name[256];
} EgCudaDevice;

typedef struct EgCudaApi {
  uint32_t abi_version; /* EG_CUDA_ABI_VERSION */
  uint32_t table_bytes; /* sizeof(EgCudaApi) */

  const char* (*build)(void); /* "CUDA 13.0, cuDNN 9.19" */
  /* Makes no context on any device. Without a driver or a device: EG_CUDA_NO_DRIVER, EG_CUDA_NO_DEVICE, and *count is 0. */
  int32_t (*device_count)(int32_t* count, EgCudaError* error);
  int32_t (*device)(int32_t ordinal, EgCudaDevice* device, EgCudaError* error);
} EgCudaApi;

typedef const EgCudaApi* (*EgCudaEntry)(void);

#ifdef __cplusplus
}
#endif
#endif
