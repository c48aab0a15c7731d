// libnvidia-ml without a GPU: what PyTorch's report of running out of memory, pynvml and nvidia-smi's successors ask.
#include "gpu.h"

#include <stdio.h>

enum { NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_INSUFFICIENT_SIZE = 7 };
static char devices[MAX_GPUS];  // the address of an element is a GPU's handle; its number is that in the machine
static int number_of(void *handle) { return (int)((char *)handle - devices); }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInit(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) {
  return error == SUCCESS ? "Success" : error == NVML_NOT_SUPPORTED ? "Not Supported" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *text, unsigned room) { snprintf(text, room, "emulated"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = CUDA_MAJOR * 1000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

// NVML counts all GPUs of the machine, whatever CUDA_VISIBLE_DEVICES says.
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)emulated_gpu()->installed; return SUCCESS; }
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (index >= (unsigned)emulated_gpu()->installed) return NVML_INVALID_ARGUMENT;
  *handle = devices + index;
  return SUCCESS;
}
int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  unsigned index = 0;
  sscanf(uuid, "GPU-%8x", &index);
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
  unsigned domain = 0, number = 1;
  sscanf(bus, "%x:%x", &domain, &number);
  return nvmlDeviceGetHandleByIndex_v2(number - 1, handle);
}
int nvmlDeviceGetIndex(void *handle, unsigned *index) { *index = number_of(handle); return SUCCESS; }
int nvmlDeviceGetName(void *handle, char *text, unsigned room) { snprintf(text, room, "%s", emulated_gpu()->name); return SUCCESS; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned room) {
  snprintf(text, room, "GPU-%08x-0000-0000-0000-000000000000", number_of(handle));
  return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  *major = emulated_gpu()->major;
  *minor = emulated_gpu()->minor;
  return SUCCESS;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later) { return NVML_NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) { return NVML_NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *info) { return NVML_NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active) { return NVML_NOT_SUPPORTED; }
int nvmlDeviceGetP2PStatus(void *handle, void *other, int index, int *status) { return NVML_NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void *handle, char *info) { return info[28] = SUCCESS; }  // its state: no fabric

typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  memory->total = emulated_gpu()->driver_bytes;
  memory->free = emulated_free_bytes(number_of(handle) - emulated_gpu()->first, 0);
  memory->used = memory->total - memory->free;
  return SUCCESS;
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *info) {
  Memory memory;
  nvmlDeviceGetMemoryInfo(handle, &memory);
  info->total = memory.total;
  info->free = memory.free;
  info->reserved = memory.total - emulated_gpu()->total_bytes;  // what CUDA does not see
  info->used = memory.used - info->reserved;
  return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long used_bytes; unsigned gpu_instance, compute_instance; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *processes) {
  unsigned room = *count, n = 0;
  for (int slot = 0; slot < MAX_PROCESSES; slot++) {
    int pid;
    size_t bytes;
    if (!emulated_process(slot, number_of(handle) - emulated_gpu()->first, &pid, &bytes)) continue;
    if (n < room) processes[n] = (Process){pid, bytes, -1, -1};
    n++;
  }
  *count = n;
  return n > room ? NVML_INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, Process *processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, processes);
}
typedef struct { unsigned pid; unsigned long long used_bytes; } FirstProcess;  // as the function was before versions 2 and 3
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, FirstProcess *processes) {
  Process all[MAX_PROCESSES];
  unsigned room = *count, n = MAX_PROCESSES;
  nvmlDeviceGetComputeRunningProcesses_v3(handle, &n, all);
  for (unsigned i = 0; i < n && i < room; i++) processes[i] = (FirstProcess){all[i].pid, all[i].used_bytes};
  *count = n;
  return n > room ? NVML_INSUFFICIENT_SIZE : SUCCESS;
}
