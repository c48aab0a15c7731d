// libcublas: products are not computed. What host code reads back is the state of a handle.
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }
int cublasGetVersion_v2(void *handle, int *version) { *version = CUDA_MAJOR * 10000; return 0; }
