// What the libraries share: the emulated GPUs, their memory, and the processes that use it. Defined in memory.c, which
// is part of the CUDA runtime; the other libraries link against that.
#pragma once
#include <stddef.h>

#define MIB ((size_t)1 << 20)
#define MAX_GPUS 64

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, HOST_FAILED = 304, NOT_SUPPORTED = 801 };
// cudaError_t and CUresult have the same numbers for these.

typedef struct {
  char name[256];
  int major, minor;        // compute capability
  int multiprocessors;
  int threads, blocks;     // of a multiprocessor at once, at most
  size_t shared, shared_per_block;  // shared memory of a multiprocessor, and of a block that asks for it
  size_t l2_bytes;
  int binary;              // compute capability of the machine code that the GPU would load: cub chooses by it
  int installed;           // GPUs of the machine
  int count;               // GPUs that this process sees (CUDA_VISIBLE_DEVICES)
  int first;               // number of the first of them in the machine
  size_t total_bytes;      // as cudaMemGetInfo calls it
  size_t driver_bytes;     // as nvidia-smi calls it
  size_t context_bytes;    // of the CUDA context of each process: a constant, not an emulated quantity
  size_t copy_bytes;       // larger copies and fills are not carried out, so that their pages stay without memory
} Gpu;

const Gpu *emulated_gpu(void);

// The error text that PyTorch shows; NULL for the standard text of the number.
int emulated_fail(int error, const char *text);
const char *emulated_error_text(int error);
int emulated_not_supported(const char *function);

// Addresses on a GPU: pages of the host without memory until they are written.
int emulated_reserve(int device, size_t bytes, size_t allocated_bytes, void **start);
size_t emulated_release(void *start);  // the allocated bytes; 0 if nothing starts there
int emulated_find(const void *address, void **start, size_t *bytes, int *device);

// Memory of a GPU, in bytes. All processes with the same $VRAMPLAN_EMULATED_STATE share it.
int emulated_allocate(int device, size_t bytes);  // 0 if so much is not free
void emulated_free(int device, size_t bytes);
size_t emulated_free_bytes(int device, int creates_context);
#define MAX_PROCESSES 256
int emulated_process(int slot, int device, int *pid, size_t *bytes);  // 0 if the slot is empty or of another GPU

void emulated_copy(void *to, const void *from, size_t bytes);
void emulated_fill(void *to, unsigned value, size_t width, size_t count);
