// libnccl between processes of one machine. Small collectives are carried out through shared memory, since host code
// reads their results (shapes, pickled objects, counts); large ones only wait for no one: their values come from kernels
// that did not run. NCCL's own buffers on the GPU are not part of PyTorch's allocator and are not counted.
#define _GNU_SOURCE
#include "gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_ARGUMENT = 4, NCCL_REMOTE_ERROR = 6 };
#define MAX_RANKS 64
#define SLOT_BYTES ((size_t)1 << 20)  // a rank's part of a collective; larger ones are not carried out
#define WAIT_SECONDS 600

typedef struct { char internal[128]; } UniqueId;

// What the ranks of a communicator share. A rank publishes its part, and everybody waits for everybody.
typedef struct {
  atomic_int arrived, round, failed;
  int pids[MAX_RANKS];
  struct { atomic_int full; } mail[MAX_RANKS][MAX_RANKS];  // from, to: one message that was not received yet
} Shared;

typedef struct {
  char name[64];
  int rank, ranks, splits;
  Shared *shared;
  char *slots;  // ranks x SLOT_BYTES, then ranks x ranks x MAIL_BYTES
  size_t bytes;
} Communicator;
#define MAIL_BYTES ((size_t)64 << 10)

static int width_of(int type) {  // ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, fp16, fp32, fp64, bf16, fp8 twice
  static const int widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < (int)(sizeof widths / sizeof *widths) ? widths[type] : 0;
}

// ---------------------------------------------------------------- waiting

static int is_gone(Communicator *group) {
  for (int rank = 0; rank < group->ranks; rank++) {
    int pid = group->shared->pids[rank];
    if (pid && kill(pid, 0) != 0 && errno == ESRCH) return 1;
  }
  return 0;
}

static int wait_while(Communicator *group, atomic_int *value, int same) {
  struct timespec start, now, pause = {0, 200000};
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (long turn = 0; atomic_load(value) == same; turn++) {
    if (turn < 1000) {
      sched_yield();
      continue;
    }
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (atomic_load(&group->shared->failed) || now.tv_sec - start.tv_sec > WAIT_SECONDS || (turn % 500 == 0 && is_gone(group))) {
      if (atomic_load(value) != same) break;
      atomic_store(&group->shared->failed, 1);
      return NCCL_REMOTE_ERROR;
    }
  }
  return SUCCESS;
}

static int barrier(Communicator *group) {
  int round = atomic_load(&group->shared->round);
  if (atomic_fetch_add(&group->shared->arrived, 1) + 1 == group->ranks) {
    atomic_store(&group->shared->arrived, 0);
    atomic_fetch_add(&group->shared->round, 1);
    return SUCCESS;
  }
  return wait_while(group, &group->shared->round, round);
}

// ---------------------------------------------------------------- communicators

static int open_group(Communicator **out, const char *name, int ranks, int rank) {
  if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks) return NCCL_INVALID_ARGUMENT;
  Communicator *group = calloc(1, sizeof *group);
  size_t head = (sizeof(Shared) + 4095) / 4096 * 4096;
  group->bytes = head + ranks * SLOT_BYTES + (size_t)ranks * ranks * MAIL_BYTES;
  snprintf(group->name, sizeof group->name, "%s", name);
  group->rank = rank;
  group->ranks = ranks;
  int file = shm_open(group->name, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, group->bytes) != 0) return NCCL_SYSTEM_ERROR;
  group->shared = mmap(NULL, group->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (group->shared == MAP_FAILED) return NCCL_SYSTEM_ERROR;
  group->slots = (char *)group->shared + head;
  group->shared->pids[rank] = getpid();
  int error = barrier(group);
  if (rank == 0) shm_unlink(group->name);  // all have it open, or nobody waits any longer
  *out = group;
  return error;
}

