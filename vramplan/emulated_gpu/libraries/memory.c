// The emulated GPUs: settings from the environment, addresses, memory in numbers. Part of the CUDA runtime library.
#define _GNU_SOURCE
#include "gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// ---------------------------------------------------------------- settings

static Gpu gpu;

static size_t number(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

// What host code asks of an architecture (CUDA C++ Programming Guide, table of compute capabilities): threads and blocks
// of a multiprocessor, its shared memory in KiB, that of one block, and the machine code in PyTorch's wheels.
static const struct { int capability, threads, blocks, shared, shared_per_block, binary; } architectures[] = {
  {60, 2048, 32, 64, 48, 60},    {61, 2048, 32, 96, 48, 61},    {70, 2048, 32, 96, 96, 70},    {75, 1024, 16, 64, 64, 75},
  {80, 2048, 32, 164, 163, 80},  {86, 1536, 16, 100, 99, 86},   {87, 1536, 16, 164, 163, 86},  {89, 1536, 24, 100, 99, 86},
  {90, 2048, 32, 228, 227, 90},  {100, 2048, 32, 228, 227, 100}, {120, 1536, 24, 100, 99, 120},
};

static void read_settings(void) {
  const char *name = getenv("VRAMPLAN_EMULATED_NAME"), *capability = getenv("VRAMPLAN_EMULATED_CAPABILITY");
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  snprintf(gpu.name, sizeof gpu.name, "%s", name && *name ? name : "emulated GPU");
  if (!capability || sscanf(capability, "%d.%d", &gpu.major, &gpu.minor) != 2) gpu.major = 8, gpu.minor = 0;
  size_t row = 0, rows = sizeof architectures / sizeof *architectures;
  while (row + 1 < rows && architectures[row + 1].capability <= gpu.major * 10 + gpu.minor) row++;
  gpu.threads = architectures[row].threads;
  gpu.blocks = architectures[row].blocks;
  gpu.shared = architectures[row].shared * 1024;
  gpu.shared_per_block = architectures[row].shared_per_block * 1024;
  gpu.binary = architectures[row].binary;
  gpu.multiprocessors = number("VRAMPLAN_EMULATED_MULTIPROCESSORS", 108);
  gpu.l2_bytes = number("VRAMPLAN_EMULATED_L2_BYTES", 40 * MIB);
  gpu.total_bytes = number("VRAMPLAN_EMULATED_TOTAL_BYTES", 0);
  gpu.driver_bytes = number("VRAMPLAN_EMULATED_DRIVER_BYTES", gpu.total_bytes);
  gpu.context_bytes = number("VRAMPLAN_EMULATED_CONTEXT_BYTES", 0);
  gpu.copy_bytes = number("VRAMPLAN_EMULATED_COPY_BYTES", 4 * MIB);
  gpu.installed = number("VRAMPLAN_EMULATED_COUNT", 1);
  if (gpu.installed > MAX_GPUS) gpu.installed = MAX_GPUS;
  gpu.count = gpu.installed;
  if (visible) {  // a list of numbers: "", "0", "2,3"; the GPUs are all alike, so only the first number counts
    int all = gpu.installed;
    gpu.count = 0;
    gpu.first = atoi(visible);
    for (const char *at = visible; *at && gpu.count < all; at++) gpu.count += at == visible || *at == ',';
    if (gpu.first < 0 || gpu.first + gpu.count > all) gpu.count = gpu.first < 0 || gpu.first >= all ? 0 : all - gpu.first;
  }
}

const Gpu *emulated_gpu(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_settings);
  return &gpu;
}

// ---------------------------------------------------------------- errors

static __thread char error_text[256];
static __thread int error_of_text;

int emulated_fail(int error, const char *text) {
  error_of_text = text ? error : 0;
  if (text) snprintf(error_text, sizeof error_text, "%s", text);
  return error;
}

const char *emulated_error_text(int error) {
  if (error == SUCCESS) return "no error";
  if (error == error_of_text) return error_text;
  return error == OUT_OF_MEMORY     ? "out of memory"
         : error == INVALID_VALUE   ? "invalid argument"
         : error == INVALID_DEVICE  ? "invalid device ordinal"
         : error == HOST_FAILED     ? "OS call failed or operation not supported on this OS"
         : error == NOT_SUPPORTED   ? "operation not supported"
                                    : "error of the emulated GPU";
}

