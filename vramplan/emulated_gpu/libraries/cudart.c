// libcudart without a GPU: memory is counted, small copies are made, kernels do not run. CUDA_MAJOR is 12 or 13.
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define VERSION (CUDA_MAJOR == 13 ? 13000 : 12080)  // as cudaRuntimeGetVersion reports it
typedef struct { unsigned x, y, z; } Dim3;

static __thread int last_error, current_device;

static int result(int error) {
  if (error) last_error = error;
  return error;
}
static int invalid_device(int device) { return device < 0 || device >= emulated_gpu()->count; }

// ---------------------------------------------------------------- errors

int cudaPeekAtLastError(void) { return last_error; }
int cudaGetLastError(void) {
  int error = last_error;
  last_error = SUCCESS;
  return error;
}
const char *cudaGetErrorString(int error) { return emulated_error_text(error); }
const char *cudaGetErrorName(int error) {
  return error == SUCCESS ? "cudaSuccess" : error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation"
         : error == NOT_SUPPORTED ? "cudaErrorNotSupported" : "cudaErrorUnknown";
}

// ---------------------------------------------------------------- memory of the GPU

int cudaMalloc(void **pointer, size_t bytes) {
  *pointer = NULL;
  if (!bytes) return SUCCESS;
  size_t allocated_bytes = (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
  if (!emulated_allocate(current_device, allocated_bytes)) return result(OUT_OF_MEMORY);
  int error = emulated_reserve(current_device, allocated_bytes, allocated_bytes, pointer);
  if (error) emulated_free(current_device, allocated_bytes);
  return result(error);
}

int cudaFree(void *pointer) {
  int device;
  if (!pointer) return SUCCESS;  // torch calls it so to create the context
  if (!emulated_find(pointer, NULL, NULL, &device)) return result(INVALID_VALUE);
  emulated_free(device, emulated_release(pointer));
  return SUCCESS;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = emulated_free_bytes(current_device, 1);
  *total_bytes = emulated_gpu()->total_bytes;
  return SUCCESS;
}

// ---------------------------------------------------------------- page-locked memory of the host

// Mapped, not taken from malloc: pages that nobody writes stay without memory, however large the block is.
typedef struct HostBlock { struct HostBlock *next; void *start; size_t bytes; } HostBlock;
static HostBlock *host_blocks;
static int host_lock;

static void acquire(void) { while (__atomic_exchange_n(&host_lock, 1, __ATOMIC_ACQUIRE)) {} }
static void release(void) { __atomic_store_n(&host_lock, 0, __ATOMIC_RELEASE); }

static int host_memory(void **pointer, size_t bytes) {
  bytes = bytes ? bytes : 1;
  *pointer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  HostBlock *block = *pointer == MAP_FAILED ? NULL : malloc(sizeof *block);
  if (!block) return result(emulated_fail(HOST_FAILED, "the host has no room for page-locked memory"));
  acquire();
  *block = (HostBlock){host_blocks, *pointer, bytes};
  host_blocks = block;
  release();
  return SUCCESS;
}
int cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) { return host_memory(pointer, bytes); }
int cudaMallocHost(void **pointer, size_t bytes) { return host_memory(pointer, bytes); }
int cudaFreeHost(void *pointer) {
  acquire();
  HostBlock **at = &host_blocks, *block;
  while ((block = *at) && block->start != pointer) at = &block->next;
  if (block) *at = block->next;
  release();
  if (!block) return pointer ? result(INVALID_VALUE) : SUCCESS;
  munmap(block->start, block->bytes);
  free(block);
  return SUCCESS;
}

// ---------------------------------------------------------------- what a pointer is of

struct PointerAttributes { int type, device; void *device_pointer, *host_pointer; };
static int is_page_locked(const void *pointer) {
  acquire();
  HostBlock *block = host_blocks;
  while (block && !((char *)block->start <= (char *)pointer && (char *)pointer < (char *)block->start + block->bytes))
    block = block->next;
  release();
  return block != NULL;
}
int cudaPointerGetAttributes(struct PointerAttributes *attributes, const void *pointer) {
  enum { UNREGISTERED, HOST, DEVICE };
  *attributes = (struct PointerAttributes){UNREGISTERED, -2, NULL, (void *)pointer};  // -2: no device
  if (emulated_find(pointer, NULL, NULL, &attributes->device))
    *attributes = (struct PointerAttributes){DEVICE, attributes->device, (void *)pointer, NULL};
  else if (is_page_locked(pointer))  // DistributedDataParallel's map of used parameters asks (reducer.cpp: is_pinned)
    *attributes = (struct PointerAttributes){HOST, 0, (void *)pointer, (void *)pointer};
  return SUCCESS;
}
int cudaHostRegister(void *pointer, size_t bytes, unsigned flags) { return SUCCESS; }
int cudaHostUnregister(void *pointer) { return SUCCESS; }
int cudaHostGetDevicePointer(void **device_pointer, void *pointer, unsigned flags) { *device_pointer = pointer; return SUCCESS; }

