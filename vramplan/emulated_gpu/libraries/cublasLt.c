// libcublasLt: products are not computed. PyTorch allocates its own workspace for them, whatever the algorithm.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

size_t cublasLtGetVersion(void) { return CUDA_MAJOR == 13 ? 130101 : 120803; }

// cublasLtMatmulHeuristicResult_t; the answer is one algorithm that needs no workspace.
typedef struct { uint64_t algorithm[8]; size_t workspace_bytes; int state; float waves; int reserved[4]; } Heuristic;
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int requested, Heuristic *results, int *count) {
  memset(results, 0, sizeof *results);
  *count = 1;
  return 0;
}
