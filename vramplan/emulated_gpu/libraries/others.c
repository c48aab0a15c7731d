// The few functions of the remaining libraries whose answer matters; each library compiles its section.
#include <stddef.h>
#include <stdint.h>

#ifdef LIBRARY_cufft
int cufftCreate(int *plan) { return *plan = 0; }
#endif

#ifdef LIBRARY_nvrtc
int nvrtcVersion(int *major, int *minor) { *major = CUDA_MAJOR; *minor = 0; return 0; }
const char *nvrtcGetErrorString(int error) { return "error of the emulated NVRTC"; }
#endif

#ifdef LIBRARY_cusparse
const char *cusparseGetErrorString(int status) { return "error of the emulated cuSPARSE"; }
#endif

#ifdef LIBRARY_cupti
int cuptiGetVersion(uint32_t *version) { *version = CUDA_MAJOR * 10000; return 0; }
int cuptiGetResultString(int result, const char **text) { *text = "error of the emulated CUPTI"; return 0; }
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t size, void **record) { return 12; }  // there are no more
#endif