// Managed memory moves between host and GPU as it is used (bitsandbytes' paged optimizers): it is the host's here.
int cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) { return host_memory(pointer, bytes); }

// ---------------------------------------------------------------- copies: one address space, so the direction says nothing

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { emulated_copy(to, from, bytes); return SUCCESS; }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) { return cudaMemcpy(to, from, bytes, kind); }
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream) {
  return cudaMemcpy(to, from, bytes, 0);
}
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
                      void *stream) {
  for (size_t row = 0; width * height <= emulated_gpu()->copy_bytes && row < height; row++)
    memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return SUCCESS;
}
int cudaMemset(void *to, int value, size_t bytes) { emulated_fill(to, value, 1, bytes); return SUCCESS; }
int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) { return cudaMemset(to, value, bytes); }

int cudaGetSymbolAddress(void **pointer, const void *symbol) {
  static char variables[64 * 1024];  // of kernels, which do not run
  *pointer = variables;
  return SUCCESS;
}

// ---------------------------------------------------------------- devices

int cudaGetDeviceCount(int *count) {
  *count = emulated_gpu()->count;
  return *count ? SUCCESS : result(100);  // cudaErrorNoDevice
}
int cudaGetDevice(int *device) { *device = current_device; return SUCCESS; }
int cudaSetDevice(int device) {
  if (invalid_device(device)) return result(INVALID_DEVICE);
  current_device = device;
  return SUCCESS;
}
int cudaDriverGetVersion(int *version) { *version = VERSION; return SUCCESS; }
int cudaRuntimeGetVersion(int *version) { *version = VERSION; return SUCCESS; }
int cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return SUCCESS; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return SUCCESS; }
int cudaDeviceGetPCIBusId(char *text, int room, int device) {
  snprintf(text, room, "0000:%02x:00.0", emulated_gpu()->first + device + 1);
  return SUCCESS;
}

// cudaDeviceProp: byte offsets of the fields that are set, in CUDA 12 and in CUDA 13 (driver_types.h of 12.4 to 12.9, 13.0).
#define AT(cuda12, cuda13) (CUDA_MAJOR == 13 ? cuda13 : cuda12)
#if CUDA_MAJOR == 13
int cudaGetDeviceProperties(char *out, int device)
#else
int cudaGetDeviceProperties_v2(char *out, int device)
#endif
{
  const Gpu *gpu = emulated_gpu();
  if (invalid_device(device)) return result(INVALID_DEVICE);
  struct { short at; int value; } fields[] = {
    {304, 65536},                                       // regsPerBlock
    {308, 32},                                          // warpSize
    {320, 1024}, {324, 1024}, {328, 1024}, {332, 64},   // maxThreadsPerBlock, maxThreadsDim
    {336, INT32_MAX}, {340, 65535}, {344, 65535},       // maxGridSize
    {360, gpu->major}, {364, gpu->minor},
    {AT(388, 384), gpu->multiprocessors},
    {AT(400, 392), 1},                                  // canMapHostMemory
    {AT(576, 560), 1},                                  // concurrentKernels
    {AT(584, 568), gpu->first + device + 1},            // pciBusID
    {AT(600, 584), 2},                                  // asyncEngineCount
    {AT(604, 588), 1},                                  // unifiedAddressing
    {AT(612, 592), 384},                                // memoryBusWidth
    {AT(616, 596), (int)gpu->l2_bytes},
    {AT(624, 604), gpu->threads},
    {AT(628, 608), 1},                                  // streamPrioritiesSupported
    {AT(632, 612), 1},                                  // globalL1CacheSupported
    {AT(648, 632), 65536},                              // regsPerMultiprocessor
    {AT(652, 636), 1},                                  // managedMemory
    {AT(676, 656), 1},                                  // concurrentManagedAccess
    {AT(680, 660), 1},                                  // computePreemptionSupported
    {AT(688, 668), 1},                                  // cooperativeLaunch
    {AT(712, 688), gpu->blocks},
    {AT(728, 704), 1},                                  // hostRegisterSupported
    {AT(744, 720), 1},                                  // memoryPoolsSupported
    {AT(772, 748), gpu->major >= 9},                    // clusterLaunch
  };
  struct { short at; size_t value; } sizes[] = {
    {288, gpu->total_bytes}, {296, 48 * 1024},          // sharedMemPerBlock
    {312, INT32_MAX}, {352, 65536},                     // memPitch, totalConstMem
    {368, 512}, {376, 32},                              // textureAlignment, texturePitchAlignment
    {AT(640, 624), gpu->shared}, {AT(696, 672), gpu->shared_per_block}, {AT(720, 696), 1024},  // reserved per block
  };
  memset(out, 0, AT(1032, 1008));
  memcpy(out, gpu->name, sizeof gpu->name);
  snprintf(out + 256, 16, "emulated GPU %02x", gpu->first + device);  // uuid
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) memcpy(out + fields[i].at, &fields[i].value, sizeof(int));
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) memcpy(out + sizes[i].at, &sizes[i].value, sizeof(size_t));
  return SUCCESS;
}