int ncclGetVersion(int *version) { *version = NCCL_VERSION; return SUCCESS; }
const char *ncclGetErrorString(int error) {
  return error == SUCCESS ? "no error" : error == NCCL_REMOTE_ERROR ? "another rank has ended or did not answer" : "error of the emulated NCCL";
}
const char *ncclGetLastError(void *group) { return ""; }
int ncclGetUniqueId(UniqueId *id) {
  static atomic_int number;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  memset(id, 0, sizeof *id);
  snprintf(id->internal, 60, "/vramplan-nccl-%d-%d-%lx", getpid(), atomic_fetch_add(&number, 1), now.tv_nsec ^ now.tv_sec << 30);
  return SUCCESS;
}
int ncclCommInitRank(Communicator **group, int ranks, UniqueId id, int rank) { return open_group(group, id.internal, ranks, rank); }
int ncclCommInitRankConfig(Communicator **group, int ranks, UniqueId id, int rank, void *config) {
  return open_group(group, id.internal, ranks, rank);
}
int ncclCommInitRankScalable(Communicator **group, int ranks, int rank, int num_ids, UniqueId *ids, void *config) {
  return open_group(group, ids->internal, ranks, rank);
}
static int close_group(Communicator *group) {
  if (!group) return SUCCESS;
  munmap(group->shared, group->bytes);
  free(group);
  return SUCCESS;
}
int ncclCommFinalize(Communicator *group) { return SUCCESS; }
int ncclCommDestroy(Communicator *group) { return close_group(group); }
int ncclCommAbort(Communicator *group) {
  if (group) atomic_store(&group->shared->failed, 1);
  return SUCCESS;  // another thread may still wait in it
}
int ncclCommCount(Communicator *group, int *ranks) { *ranks = group->ranks; return SUCCESS; }
int ncclCommUserRank(Communicator *group, int *rank) { *rank = group->rank; return SUCCESS; }
int ncclCommCuDevice(Communicator *group, int *device) { *device = 0; return SUCCESS; }
int ncclCommGetAsyncError(Communicator *group, int *error) { return *error = SUCCESS; }
int ncclCommRegister(Communicator *group, void *start, size_t bytes, void **registration) { *registration = start; return SUCCESS; }
int ncclCommDeregister(Communicator *group, void *registration) { return SUCCESS; }
int ncclRedOpCreatePreMulSum(int *operation) { *operation = 0; return SUCCESS; }
int ncclRedOpDestroy(int operation, Communicator *group) { return SUCCESS; }
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int ncclMemAlloc(void **pointer, size_t bytes) { return cudaMalloc(pointer, bytes) ? NCCL_SYSTEM_ERROR : SUCCESS; }
int ncclMemFree(void *pointer) { return cudaFree(pointer) ? NCCL_SYSTEM_ERROR : SUCCESS; }

// ---------------------------------------------------------------- collectives

static int is_carried_out(size_t bytes) { return bytes && bytes <= SLOT_BYTES; }
static char *slot(Communicator *group, int rank) { return group->slots + rank * SLOT_BYTES; }

static int publish(Communicator *group, const void *part, size_t bytes) {
  memcpy(slot(group, group->rank), part, bytes);
  return barrier(group);
}

// Sum, product, maximum, minimum, average (ncclRedOp_t) of the types whose values host code reads; the others keep
// this rank's own values, which are those of kernels that did not run.
#define COMBINE(TYPE)                                                                                  \
  for (size_t i = 0; i < count; i++) {                                                                 \
    TYPE *a = (TYPE *)total + i, b = ((const TYPE *)part)[i];                                          \
    *a = operation == 1 ? *a * b : operation == 2 ? (*a > b ? *a : b) : operation == 3 ? (*a < b ? *a : b) : *a + b; \
  }
static void combine(void *total, const void *part, size_t count, int type, int operation) {
  switch (type) {
    case 0: COMBINE(signed char) break;
    case 1: COMBINE(unsigned char) break;
    case 2: COMBINE(int) break;
    case 3: COMBINE(unsigned) break;
    case 4: COMBINE(long long) break;
    case 5: COMBINE(unsigned long long) break;
    case 7: COMBINE(float) break;
    case 8: COMBINE(double) break;
  }
}