int emulated_not_supported(const char *function) {
  char text[200];
  snprintf(text, sizeof text, "the emulated GPU does not support %s", function);
  fprintf(stderr, "vramplan: %s\n", text);
  return emulated_fail(NOT_SUPPORTED, text);
}

// ---------------------------------------------------------------- addresses

typedef struct { char *start; size_t bytes, allocated_bytes; int device; } Range;
static Range *ranges;  // by address
static size_t num_ranges, room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define GRANULARITY (2 * MIB)  // of cudaMalloc's memory and of the driver's virtual memory
// Each GPU has its part of the address space, and the lowest gap is used first: PyTorch's allocator breaks ties between
// free blocks of one size by their address.
#define SPACE ((size_t)1 << 40)
#define FIRST_ADDRESS ((char *)((size_t)1 << 44))

static size_t first_after(const void *address) {
  size_t low = 0, high = num_ranges;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].start > (char *)address) high = middle;
    else low = middle + 1;
  }
  return low;
}

static Range *range_of(const void *address) {
  size_t after = first_after(address);
  if (!after) return NULL;
  Range *range = ranges + after - 1;
  return (size_t)((char *)address - range->start) < range->bytes ? range : NULL;
}

int emulated_reserve(int device, size_t bytes, size_t allocated_bytes, void **out) {
  bytes = (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
  pthread_mutex_lock(&lock);
  if (num_ranges == room) ranges = realloc(ranges, (room = room * 2 + 64) * sizeof *ranges);
  char *start = FIRST_ADDRESS + (gpu.first + device) * SPACE;
  size_t at = first_after(start);
  if (at && ranges[at - 1].start == start) at--;
  while (at < num_ranges && ranges[at].device == device && (size_t)(ranges[at].start - start) < bytes) {
    start = ranges[at].start + ranges[at].bytes;
    at++;
  }
  void *mapped = mmap(start, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  int error = mapped == start ? SUCCESS : HOST_FAILED;
  if (error == SUCCESS) {
    madvise(start, bytes, MADV_NOHUGEPAGE);
    memmove(ranges + at + 1, ranges + at, (num_ranges++ - at) * sizeof *ranges);
    ranges[at] = (Range){start, bytes, allocated_bytes, device};
  } else if (mapped != MAP_FAILED) {
    munmap(mapped, bytes);
  }
  pthread_mutex_unlock(&lock);
  if (error) {
    char text[200];
    snprintf(text, sizeof text, "the host's address space has no room for %zu MiB of the emulated GPU (ulimit -v, vm.max_map_count)",
             bytes / MIB);
    return emulated_fail(HOST_FAILED, text);
  }
  *out = start;
  return SUCCESS;
}

size_t emulated_release(void *start) {
  size_t allocated_bytes = 0;
  pthread_mutex_lock(&lock);
  Range *range = range_of(start);
  if (range && range->start == start) {
    allocated_bytes = range->allocated_bytes;
    munmap(range->start, range->bytes);
    memmove(range, range + 1, (ranges + --num_ranges - range) * sizeof *ranges);
  }
  pthread_mutex_unlock(&lock);
  return allocated_bytes;
}

int emulated_find(const void *address, void **start, size_t *bytes, int *device) {
  pthread_mutex_lock(&lock);
  Range *range = range_of(address);
  if (range && start) *start = range->start;
  if (range && bytes) *bytes = range->bytes;
  if (range && device) *device = range->device;
  pthread_mutex_unlock(&lock);
  return range != NULL;
}

// ---------------------------------------------------------------- memory in numbers

// One slot for each process and GPU, in a file that the processes share, else in this process alone. The highest use of
// each GPU stays when the processes have ended (peak_bytes in run.py reads it).
typedef struct { int pid, gpu; size_t allocated_bytes; } Slot;
typedef struct { Slot slots[MAX_PROCESSES]; size_t peak_bytes[MAX_GPUS]; } State;
static State own_state, *state;
static Slot *slots;
static int file_of_state = -1;
static pthread_once_t state_opened = PTHREAD_ONCE_INIT;

static void open_state(void) {
  const char *path = getenv("VRAMPLAN_EMULATED_STATE");
  state = &own_state;
  slots = state->slots;
  if (!path || !*path) return;
  file_of_state = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file_of_state < 0 || ftruncate(file_of_state, sizeof own_state) != 0) return;
  void *shared = mmap(NULL, sizeof own_state, PROT_READ | PROT_WRITE, MAP_SHARED, file_of_state, 0);
  if (shared == MAP_FAILED) return;
  state = shared;
  slots = state->slots;
}

// Between processes and threads: a record lock of the file, and a mutex. They are held for a few instructions.
static void lock_slots(short kind) {
  struct flock whole = {.l_type = kind, .l_whence = SEEK_SET};
  pthread_once(&state_opened, open_state);
  if (kind == F_WRLCK) pthread_mutex_lock(&lock);
  if (file_of_state >= 0) while (fcntl(file_of_state, F_SETLKW, &whole) && errno == EINTR) {}
  if (kind == F_UNLCK) pthread_mutex_unlock(&lock);
}

static int is_used(Slot *slot) {
  if (slot->pid && slot->pid != getpid() && kill(slot->pid, 0) != 0 && errno == ESRCH) slot->pid = 0;  // it has ended
  return slot->pid != 0;
}

int emulated_process(int number, int device, int *pid, size_t *bytes) {
  pthread_once(&state_opened, open_state);
  Slot *slot = slots + number;
  if (!is_used(slot) || slot->gpu != emulated_gpu()->first + device) return 0;
  *pid = slot->pid;
  *bytes = slot->allocated_bytes + gpu.context_bytes;
  return 1;
}

static Slot *own_slot(int device, int create) {
  Slot *empty = NULL;
  for (Slot *slot = slots; slot < slots + MAX_PROCESSES; slot++) {
    if (!is_used(slot)) empty = empty ? empty : slot;
    else if (slot->pid == getpid() && slot->gpu == gpu.first + device) return slot;
  }
  if (create && empty) *empty = (Slot){getpid(), gpu.first + device, 0};
  return create ? empty : NULL;
}

static size_t free_bytes(int device) {
  size_t used = 0, bytes;
  int pid;
  for (int slot = 0; slot < MAX_PROCESSES; slot++)
    if (emulated_process(slot, device, &pid, &bytes)) used += bytes;
  return used < gpu.total_bytes ? gpu.total_bytes - used : 0;
}

size_t emulated_free_bytes(int device, int creates_context) {
  lock_slots(F_WRLCK);
  if (creates_context) own_slot(device, 1);
  size_t bytes = free_bytes(device);
  lock_slots(F_UNLCK);
  return bytes;
}

int emulated_allocate(int device, size_t bytes) {
  lock_slots(F_WRLCK);
  Slot *slot = own_slot(device, 1);
  int fits = slot && bytes <= free_bytes(device);
  if (fits) {
    slot->allocated_bytes += bytes;
    size_t used = gpu.total_bytes - free_bytes(device), *peak = &state->peak_bytes[gpu.first + device];
    if (used > *peak) *peak = used;
  }
  lock_slots(F_UNLCK);
  return fits;
}

void emulated_free(int device, size_t bytes) {
  lock_slots(F_WRLCK);
  Slot *slot = own_slot(device, 0);
  if (slot) slot->allocated_bytes -= bytes < slot->allocated_bytes ? bytes : slot->allocated_bytes;
  lock_slots(F_UNLCK);
}

// ---------------------------------------------------------------- copies

// A copy between host memory alone is always carried out; one to or from a GPU if it is small.
void emulated_copy(void *to, const void *from, size_t bytes) {
  if (bytes <= emulated_gpu()->copy_bytes || !(emulated_find(to, NULL, NULL, NULL) || emulated_find(from, NULL, NULL, NULL)))
    memmove(to, from, bytes);
}

void emulated_fill(void *to, unsigned value, size_t width, size_t count) {
  if (width * count > emulated_gpu()->copy_bytes) {
    // Large blocks are cleared by giving their whole pages back; other values are left out.
    uintptr_t page = sysconf(_SC_PAGESIZE), start = ((uintptr_t)to + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)to + width * count) / page * page;
    if (!value && end > start) madvise((void *)start, end - start, MADV_DONTNEED);
    return;
  }
  if (width == 1) memset(to, (int)value, count);
  else for (size_t i = 0; i < count; i++) memcpy((char *)to + i * width, &value, width);
}