// The numbers of cudaDeviceAttr, which are those of CUdevice_attribute.
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  const Gpu *gpu = emulated_gpu();
  if (invalid_device(device)) return result(INVALID_DEVICE);
  switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;                // threads of a block, and its first two dimensions
    case 4: *value = 64; break;
    case 5: *value = INT32_MAX; break;                           // of a grid
    case 6: case 7: *value = 65535; break;
    case 8: *value = 48 * 1024; break;                           // shared memory of a block
    case 9: case 12: case 82: *value = 65536; break;             // constant memory, registers
    case 10: *value = 32; break;                                 // threads of a warp
    case 13: *value = 2000000; break;                            // clock rates in kHz
    case 36: *value = 10000000; break;
    case 14: *value = 512; break;                                // texture alignment
    case 16: *value = gpu->multiprocessors; break;
    case 33: *value = gpu->first + device + 1; break;            // PCI bus
    case 37: *value = 384; break;                                // bits of the memory bus
    case 38: *value = (int)gpu->l2_bytes; break;
    case 39: *value = gpu->threads; break;
    case 40: *value = 2; break;                                  // copy engines
    case 75: *value = gpu->major; break;
    case 76: *value = gpu->minor; break;
    case 81: *value = (int)gpu->shared; break;
    case 97: *value = (int)gpu->shared_per_block; break;
    case 106: *value = gpu->blocks; break;
    case 111: *value = 1024; break;                              // shared memory that a block keeps for the system
    case 120: *value = gpu->major >= 9; break;                   // clusters of blocks
    case 19: case 31: case 41: case 78: case 79: case 80: case 83: case 89: case 90: case 95: case 99: case 115:
      *value = 1; break;                                         // abilities of every GPU since Volta
    default: *value = 0;
  }
  return SUCCESS;
}

// ---------------------------------------------------------------- streams and events: work is done when it is asked for

static int handle(void **out) { return (*out = calloc(1, 64)) ? SUCCESS : result(HOST_FAILED); }
int cudaStreamCreate(void **stream) { return handle(stream); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return handle(stream); }
int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) { return handle(stream); }
int cudaStreamDestroy(void *stream) { free(stream); return SUCCESS; }
int cudaStreamGetPriority(void *stream, int *priority) { *priority = 0; return SUCCESS; }
int cudaStreamIsCapturing(void *stream, int *status) { *status = 0; return SUCCESS; }
int cudaStreamGetCaptureInfo(void *stream, int *status) { *status = 0; return SUCCESS; }  // not capturing: the rest is not read
int cudaStreamGetCaptureInfo_v2(void *stream, int *status) { *status = 0; return SUCCESS; }
int cudaStreamAddCallback(void *stream, void (*call)(void *, int, void *), void *data, unsigned flags) {
  call(stream, SUCCESS, data);
  return SUCCESS;
}
int cudaLaunchHostFunc(void *stream, void (*call)(void *), void *data) { call(data); return SUCCESS; }
int cudaEventCreate(void **event) { return handle(event); }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return handle(event); }
int cudaEventDestroy(void *event) { free(event); return SUCCESS; }
int cudaEventElapsedTime(float *milliseconds, void *start, void *end) { *milliseconds = 1; return SUCCESS; }  // no time is known
int cudaEventElapsedTime_v2(float *milliseconds, void *start, void *end) { return cudaEventElapsedTime(milliseconds, start, end); }
int cudaThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return SUCCESS; }

// ---------------------------------------------------------------- kernels: known by their host function, never run

void **__cudaRegisterFatBinary(void *binary) { return calloc(1, sizeof(void *)); }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) { free(handle); }
char __cudaInitModule(void **handle) { return 0; }
void __cudaRegisterFunction(void) {}
void __cudaRegisterVar(void) {}
int __cudaGetKernel(void **kernel, const void *function) { *kernel = (void *)function; return SUCCESS; }

