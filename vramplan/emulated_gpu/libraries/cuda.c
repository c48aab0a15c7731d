// libcuda without a GPU: what PyTorch and Triton ask of the driver, above all the virtual memory of expandable segments.
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int cudaDeviceGetAttribute(int *value, int attribute, int device);
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaGetDevice(int *device);
int cudaSetDevice(int device);
int cudaPointerGetAttributes(void *attributes, const void *pointer);
typedef unsigned long long Address;

int cuInit(unsigned flags) { return SUCCESS; }
int cuDriverGetVersion(int *version) { *version = CUDA_MAJOR == 13 ? 13000 : 12080; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = emulated_gpu()->count; return SUCCESS; }
int cuDeviceGet(int *device, int number) {
  *device = number;
  return number < 0 || number >= emulated_gpu()->count ? INVALID_DEVICE : SUCCESS;
}
int cuDeviceGetName(char *name, int room, int device) { snprintf(name, room, "%s", emulated_gpu()->name); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = emulated_gpu()->total_bytes; return SUCCESS; }
int cuDeviceComputeCapability(int *major, int *minor, int device) {
  *major = emulated_gpu()->major;
  *minor = emulated_gpu()->minor;
  return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute == 102) return *value = 1, SUCCESS;  // virtual memory management
  return cudaDeviceGetAttribute(value, attribute, device);
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  int device;
  cudaGetDevice(&device);
  *free_bytes = emulated_free_bytes(device, 1);
  *total_bytes = emulated_gpu()->total_bytes;
  return SUCCESS;
}
int cuMemAlloc_v2(Address *address, size_t bytes) { return cudaMalloc((void **)address, bytes); }
int cuMemFree_v2(Address address) { return cudaFree((void *)address); }
int cuGetErrorString(int error, const char **text) { *text = emulated_error_text(error); return SUCCESS; }
int cuGetErrorName(int error, const char **text) { *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR"; return SUCCESS; }

// Each GPU has one context; its address stands for it.
static char contexts[MAX_GPUS];
int cuCtxGetCurrent(void **context) {
  int device;
  cudaGetDevice(&device);
  *context = contexts + device;
  return SUCCESS;
}
int cuCtxSetCurrent(void *context) { return context ? cudaSetDevice((int)((char *)context - contexts)) : SUCCESS; }
int cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }
int cuCtxPopCurrent_v2(void **context) { return cuCtxGetCurrent(context); }
int cuCtxGetDevice(int *device) { return cudaGetDevice(device); }
int cuCtxSynchronize(void) { return SUCCESS; }
int cuCtxSetLimit(int limit, size_t value) { return SUCCESS; }
int cuCtxGetLimit(size_t *value, int limit) { *value = 0; return SUCCESS; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = contexts + device; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return SUCCESS; }

// Virtual memory: addresses are reserved once, a handle is the size and the GPU of its memory, mapping needs no work.
typedef struct { size_t bytes; int device; } Physical;
struct AllocationProperties { int type, requested_handle_types, location_type, location_id; };
int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option) { *bytes = 2 * MIB; return SUCCESS; }
int cuMemAddressReserve(Address *start, size_t bytes, size_t alignment, Address at, unsigned long long flags) {
  int device;
  cudaGetDevice(&device);
  return emulated_reserve(device, bytes, 0, (void **)start);
}
int cuMemAddressFree(Address start, size_t bytes) { emulated_release((void *)start); return SUCCESS; }
int cuMemCreate(Physical **physical, size_t bytes, const struct AllocationProperties *properties, unsigned long long flags) {
  int device = properties->location_id;
  if (!emulated_allocate(device, bytes)) return OUT_OF_MEMORY;
  *physical = malloc(sizeof **physical);
  **physical = (Physical){bytes, device};
  return SUCCESS;
}
int cuMemRelease(Physical *physical) {  // torch unmaps before it releases
  emulated_free(physical->device, physical->bytes);
  free(physical);
  return SUCCESS;
}
int cuMemMap(Address start, size_t bytes, size_t offset, Physical *physical, unsigned long long flags) { return SUCCESS; }
int cuMemUnmap(Address start, size_t bytes) { madvise((void *)start, bytes, MADV_DONTNEED); return SUCCESS; }
int cuMemSetAccess(Address start, size_t bytes, const void *access, size_t count) { return SUCCESS; }
int cuMemGetAddressRange_v2(Address *start, size_t *bytes, Address address) {
  return emulated_find((void *)address, (void **)start, bytes, NULL) ? SUCCESS : INVALID_VALUE;
}

int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) { emulated_copy((void *)to, from, bytes); return SUCCESS; }
int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) { emulated_copy(to, (void *)from, bytes); return SUCCESS; }
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) { emulated_copy((void *)to, (void *)from, bytes); return SUCCESS; }
int cuMemsetD8Async(Address to, unsigned char value, size_t count, void *stream) { emulated_fill((void *)to, value, 1, count); return SUCCESS; }
int cuMemsetD32Async(Address to, unsigned value, size_t count, void *stream) { emulated_fill((void *)to, value, 4, count); return SUCCESS; }

int cuPointerGetAttribute(void *data, int attribute, Address pointer) {
  enum { MEMORY_TYPE = 2, DEVICE_POINTER = 3, DEVICE_ORDINAL = 9, TYPE_DEVICE = 2 };
  int device;
  if (!emulated_find((void *)pointer, NULL, NULL, &device)) return INVALID_VALUE;
  if (attribute == DEVICE_ORDINAL) *(int *)data = device;
  if (attribute == MEMORY_TYPE) *(unsigned *)data = TYPE_DEVICE;
  if (attribute == DEVICE_POINTER) *(Address *)data = pointer;
  return SUCCESS;
}

// Kernels that are compiled at run time (Triton): loaded by name, never run.
static int handle(void **out) { return (*out = calloc(1, 64)) ? SUCCESS : HOST_FAILED; }
int cuModuleLoad(void **module, const char *path) { return handle(module); }
int cuModuleLoadData(void **module, const void *image) { return handle(module); }
int cuModuleLoadDataEx(void **module) { return handle(module); }
int cuModuleUnload(void *module) { free(module); return SUCCESS; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return handle(function); }
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;  // threads of a block, registers
  return SUCCESS;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return SUCCESS; }
int cuFuncSetCacheConfig(void *function, int config) { return SUCCESS; }
int cuLaunchKernel(void) { return SUCCESS; }
int cuLaunchKernelEx(void) { return SUCCESS; }
int cuLaunchCooperativeKernel(void) { return SUCCESS; }
int cuTensorMapEncodeTiled(void) { return SUCCESS; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int size, size_t shared) {
  int fit = emulated_gpu()->threads / (size ? size : 32);
  *blocks = fit < emulated_gpu()->blocks ? fit : emulated_gpu()->blocks;
  return SUCCESS;
}
int cuOccupancyMaxActiveClusters(int *clusters, void *function, const void *config) {
  *clusters = emulated_gpu()->multiprocessors;
  return SUCCESS;
}
int cuStreamSynchronize(void *stream) { return SUCCESS; }
