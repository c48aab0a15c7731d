// libcudnn: graphs are built and never run. Each has one engine without settings, whose own workspace is taken as none:
// the workspace that a graph reports is what cudnn-frontend, which is compiled into PyTorch, asks for itself.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDA_MAJOR * 1000; }
const char *cudnnGetErrorString(int status) { return "error of the emulated cuDNN"; }
void cudnnGetLastErrorString(char *text, size_t room) { if (room) *text = 0; }
int cudnnGetProperty(int which, int *value) {  // major, minor, patch
  *value = which == 0 ? CUDNN_VERSION / 10000 : which == 1 ? CUDNN_VERSION / 100 % 100 : CUDNN_VERSION % 100;
  return 0;
}

int cudnnBackendCreateDescriptor(int type, void **descriptor) { return (*descriptor = calloc(1, 64)) ? 0 : 1; }
int cudnnBackendDestroyDescriptor(void *descriptor) { free(descriptor); return 0; }
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t requested, int64_t *count, void *values) {
  enum { TYPE_INT64 = 3, TYPE_INT32 = 23 };                    // cudnnBackendAttributeType_t
  enum { HEURISTIC_RESULTS = 202, CONFIGURATION_ENGINE = 300 };  // cudnnBackendAttributeName_t
  if (count) *count = type == TYPE_INT64 || type == TYPE_INT32 || name == HEURISTIC_RESULTS || name == CONFIGURATION_ENGINE;
  if (values && requested > 0 && type == TYPE_INT64) *(int64_t *)values = 0;
  if (values && requested > 0 && type == TYPE_INT32) *(int32_t *)values = 0;
  return 0;
}