// A launch with <<<...>>> pushes its shape, and the host function of the kernel pops it.
static __thread struct { Dim3 grid, block; size_t shared; void *stream; } shapes[16];
static __thread int num_shapes;
unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
  if (num_shapes == 16) return 1;
  shapes[num_shapes].grid = grid;
  shapes[num_shapes].block = block;
  shapes[num_shapes].shared = shared;
  shapes[num_shapes++].stream = stream;
  return 0;
}
int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void **stream) {
  if (!num_shapes) return result(INVALID_VALUE);
  num_shapes--;
  *grid = shapes[num_shapes].grid;
  *block = shapes[num_shapes].block;
  *shared = shapes[num_shapes].shared;
  *stream = shapes[num_shapes].stream;
  return SUCCESS;
}

int cudaLibraryLoadData(void **library) { return handle(library); }
int cudaLibraryGetKernel(void **kernel, void *library, const char *name) { return handle(kernel); }

// cudaFuncAttributes: three sizes, then these integers (CUDA 12 and 13).
struct FunctionAttributes { size_t shared, constant, local; int threads, registers, ptx, binary, cache, dynamic_shared; };
int cudaFuncGetAttributes(struct FunctionAttributes *attributes, const void *function) {
  const Gpu *gpu = emulated_gpu();
  *attributes = (struct FunctionAttributes){0, 0, 0, 1024, 32, gpu->binary, gpu->binary, 0, (int)gpu->shared_per_block};
  return SUCCESS;
}

// By threads and shared memory alone: how many registers a kernel needs is known to the device code only.
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int size, size_t shared) {
  const Gpu *gpu = emulated_gpu();
  int threads = (size + 31) / 32 * 32, fit = gpu->threads / (threads ? threads : 32);
  if (shared && gpu->shared / (shared + 1024) < (size_t)fit) fit = (int)(gpu->shared / (shared + 1024));
  *blocks = fit < gpu->blocks ? fit : gpu->blocks;
  return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size, size_t shared, unsigned flags) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, size, shared);
}

// ---------------------------------------------------------------- calls that need no work

#define DOES_NOTHING(name) int name(void) { return SUCCESS; }
DOES_NOTHING(cudaDeviceSynchronize)
DOES_NOTHING(cudaDeviceSetLimit)
DOES_NOTHING(cudaDeviceSetCacheConfig)
DOES_NOTHING(cudaDeviceEnablePeerAccess)
DOES_NOTHING(cudaStreamSynchronize)
DOES_NOTHING(cudaStreamQuery)
DOES_NOTHING(cudaStreamWaitEvent)
DOES_NOTHING(cudaEventRecord)
DOES_NOTHING(cudaEventRecordWithFlags)
DOES_NOTHING(cudaEventQuery)
DOES_NOTHING(cudaEventSynchronize)
DOES_NOTHING(cudaFuncSetAttribute)
DOES_NOTHING(cudaFuncSetCacheConfig)
DOES_NOTHING(cudaKernelSetAttributeForDevice)
DOES_NOTHING(cudaLaunchKernel)
DOES_NOTHING(cudaLaunchKernelExC)
DOES_NOTHING(cudaLaunchCooperativeKernel)
DOES_NOTHING(__cudaLaunchKernel)
DOES_NOTHING(__cudaLaunchKernel_ptsz)
DOES_NOTHING(cudaLibraryUnload)
DOES_NOTHING(cudaMemcpyToSymbol)
DOES_NOTHING(cudaMemcpyToSymbolAsync)
DOES_NOTHING(cudaMemPrefetchAsync)
DOES_NOTHING(cudaMemAdvise)
DOES_NOTHING(cudaProfilerStart)
DOES_NOTHING(cudaProfilerStop)

// ---------------------------------------------------------------- functions of the driver, by name

static int does_nothing(void) { return SUCCESS; }

int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, int *status) {
  static void *driver;
  if (!driver) {
    Dl_info here;
    char path[4096];
    dladdr((void *)cudaMalloc, &here);
    snprintf(path, sizeof path, "%.*s/libcuda.so.1", (int)(strrchr(here.dli_fname, '/') - here.dli_fname), here.dli_fname);
    driver = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  }
  char versioned[256];
  snprintf(versioned, sizeof versioned, "%s_v2", name);
  *function = driver ? dlsym(driver, versioned) : NULL;
  if (!*function && driver) *function = dlsym(driver, name);
  if (!*function) *function = (void *)does_nothing;  // torch asks for all it might call
  if (status) *status = 0;
  return SUCCESS;
}
int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
  return cudaGetDriverEntryPointByVersion(name, function, VERSION, flags, status);
}
