/* Included by force before _passes.c: one chosen request for memory fails, and what is not freed is counted. */
#include <stdlib.h>

static long remaining = -1, outstanding = 0;

void fail_after(long requests) { remaining = requests; }
long not_freed(void) { return outstanding; }

static int fails(void) { return remaining >= 0 && remaining-- == 0; }

static void *counted(void *memory) {
    outstanding += memory != NULL;
    return memory;
}

static void *failing_malloc(size_t size) { return fails() ? NULL : counted(malloc(size)); }
static void *failing_calloc(size_t count, size_t size) { return fails() ? NULL : counted(calloc(count, size)); }
static void *failing_realloc(void *memory, size_t size) {
    if (fails()) return NULL;
    return memory ? realloc(memory, size) : counted(malloc(size));
}
static void counting_free(void *memory) {
    outstanding -= memory != NULL;
    free(memory);
}

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc
#define free counting_free