static void reduce(Communicator *group, void *out, size_t from, size_t count, int type, int operation) {
  size_t width = width_of(type);
  memcpy(out, slot(group, 0) + from * width, count * width);
  for (int rank = 1; rank < group->ranks; rank++) combine(out, slot(group, rank) + from * width, count, type, operation);
  if (operation != 4) return;  // an average
  if (type == 7) for (size_t i = 0; i < count; i++) ((float *)out)[i] /= group->ranks;
  if (type == 8) for (size_t i = 0; i < count; i++) ((double *)out)[i] /= group->ranks;
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int operation, Communicator *group, void *stream) {
  if (!is_carried_out(count * width_of(type))) return SUCCESS;
  int error = publish(group, in, count * width_of(type));
  if (error) return error;
  reduce(group, out, 0, count, type, operation);
  return barrier(group);
}
int ncclReduce(const void *in, void *out, size_t count, int type, int operation, int root, Communicator *group, void *stream) {
  if (!is_carried_out(count * width_of(type))) return SUCCESS;
  int error = publish(group, in, count * width_of(type));
  if (error) return error;
  if (group->rank == root) reduce(group, out, 0, count, type, operation);
  return barrier(group);
}
int ncclReduceScatter(const void *in, void *out, size_t count, int type, int operation, Communicator *group, void *stream) {
  size_t bytes = count * group->ranks * width_of(type);
  if (!is_carried_out(bytes)) return SUCCESS;
  int error = publish(group, in, bytes);
  if (error) return error;
  reduce(group, out, group->rank * count, count, type, operation);
  return barrier(group);
}
int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, Communicator *group, void *stream) {
  size_t bytes = count * width_of(type);
  if (!is_carried_out(bytes)) return SUCCESS;
  if (group->rank == root) memcpy(slot(group, root), in, bytes);
  int error = barrier(group);
  if (error) return error;
  memmove(out, slot(group, root), bytes);
  return barrier(group);
}
int ncclBcast(void *data, size_t count, int type, int root, Communicator *group, void *stream) {
  return ncclBroadcast(data, data, count, type, root, group, stream);
}
int ncclAllGather(const void *in, void *out, size_t count, int type, Communicator *group, void *stream) {
  size_t bytes = count * width_of(type);
  if (!is_carried_out(bytes)) return SUCCESS;
  int error = publish(group, in, bytes);
  if (error) return error;
  for (int rank = 0; rank < group->ranks; rank++) memcpy((char *)out + rank * bytes, slot(group, rank), bytes);
  return barrier(group);
}
int ncclAlltoAll(const void *in, void *out, size_t count, int type, Communicator *group, void *stream) {
  size_t bytes = count * width_of(type);
  if (!is_carried_out(bytes * group->ranks)) return SUCCESS;
  int error = publish(group, in, bytes * group->ranks);
  if (error) return error;
  for (int rank = 0; rank < group->ranks; rank++)
    memcpy((char *)out + rank * bytes, slot(group, rank) + group->rank * bytes, bytes);
  return barrier(group);
}

// A message lies in the mail of its pair of ranks until it is received, so that two ranks can send to each other.
static char *mail(Communicator *group, int from, int to) {
  return slot(group, group->ranks) + ((size_t)from * group->ranks + to) * MAIL_BYTES;
}
int ncclSend(const void *data, size_t count, int type, int peer, Communicator *group, void *stream) {
  atomic_int *full = &group->shared->mail[group->rank][peer].full;
  int error = wait_while(group, full, 1);
  if (error) return error;
  if (count * width_of(type) <= MAIL_BYTES) memcpy(mail(group, group->rank, peer), data, count * width_of(type));
  atomic_store(full, 1);
  return SUCCESS;
}
int ncclRecv(void *data, size_t count, int type, int peer, Communicator *group, void *stream) {
  atomic_int *full = &group->shared->mail[peer][group->rank].full;
  int error = wait_while(group, full, 0);
  if (error) return error;
  if (count * width_of(type) <= MAIL_BYTES) memcpy(data, mail(group, peer, group->rank), count * width_of(type));
  atomic_store(full, 0);
  return SUCCESS;
}
// Calls between these are carried out one by one: all ranks issue collectives in the same order, and messages wait.
int ncclGroupStart(void) { return SUCCESS; }
int ncclGroupEnd(void) { return SUCCESS; }

int ncclCommSplit(Communicator *group, int color, int key, Communicator **out, void *config) {
  struct { int color, key; } own = {color, key}, all[MAX_RANKS];
  int error = ncclAllGather(&own, all, sizeof own, 0, group, NULL), ranks = 0, position = 0;
  if (error) return error;
  *out = NULL;
  group->splits++;
  if (color < 0) return SUCCESS;  // NCCL_SPLIT_NOCOLOR
  for (int rank = 0; rank < group->ranks; rank++) {
    if (all[rank].color != color) continue;
    ranks++;
    position += all[rank].key < key || (all[rank].key == key && rank < group->rank);
  }
  char name[64];
  snprintf(name, sizeof name, "%.40s-%d-%d", group->name, group->splits, color);
  return open_group(out, name, ranks, position);
}
