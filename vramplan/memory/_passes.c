/* The passes of vramplan.memory.passes over the events of a timeline, compiled.
 *
 * Every function says what passes_python.py (and for `replay` allocator.py) says, number for number; those files explain
 * the passes, this one only the data structures that make them fast. Event n allocates storage n, event ~n frees it.
 *
 * Arrays cross as bytes: `ints` are 32-bit, `longs` 64-bit integers in the machine's order. Only the limited API of
 * CPython 3.10 is used, so that one library per platform serves all later versions. Whatever the arguments are, a call
 * ends with a result or an exception: every index is checked before it is used, and amounts are bounded so that no sum
 * overflows.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef VRAMPLAN_VERSION
#error "VRAMPLAN_VERSION is the version of the package that the library belongs to; hatch_build.py defines it"
#endif
#ifndef VRAMPLAN_SOURCE
#define VRAMPLAN_SOURCE ""
#endif

#define MIB ((int64_t)1 << 20)
#define MIN_BLOCK ((int64_t)512)
#define SMALL_SIZE MIB
#define SMALL_BUFFER (2 * MIB)
#define LARGE_BUFFER (20 * MIB)
#define MIN_LARGE_ALLOC (10 * MIB)
#define ROUND_LARGE (2 * MIB)
#define SPACE (LARGE_BUFFER << 26)
#define UNLIMITED ((int64_t)1 << 62)

#define MAX_SIZE ((int64_t)1 << 60)
/* Bytes of a storage: with what rounding adds, two of them and UNLIMITED have a sum below 2^63. */
#define MAX_TOTAL UNLIMITED
/* Bytes of all live storages. */
#define MAX_DIVISIONS (MAX_SIZE / MIN_BLOCK)
/* From here on, roundup_power2_divisions has no effect on any size. */

static int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/* ------------------------------------------------------------------------------------------------------ arguments */

typedef struct {
    const int32_t *items;
    Py_ssize_t count;
} Ints;

typedef struct {
    const int64_t *items;
    Py_ssize_t count;
} Longs;

static int as_items(PyObject *object, size_t item, const void **items, Py_ssize_t *count) {
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(object, &text, &length) < 0) return 0;
    if (length % (Py_ssize_t)item || (uintptr_t)text % item) {
        PyErr_Format(PyExc_ValueError, "expected integers of %zu bytes each", item);
        return 0;
    }
    *items = text;
    *count = length / (Py_ssize_t)item;
    return 1;
}

/* Converters for PyArg_ParseTuple's "O&". */
static int as_ints(PyObject *object, void *result) {
    Ints *ints = result;
    const void *items;
    if (!as_items(object, sizeof(int32_t), &items, &ints->count)) return 0;
    ints->items = items;
    return 1;
}

static int as_longs(PyObject *object, void *result) {
    Longs *longs = result;
    const void *items;
    if (!as_items(object, sizeof(int64_t), &items, &longs->count)) return 0;
    longs->items = items;
    return 1;
}

/* An integer; what does not fit into 64 bits becomes the nearest that does. */
static int as_amount(PyObject *object, void *result) {
    int64_t *amount = result;
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (value == -1 && !overflow && PyErr_Occurred()) return 0;
    *amount = overflow > 0 ? INT64_MAX : overflow < 0 ? INT64_MIN : value;
    return 1;
}

static int64_t clamped(int64_t value, int64_t lowest, int64_t highest) {
    return value < lowest ? lowest : value > highest ? highest : value;
}

/* -------------------------------------------------------------------------------------------------------- results */

enum { FINE, NO_HOST_MEMORY, NO_DEVICE_MEMORY, NO_ADDRESSES, UNKNOWN_STORAGE, NOT_ALLOCATED, TWICE, TOO_MANY_BYTES, RANGE };

/* Set the exception of a problem at an event. */
static void complain(int problem, Py_ssize_t event) {
    switch (problem) {
    case NO_HOST_MEMORY:
        PyErr_NoMemory();
        break;
    case NO_ADDRESSES:
        PyErr_SetString(PyExc_ValueError, "an expandable segment ran out of addresses");
        break;
    case UNKNOWN_STORAGE:
        PyErr_Format(PyExc_ValueError, "event %zd names a storage that is not listed", event);
        break;
    case NOT_ALLOCATED:
        PyErr_Format(PyExc_ValueError, "event %zd frees a storage that is not allocated", event);
        break;
    case TWICE:
        PyErr_Format(PyExc_ValueError, "event %zd allocates a storage that is allocated", event);
        break;
    case TOO_MANY_BYTES:
        PyErr_Format(PyExc_ValueError, "event %zd makes it more than 2**62 bytes", event);
        break;
    default:
        PyErr_Format(PyExc_ValueError, "event %zd yields a storage number outside of 0 to 2**31 - 1", event);
    }
}

/* Bytes for `count` items, to be written through `items`; NULL with an exception if there is no memory. */
static PyObject *new_items(Py_ssize_t count, size_t item, void **items) {
    if (count > PY_SSIZE_T_MAX / (Py_ssize_t)item - 64) return PyErr_NoMemory();
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)item);
    if (bytes) *items = PyBytes_AsString(bytes);
    return bytes;
}

/* The bytes of an array that was collected by malloc, which is freed; NULL with the exception if there is a problem. */
static PyObject *collected(int32_t *items, Py_ssize_t count, int problem, Py_ssize_t event) {
    PyObject *bytes = NULL;
    if (problem)
        complain(problem, event);
    else
        bytes = PyBytes_FromStringAndSize((const char *)items, count * (Py_ssize_t)sizeof(int32_t));
    free(items);
    return bytes;
}

static void *new_array(Py_ssize_t count, size_t item) {
    if ((size_t)count > (size_t)PY_SSIZE_T_MAX / item) return NULL;
    return malloc(count ? (size_t)count * item : 1);
}

/* Whether every kind has a size, and every size is in bounds; sets the exception if not. */
static int check_kinds(Ints kinds, Longs sizes) {
    for (Py_ssize_t i = 0; i < sizes.count; i++)
        if (sizes.items[i] < 0 || sizes.items[i] > MAX_SIZE) {
            PyErr_Format(PyExc_ValueError, "the size of kind %zd is not between 0 and 2**60 bytes", i);
            return 0;
        }
    for (Py_ssize_t i = 0; i < kinds.count; i++)
        if (kinds.items[i] < 0 || kinds.items[i] >= sizes.count) {
            PyErr_Format(PyExc_ValueError, "storage %zd has a kind that has no size", i);
            return 0;
        }
    return 1;
}

static int32_t storage_of(int32_t event) { return event < 0 ? ~event : event; }

/* ------------------------------------------------------------------------------------- the caching allocator's state
 *
 * As in allocator.py, but for the free blocks of a pool. They are in bins, one for each size, ordered by size; a bin has
 * its blocks in a binary heap by address, so the best fit is the top of the first bin that is large enough and not empty.
 * A block knows its place in the heap. Empty bins stay until a search meets them, since sizes come again.
 */

typedef struct Block Block;
typedef struct Bin Bin;
typedef struct Pool Pool;

enum { USED, FREE, UNMAPPED };

struct Block {
    int64_t address, size;
    Block *before, *after; /* neighbours in the segment */
    union {
        Bin *bin;    /* of a free block */
        Block *next; /* in a chain of blocks, which are in no bin */
    } in;
    Pool *pool;
    uint32_t position; /* in the bin's heap */
    int32_t state;
};

typedef struct {
    int64_t address;
    Block *block;
} Entry;

struct Bin {
    Entry *entries; /* a heap: no entry has a lower address than entry (i - 1) / 2 */
    Bin *next;      /* of the bins that are not in use */
    uint32_t count, room;
};

typedef struct {
    int64_t size;
    Bin *bin;
} Slot;

struct Pool {
    Slot *slots; /* ascending sizes */
    uint32_t count, room;
    Bin *spare;
    Block **unmapped; /* ascending addresses; of an expandable segment only */
    uint32_t num_unmapped, room_unmapped;
    int small;
    int64_t page;
};

#define CHUNK 512

typedef struct Chunk {
    struct Chunk *next;
    Block blocks[CHUNK];
} Chunk;

typedef struct {
    int64_t capacity, max_split_size, max_non_split_rounding;
    int expandable;
    Pool *pools; /* small and large of each stream */
    Py_ssize_t num_pools;
    Chunk *chunks;
    uint32_t num_used; /* of the newest chunk's blocks */
    Block *unused;
    int64_t allocated, reserved, peak_allocated, peak_reserved, retries, refused, next_address;
    int problem; /* why the last request was not served */
} Allocator;

/* An array with more room; NULL if there is no memory, and the old one stays. */
static void *grown(void *items, uint32_t *room, size_t item) {
    uint32_t more = *room ? 2 * *room : 8;
    if (*room > (uint32_t)1 << 30 || more > SIZE_MAX / item) return NULL;
    void *moved = realloc(items, more * item);
    if (moved) *room = more;
    return moved;
}

static Block *new_block(Allocator *a, Pool *pool, int64_t address, int64_t size, int state) {
    Block *block = a->unused;
    if (block)
        a->unused = block->in.next;
    else {
        if (!a->chunks || a->num_used == CHUNK) {
            Chunk *chunk = malloc(sizeof(Chunk));
            if (!chunk) {
                a->problem = NO_HOST_MEMORY;
                return NULL;
            }
            chunk->next = a->chunks;
            a->chunks = chunk;
            a->num_used = 0;
        }
        block = &a->chunks->blocks[a->num_used++];
    }
    block->pool = pool;
    block->address = address;
    block->size = size;
    block->state = state;
    block->before = block->after = NULL;
    return block;
}

static void discard(Allocator *a, Block *block) {
    block->in.next = a->unused;
    a->unused = block;
}

static void put_between(Block *before, Block *block, Block *after) {
    block->before = before;
    block->after = after;
    if (before) before->after = block;
    if (after) after->before = block;
}

/* Extend a block by its right neighbour, which is gone. */
static void join(Allocator *a, Block *block, Block *after) {
    block->size += after->size;
    block->after = after->after;
    if (block->after) block->after->before = block;
    discard(a, after);
}

/* Index of the first bin of at least this size. */
static uint32_t first_slot(const Pool *pool, int64_t size) {
    const Slot *first = pool->slots;
    uint32_t count = pool->count;
    if (!count) return 0;
    while (count > 1) { /* without a branch that depends on a size: the processor could not predict it */
        uint32_t half = count / 2;
        first += first[half - 1].size < size ? half : 0;
        count -= half;
    }
    return (uint32_t)(first - pool->slots) + (first->size < size);
}

static void place(Bin *bin, uint32_t position, Entry entry) {
    bin->entries[position] = entry;
    entry.block->position = position;
}

/* Fill a gap of a heap with an entry, which rises to where it belongs. */
static void raise_entry(Bin *bin, uint32_t gap, Entry entry) {
    while (gap > 0 && bin->entries[(gap - 1) / 2].address > entry.address) {
        place(bin, gap, bin->entries[(gap - 1) / 2]);
        gap = (gap - 1) / 2;
    }
    place(bin, gap, entry);
}

/* As before, but the entry sinks. */
static void sink_entry(Bin *bin, uint32_t gap, Entry entry) {
    for (;;) {
        uint32_t child = 2 * gap + 1;
        if (child >= bin->count) break;
        if (child + 1 < bin->count && bin->entries[child + 1].address < bin->entries[child].address) child++;
        if (bin->entries[child].address > entry.address) break;
        place(bin, gap, bin->entries[child]);
        gap = child;
    }
    place(bin, gap, entry);
}

/* Insert a bin at an index; NULL if there is no memory. */
static Bin *new_bin(Pool *pool, uint32_t index, int64_t size) {
    if (pool->count == pool->room) {
        Slot *slots = grown(pool->slots, &pool->room, sizeof(Slot));
        if (!slots) return NULL;
        pool->slots = slots;
    }
    Bin *bin = pool->spare;
    if (bin)
        pool->spare = bin->next;
    else if (!(bin = calloc(1, sizeof(Bin))))
        return NULL;
    memmove(pool->slots + index + 1, pool->slots + index, (pool->count - index) * sizeof(Slot));
    pool->slots[index].size = size;
    pool->slots[index].bin = bin;
    pool->count++;
    return bin;
}

/* Let a block be free; 0 if there is no memory. */
static int deposit(Allocator *a, Block *block) {
    Pool *pool = block->pool;
    uint32_t index = first_slot(pool, block->size);
    Bin *bin = index < pool->count && pool->slots[index].size == block->size ? pool->slots[index].bin
                                                                              : new_bin(pool, index, block->size);
    if (bin && bin->count == bin->room) {
        Entry *entries = grown(bin->entries, &bin->room, sizeof(Entry));
        if (entries)
            bin->entries = entries;
        else
            bin = NULL;
    }
    if (!bin) {
        a->problem = NO_HOST_MEMORY;
        return 0;
    }
    Entry entry = {block->address, block};
    block->in.bin = bin;
    block->state = FREE;
    raise_entry(bin, bin->count++, entry);
    return 1;
}

/* Let a free block be in use. */
static void withdraw(Block *block) {
    Bin *bin = block->in.bin;
    uint32_t gap = block->position;
    Entry last = bin->entries[--bin->count];
    block->state = USED;
    if (last.block == block) return;
    if (last.address < block->address)
        raise_entry(bin, gap, last);
    else
        sink_entry(bin, gap, last);
}

/* The first free block from a bin on; NULL if there is none. */
static Block *first_free(Pool *pool, uint32_t index) {
    uint32_t end = index;
    while (end < pool->count && !pool->slots[end].bin->count) {
        pool->slots[end].bin->next = pool->spare;
        pool->spare = pool->slots[end++].bin;
    }
    if (end > index) {
        memmove(pool->slots + index, pool->slots + end, (pool->count - end) * sizeof(Slot));
        pool->count -= end - index;
    }
    return index < pool->count ? pool->slots[index].bin->entries[0].block : NULL;
}

/* --------------------------------------------------------------------------------------------- expandable segments */

static int is_unmapped(const Block *block) { return block && block->state == UNMAPPED; }

static int64_t can_grow_to(const Block *block) {
    return block->size + (is_unmapped(block->after) ? block->after->size : 0);
}

/* The free block that follows by size, then address; NULL if there is none. */
static Block *next_free(Pool *pool, const Block *block) {
    const Bin *bin = block->in.bin;
    Block *next = NULL;
    for (uint32_t i = 0; i < bin->count; i++)
        if (bin->entries[i].address > block->address && (!next || bin->entries[i].address < next->address))
            next = bin->entries[i].block;
    return next ? next : first_free(pool, first_slot(pool, block->size + 1));
}

static Block *least_growing(Pool *pool, Block *block) {
    while (is_unmapped(block->after)) { /* no other block can grow to less than a later one */
        Block *next = next_free(pool, block);
        if (!next || can_grow_to(next) >= can_grow_to(block)) break;
        block = next;
    }
    return block;
}

static uint32_t unmapped_index(const Pool *pool, int64_t address) {
    uint32_t low = 0, high = pool->num_unmapped;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (pool->unmapped[middle]->address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int add_unmapped(Allocator *a, Pool *pool, Block *block) {
    if (pool->num_unmapped == pool->room_unmapped) {
        Block **unmapped = grown(pool->unmapped, &pool->room_unmapped, sizeof(Block *));
        if (!unmapped) {
            a->problem = NO_HOST_MEMORY;
            return 0;
        }
        pool->unmapped = unmapped;
    }
    uint32_t index = unmapped_index(pool, block->address);
    memmove(pool->unmapped + index + 1, pool->unmapped + index, (pool->num_unmapped - index) * sizeof(Block *));
    pool->unmapped[index] = block;
    pool->num_unmapped++;
    return 1;
}

static void remove_unmapped(Pool *pool, const Block *block) {
    uint32_t index = unmapped_index(pool, block->address);
    pool->num_unmapped--;
    memmove(pool->unmapped + index, pool->unmapped + index + 1, (pool->num_unmapped - index) * sizeof(Block *));
}

/* The first of adjacent blocks that together have so many bytes, and the bytes of the pages still to map. */
static Block *place_to_grow(Allocator *a, Pool *pool, int64_t size, int64_t *lacking) {
    for (uint32_t i = 0; i < pool->num_unmapped; i++) {
        Block *unmapped = pool->unmapped[i];
        Block *first = unmapped->before && unmapped->before->state != USED ? unmapped->before : unmapped;
        int64_t available = 0;
        *lacking = 0;
        for (Block *block = first; block && block->state != USED && available < size; block = block->after) {
            int64_t part = size - available < block->size ? size - available : block->size;
            if (block->state == UNMAPPED) *lacking += round_up(part, pool->page);
            available += block->size;
        }
        if (available >= size) return first;
    }
    a->problem = NO_ADDRESSES;
    return NULL;
}

/* Map the first bytes of a block in whole pages; the free block that they become part of, or NULL. */
static Block *map(Allocator *a, Block *block, int64_t size) {
    Pool *pool = block->pool;
    int64_t mapped = round_up(size, pool->page);
    if (mapped < block->size) {
        Block *rest = new_block(a, pool, block->address + mapped, block->size - mapped, UNMAPPED);
        if (!rest) return NULL;
        pool->unmapped[unmapped_index(pool, block->address)] = rest;
        put_between(block, rest, block->after);
        block->size = mapped;
    } else
        remove_unmapped(pool, block);
    block->state = USED;
    if (block->before && block->before->state == FREE) {
        withdraw(block->before);
        block = block->before;
        join(a, block, block->after);
    }
    if (block->after && block->after->state == FREE) {
        withdraw(block->after);
        join(a, block, block->after);
    }
    return deposit(a, block) ? block : NULL;
}

/* Release the whole pages of a free block that is in no bin; the rest on both sides stays free. */
static int unmap(Allocator *a, Block *block) {
    Pool *pool = block->pool;
    int64_t end = block->address + block->size, first_page = round_up(block->address, pool->page);
    int64_t last_page = end / pool->page * pool->page;
    if (first_page >= last_page) return deposit(a, block);
    if (first_page > block->address) {
        Block *left = new_block(a, pool, block->address, first_page - block->address, USED);
        if (!left) return 0;
        put_between(block->before, left, block);
        if (!deposit(a, left)) return 0;
    }
    if (last_page < end) {
        Block *right = new_block(a, pool, last_page, end - last_page, USED);
        if (!right) return 0;
        put_between(block, right, block->after);
        if (!deposit(a, right)) return 0;
    }
    block->address = first_page;
    block->size = last_page - first_page;
    block->state = UNMAPPED;
    a->reserved -= block->size;
    if (is_unmapped(block->before)) {
        block = block->before;
        remove_unmapped(pool, block);
        join(a, block, block->after);
    }
    if (is_unmapped(block->after)) {
        remove_unmapped(pool, block->after);
        join(a, block, block->after);
    }
    return add_unmapped(a, pool, block);
}

/* ------------------------------------------------------------------------------------------------ malloc and free */

static int empty_cache(Allocator *a) {
    for (Py_ssize_t i = 0; i < a->num_pools; i++) {
        Pool *pool = &a->pools[i];
        Block *chain = NULL, *next;
        for (uint32_t j = 0; j < pool->count; j++) {
            Bin *bin = pool->slots[j].bin;
            for (uint32_t k = 0; k < bin->count; k++) {
                Block *block = bin->entries[k].block;
                block->state = USED;
                block->in.next = chain;
                chain = block;
            }
            bin->count = 0;
        }
        for (; chain; chain = next) {
            next = chain->in.next;
            if (a->expandable) {
                if (!unmap(a, chain)) return 0;
            } else if (!chain->before && !chain->after) {
                a->reserved -= chain->size;
                discard(a, chain);
            } else if (!deposit(a, chain))
                return 0;
        }
    }
    return 1;
}

/* Whether the device lacks so many bytes, which it then refused. */
static int is_refused(Allocator *a, int64_t num_bytes) {
    int64_t total = a->reserved + num_bytes;
    if (total <= a->capacity) return 0;
    if (total < a->refused) a->refused = total;
    return 1;
}

static int reserve(Allocator *a, int64_t num_bytes) {
    if (is_refused(a, num_bytes)) {
        a->problem = NO_DEVICE_MEMORY;
        return 0;
    }
    a->reserved += num_bytes;
    if (a->reserved > a->peak_reserved) a->peak_reserved = a->reserved;
    return 1;
}

static Block *new_segment(Allocator *a, Pool *pool, int64_t size) {
    int64_t segment = pool->small             ? SMALL_BUFFER
                      : size < MIN_LARGE_ALLOC ? LARGE_BUFFER
                                               : round_up(size, ROUND_LARGE);
    if (is_refused(a, segment)) {
        a->retries++;
        if (!empty_cache(a)) return NULL;
    }
    if (!reserve(a, segment)) return NULL;
    if (a->next_address > UNLIMITED - segment) {
        a->problem = TOO_MANY_BYTES;
        return NULL;
    }
    Block *block = new_block(a, pool, a->next_address, segment, USED);
    a->next_address += segment + ROUND_LARGE; /* segments never touch */
    return block;
}

static Block *grow(Allocator *a, Pool *pool, int64_t size) {
    int64_t lacking;
    Block *block = place_to_grow(a, pool, size, &lacking);
    if (block && is_refused(a, lacking)) {
        a->retries++;
        block = empty_cache(a) ? place_to_grow(a, pool, size, &lacking) : NULL;
    }
    if (!block || !reserve(a, lacking)) return NULL;
    if (block->state == UNMAPPED) block = map(a, block, block->size < size ? block->size : size);
    while (block && block->size < size) {
        Block *after = block->after;
        block = map(a, after, size - block->size < after->size ? size - block->size : after->size);
    }
    if (block) withdraw(block);
    return block;
}

static int may_take(const Allocator *a, int64_t size, int64_t block_size) {
    if (a->expandable) return 1;
    if (size < a->max_split_size) return block_size < a->max_split_size;
    return block_size < size + a->max_non_split_rounding;
}

static int should_split(const Allocator *a, int64_t size, int64_t remaining) {
    if (size > SMALL_SIZE && !a->expandable) return remaining > SMALL_SIZE && size < a->max_split_size;
    return remaining >= MIN_BLOCK;
}

/* A block for a request of rounded size; NULL with a->problem if there is none. */
static Block *allocate(Allocator *a, Pool *pool, int64_t size) {
    Block *block = first_free(pool, first_slot(pool, size));
    if (block && may_take(a, size, block->size)) {
        if (a->expandable) block = least_growing(pool, block);
        withdraw(block);
    } else
        block = a->expandable ? grow(a, pool, size) : new_segment(a, pool, size);
    if (!block) return NULL;
    if (should_split(a, size, block->size - size)) {
        Block *rest = new_block(a, pool, block->address + size, block->size - size, USED);
        if (!rest) return NULL;
        put_between(block, rest, block->after);
        block->size = size;
        if (!deposit(a, rest)) return NULL;
    }
    a->allocated += block->size;
    if (a->allocated > a->peak_allocated) a->peak_allocated = a->allocated;
    return block;
}

static int release(Allocator *a, Block *block) {
    a->allocated -= block->size;
    if (block->before && block->before->state == FREE) {
        block = block->before;
        withdraw(block);
        join(a, block, block->after);
    }
    if (block->after && block->after->state == FREE) {
        withdraw(block->after);
        join(a, block, block->after);
    }
    return deposit(a, block);
}

static void close_allocator(Allocator *a) {
    for (Py_ssize_t i = 0; i < (a->pools ? a->num_pools : 0); i++) {
        Pool *pool = &a->pools[i];
        for (uint32_t j = 0; j < pool->count; j++) {
            pool->slots[j].bin->next = pool->spare;
            pool->spare = pool->slots[j].bin;
        }
        while (pool->spare) {
            Bin *next = pool->spare->next;
            free(pool->spare->entries);
            free(pool->spare);
            pool->spare = next;
        }
        free(pool->slots);
        free(pool->unmapped);
    }
    free(a->pools);
    while (a->chunks) {
        Chunk *next = a->chunks->next;
        free(a->chunks);
        a->chunks = next;
    }
}

static int open_pools(Allocator *a, Py_ssize_t num_streams) {
    a->num_pools = 2 * num_streams;
    a->pools = calloc((size_t)a->num_pools, sizeof(Pool));
    if (!a->pools) return 0;
    for (Py_ssize_t i = 0; i < a->num_pools; i++) {
        Pool *pool = &a->pools[i];
        pool->small = i % 2 == 0;
        pool->page = pool->small ? SMALL_BUFFER : LARGE_BUFFER;
        if (a->expandable) { /* addresses of different pools are never compared: each begins at 0 */
            Block *space = new_block(a, pool, 0, SPACE, UNMAPPED);
            if (!space || !add_unmapped(a, pool, space)) return 0;
        }
    }
    return 1;
}

static int64_t rounded(int64_t size, int64_t divisions) {
    if (divisions > 1 && size > MIN_BLOCK * divisions) {
        int64_t power = 1;
        while (power <= size / 2) power *= 2;
        return size == power ? size : power + round_up(size - power, power / divisions > 0 ? power / divisions : 1);
    }
    return size ? round_up(size, MIN_BLOCK) : MIN_BLOCK;
}

PyDoc_STRVAR(replay_doc,
             "replay(events, kinds, sizes, streams, capacity, expandable_segments, max_split_size,\n"
             "       max_non_split_rounding, roundup_power2_divisions, levels)\n--\n\n"
             "events, kinds, streams: ints; sizes: longs. streams: number of each kind's stream, from 0 on; b'' if all are\n"
             "0. Returns (longs: bytes in use after each event that was served, b'' unless levels; peak allocated bytes,\n"
             "peak reserved bytes, retries, whether it ran out of memory, refused bytes).");

static PyObject *replay(PyObject *self, PyObject *args) {
    Ints events, kinds, streams;
    Longs sizes;
    int64_t divisions;
    int expandable, with_levels;
    Allocator a;
    (void)self;
    memset(&a, 0, sizeof a);
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&pO&O&O&p:replay", as_ints, &events, as_ints, &kinds, as_longs, &sizes,
                          as_ints, &streams, as_amount, &a.capacity, &expandable, as_amount, &a.max_split_size,
                          as_amount, &a.max_non_split_rounding, as_amount, &divisions, &with_levels))
        return NULL;
    if (!check_kinds(kinds, sizes)) return NULL;
    int32_t num_streams = 1;
    for (Py_ssize_t i = 0; i < streams.count; i++) {
        if (streams.count != sizes.count || streams.items[i] < 0 || streams.items[i] >= sizes.count) {
            PyErr_SetString(PyExc_ValueError, "expected the number of a stream for each kind, less than there are kinds");
            return NULL;
        }
        if (streams.items[i] >= num_streams) num_streams = streams.items[i] + 1;
    }
    a.expandable = expandable;
    a.capacity = clamped(a.capacity, -UNLIMITED, UNLIMITED);
    a.max_split_size = clamped(a.max_split_size, -UNLIMITED, UNLIMITED);
    a.max_non_split_rounding = clamped(a.max_non_split_rounding, -UNLIMITED, UNLIMITED);
    divisions = clamped(divisions, 0, MAX_DIVISIONS);
    a.refused = UNLIMITED;

    int64_t *levels = NULL, *request = new_array(sizes.count, sizeof(int64_t));
    Block **blocks = calloc(kinds.count ? (size_t)kinds.count : 1, sizeof(Block *)); /* of each storage in use */
    PyObject *bytes = new_items(with_levels ? events.count : 0, sizeof(int64_t), (void **)&levels), *result = NULL;
    Py_ssize_t i = 0;
    if (!bytes || !request || !blocks || !open_pools(&a, num_streams)) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        goto end;
    }

    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t kind = 0; kind < sizes.count; kind++) request[kind] = rounded(sizes.items[kind], divisions);
    for (; i < events.count; i++) {
        int32_t number = storage_of(events.items[i]);
        if (number >= kinds.count) {
            a.problem = UNKNOWN_STORAGE;
            break;
        }
        if (events.items[i] >= 0) {
            if (blocks[number]) {
                a.problem = TWICE;
                break;
            }
            int32_t kind = kinds.items[number];
            int32_t stream = streams.count ? streams.items[kind] : 0;
            blocks[number] = allocate(&a, &a.pools[2 * (Py_ssize_t)stream + (request[kind] > SMALL_SIZE)], request[kind]);
            if (!blocks[number]) break;
        } else {
            if (!blocks[number]) {
                a.problem = NOT_ALLOCATED;
                break;
            }
            if (!release(&a, blocks[number])) break;
            blocks[number] = NULL;
        }
        if (with_levels) levels[i] = a.allocated;
    }
    Py_END_ALLOW_THREADS;

    if (a.problem != FINE && a.problem != NO_DEVICE_MEMORY) {
        complain(a.problem, i);
        goto end;
    }
    if (with_levels && i < events.count) {
        PyObject *served = PyBytes_FromStringAndSize((const char *)levels, i * (Py_ssize_t)sizeof(int64_t));
        Py_DECREF(bytes);
        if (!(bytes = served)) goto end;
    }
    result = Py_BuildValue("OLLLOL", bytes, (long long)a.peak_allocated, (long long)a.peak_reserved, (long long)a.retries,
                           a.problem ? Py_True : Py_False, (long long)a.refused);
end:
    close_allocator(&a);
    free(blocks);
    free(request);
    Py_XDECREF(bytes);
    return result;
}

/* ------------------------------------------------------------------------------------------ passes over live storages */

/* Bytes alive after an event; sets *problem if the event or the sum is out of range. */
static int64_t live_after(int64_t live, int32_t event, Ints kinds, const int64_t *sizes, int *problem) {
    int32_t number = storage_of(event);
    if (number >= kinds.count) {
        *problem = UNKNOWN_STORAGE;
        return live;
    }
    int64_t size = sizes[kinds.items[number]];
    live += event < 0 ? -size : size;
    if (live > MAX_TOTAL || live < -MAX_TOTAL) *problem = TOO_MANY_BYTES;
    return live;
}

PyDoc_STRVAR(live_bytes_doc, "live_bytes(events, kinds, sizes)\n--\n\nLongs: bytes alive after each event.");

static PyObject *live_bytes(PyObject *self, PyObject *args) {
    Ints events, kinds;
    Longs sizes;
    void *items = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&O&O&:live_bytes", as_ints, &events, as_ints, &kinds, as_longs, &sizes)) return NULL;
    if (!check_kinds(kinds, sizes)) return NULL;
    PyObject *bytes = new_items(events.count, sizeof(int64_t), &items);
    if (!bytes) return NULL;
    int64_t *levels = items, live = 0;
    int problem = FINE;
    Py_ssize_t i = 0;
    Py_BEGIN_ALLOW_THREADS;
    for (; i < events.count; i++) {
        levels[i] = live = live_after(live, events.items[i], kinds, sizes.items, &problem);
        if (problem) break;
    }
    Py_END_ALLOW_THREADS;
    if (!problem) return bytes;
    complain(problem, i);
    Py_DECREF(bytes);
    return NULL;
}

PyDoc_STRVAR(peak_bytes_doc, "peak_bytes(events, kinds, sizes)\n--\n\nThe most bytes alive after any event; 0 if there is none.");

static PyObject *peak_bytes(PyObject *self, PyObject *args) {
    Ints events, kinds;
    Longs sizes;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&O&O&:peak_bytes", as_ints, &events, as_ints, &kinds, as_longs, &sizes)) return NULL;
    if (!check_kinds(kinds, sizes)) return NULL;
    int64_t live = 0, peak = 0;
    int problem = FINE;
    Py_ssize_t i = 0;
    Py_BEGIN_ALLOW_THREADS;
    for (; i < events.count; i++) {
        live = live_after(live, events.items[i], kinds, sizes.items, &problem);
        if (problem) break;
        if (live > peak) peak = live;
    }
    Py_END_ALLOW_THREADS;
    if (!problem) return PyLong_FromLongLong(peak);
    complain(problem, i);
    return NULL;
}

PyDoc_STRVAR(live_by_group_doc,
             "live_by_group(events, kinds, sizes, groups, num_groups, at)\n--\n\n"
             "groups: ints, the group of each kind; at: longs, indices of events in ascending order. Returns num_groups\n"
             "times len(at) longs: the bytes of the first group alive after each of these events, then of the next.");

static PyObject *live_by_group(PyObject *self, PyObject *args) {
    Ints events, kinds, groups;
    Longs sizes, at;
    int64_t num_groups;
    void *items = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&O&:live_by_group", as_ints, &events, as_ints, &kinds, as_longs, &sizes,
                          as_ints, &groups, as_amount, &num_groups, as_longs, &at))
        return NULL;
    if (!check_kinds(kinds, sizes)) return NULL;
    if (groups.count != sizes.count || num_groups < 0 || num_groups > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "expected a group for each kind, and less than 2**31 groups");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < groups.count; i++)
        if (groups.items[i] < 0 || groups.items[i] >= num_groups) {
            PyErr_Format(PyExc_ValueError, "kind %zd has a group that there is not", i);
            return NULL;
        }
    for (Py_ssize_t i = 0; i < at.count; i++)
        if (at.items[i] < (i ? at.items[i - 1] : 0) || at.items[i] >= events.count) {
            PyErr_SetString(PyExc_ValueError, "expected indices of events in ascending order");
            return NULL;
        }
    if (at.count && num_groups > PY_SSIZE_T_MAX / at.count) return PyErr_NoMemory();
    PyObject *bytes = new_items((Py_ssize_t)num_groups * at.count, sizeof(int64_t), &items);
    int64_t *totals = items, *live = calloc(num_groups ? (size_t)num_groups : 1, sizeof(int64_t));
    if (!bytes || !live) {
        Py_XDECREF(bytes);
        free(live);
        return PyErr_NoMemory();
    }
    int problem = FINE;
    Py_ssize_t i = 0, next = 0;
    Py_BEGIN_ALLOW_THREADS;
    for (; i < events.count && next < at.count; i++) {
        int32_t number = storage_of(events.items[i]);
        int64_t *total = &live[number < kinds.count ? groups.items[kinds.items[number]] : 0];
        if (number < kinds.count)
            *total = live_after(*total, events.items[i], kinds, sizes.items, &problem);
        else
            problem = UNKNOWN_STORAGE;
        if (problem) break;
        for (; next < at.count && at.items[next] == i; next++)
            for (int64_t group = 0; group < num_groups; group++) totals[group * at.count + next] = live[group];
    }
    Py_END_ALLOW_THREADS;
    free(live);
    if (!problem) return bytes;
    complain(problem, i);
    Py_DECREF(bytes);
    return NULL;
}

PyDoc_STRVAR(live_at_doc, "live_at(events)\n--\n\nInts: the storages alive after the events, in order of allocation.");

static PyObject *live_at(PyObject *self, PyObject *args) {
    Ints events;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&:live_at", as_ints, &events)) return NULL;
    int32_t highest = 0, *live = NULL;
    for (Py_ssize_t i = 0; i < events.count; i++)
        if (storage_of(events.items[i]) > highest) highest = storage_of(events.items[i]);
    unsigned char *bits = calloc((size_t)highest / 8 + 1, 1); /* one for each storage: whether it is alive */
    int problem = bits ? FINE : NO_HOST_MEMORY;
    Py_ssize_t i = 0, count = 0;
    if (!problem) {
        Py_BEGIN_ALLOW_THREADS;
        for (; i < events.count; i++) {
            int32_t number = storage_of(events.items[i]);
            unsigned char *byte = &bits[number / 8], bit = (unsigned char)(1 << number % 8);
            if (events.items[i] >= 0) {
                if (*byte & bit) problem = TWICE;
                count++;
            } else {
                if (!(*byte & bit)) problem = NOT_ALLOCATED;
                count--;
            }
            if (problem) break;
            *byte ^= bit;
        }
        if (!problem && !(live = new_array(count, sizeof(int32_t)))) problem = NO_HOST_MEMORY;
        if (!problem) /* backwards, the first allocation met of a live storage is its last */
            for (Py_ssize_t j = events.count, left = count; left > 0;) {
                int32_t number = events.items[--j];
                if (number < 0 || !(bits[number / 8] & 1 << number % 8)) continue;
                bits[number / 8] ^= (unsigned char)(1 << number % 8);
                live[--left] = number;
            }
        Py_END_ALLOW_THREADS;
    }
    free(bits);
    return collected(live, count, problem, i);
}

PyDoc_STRVAR(index_of_highest_doc, "index_of_highest(levels)\n--\n\nIndex of the highest of these longs, the first if there are several.");

static PyObject *index_of_highest(PyObject *self, PyObject *args) {
    Longs levels;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&:index_of_highest", as_longs, &levels)) return NULL;
    if (!levels.count) {
        PyErr_SetString(PyExc_ValueError, "expected at least one level");
        return NULL;
    }
    Py_ssize_t index = 0;
    for (Py_ssize_t i = 1; i < levels.count; i++)
        if (levels.items[i] > levels.items[index]) index = i;
    return PyLong_FromSsize_t(index);
}

/* ----------------------------------------------------------------------------------------------- passes that renumber */

/* The event of a storage whose number changes; sets *problem if the new number is out of range. */
static int32_t moved(int32_t event, int64_t by, int *problem) {
    int64_t number = storage_of(event);
    if (by < -number || by > INT32_MAX - number) {
        *problem = RANGE;
        return 0;
    }
    number += by;
    return event < 0 ? ~(int32_t)number : (int32_t)number;
}

PyDoc_STRVAR(shifted_doc, "shifted(events, offset)\n--\n\nInts: the events with `offset` added to the storages' numbers.");

static PyObject *shifted(PyObject *self, PyObject *args) {
    Ints events;
    int64_t offset;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&O&:shifted", as_ints, &events, as_amount, &offset)) return NULL;
    int32_t *result = new_array(events.count, sizeof(int32_t));
    int problem = result ? FINE : NO_HOST_MEMORY;
    Py_ssize_t i = 0;
    for (; !problem && i < events.count; i++) result[i] = moved(events.items[i], offset, &problem);
    return collected(result, events.count, problem, i - 1);
}

PyDoc_STRVAR(relocated_doc,
             "relocated(events, slots, bases)\n--\n\n"
             "slots: ints, one for each event; bases: longs. Ints: the events with bases[slot] added to the storages' numbers.");

static PyObject *relocated(PyObject *self, PyObject *args) {
    Ints events, slots;
    Longs bases;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&O&O&:relocated", as_ints, &events, as_ints, &slots, as_longs, &bases)) return NULL;
    if (slots.count != events.count) {
        PyErr_SetString(PyExc_ValueError, "expected a slot for each event");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < slots.count; i++)
        if (slots.items[i] < 0 || slots.items[i] >= bases.count) {
            PyErr_Format(PyExc_ValueError, "event %zd has a slot that has no base", i);
            return NULL;
        }
    int32_t *result = new_array(events.count, sizeof(int32_t));
    int problem = result ? FINE : NO_HOST_MEMORY;
    Py_ssize_t i = 0;
    for (; !problem && i < events.count; i++) result[i] = moved(events.items[i], bases.items[slots.items[i]], &problem);
    return collected(result, events.count, problem, i - 1);
}

PyDoc_STRVAR(selected_doc,
             "selected(events, flags)\n--\n\nflags: one byte for each storage. Ints: the events of storages whose flag is not 0.");

static PyObject *selected(PyObject *self, PyObject *args) {
    Ints events;
    const char *flags;
    Py_ssize_t num_flags;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&y#:selected", as_ints, &events, &flags, &num_flags)) return NULL;
    int32_t *result = new_array(events.count, sizeof(int32_t));
    int problem = result ? FINE : NO_HOST_MEMORY;
    Py_ssize_t i = 0, count = 0;
    for (; !problem && i < events.count; i++) {
        int32_t number = storage_of(events.items[i]);
        if (number >= num_flags)
            problem = UNKNOWN_STORAGE;
        else if (flags[number])
            result[count++] = events.items[i];
    }
    return collected(result, count, problem, i - 1);
}

PyDoc_STRVAR(renumbered_doc,
             "renumbered(events, numbers, next_number)\n--\n\n"
             "numbers: ints, the present number of each storage, negative if it is not live. Returns (ints: events, ints:\n"
             "storages that were allocated, ints: numbers afterwards).");

static PyObject *renumbered(PyObject *self, PyObject *args) {
    Ints events, numbers;
    int64_t next;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&O&O&:renumbered", as_ints, &events, as_ints, &numbers, as_amount, &next)) return NULL;
    if (next < 0) {
        PyErr_SetString(PyExc_ValueError, "expected a next number of 0 or more");
        return NULL;
    }
    if (events.count > PY_SSIZE_T_MAX / 16) return PyErr_NoMemory();
    int32_t *result = new_array(2 * events.count, sizeof(int32_t)), *storages = new_array(events.count, sizeof(int32_t));
    int32_t *present = new_array(numbers.count, sizeof(int32_t));
    int problem = result && storages && present ? FINE : NO_HOST_MEMORY;
    Py_ssize_t i = 0, count = 0, num_storages = 0;
    if (!problem) {
        Py_BEGIN_ALLOW_THREADS;
        memcpy(present, numbers.items, (size_t)numbers.count * sizeof(int32_t));
        for (; i < events.count; i++) {
            int32_t number = storage_of(events.items[i]);
            if (number >= numbers.count)
                problem = UNKNOWN_STORAGE;
            else if (events.items[i] >= 0 && next > INT32_MAX)
                problem = RANGE;
            if (problem) break;
            int32_t before = present[number];
            present[number] = -1;
            if (events.items[i] >= 0) {
                storages[num_storages++] = number;
                result[count++] = present[number] = (int32_t)next++;
            }
            if (before >= 0) result[count++] = ~before;
        }
        Py_END_ALLOW_THREADS;
    }
    PyObject *first = collected(result, count, problem, i), *second = NULL, *third = NULL;
    if (first) {
        second = collected(storages, num_storages, FINE, 0);
        third = collected(present, numbers.count, FINE, 0);
    } else {
        free(storages);
        free(present);
    }
    PyObject *tuple = first && second && third ? PyTuple_Pack(3, first, second, third) : NULL;
    Py_XDECREF(first);
    Py_XDECREF(second);
    Py_XDECREF(third);
    return tuple;
}

/* --------------------------------------------------------------------------------------------------------- the module */

static PyMethodDef methods[] = {
    {"replay", replay, METH_VARARGS, replay_doc},
    {"live_bytes", live_bytes, METH_VARARGS, live_bytes_doc},
    {"peak_bytes", peak_bytes, METH_VARARGS, peak_bytes_doc},
    {"live_by_group", live_by_group, METH_VARARGS, live_by_group_doc},
    {"live_at", live_at, METH_VARARGS, live_at_doc},
    {"index_of_highest", index_of_highest, METH_VARARGS, index_of_highest_doc},
    {"shifted", shifted, METH_VARARGS, shifted_doc},
    {"relocated", relocated, METH_VARARGS, relocated_doc},
    {"selected", selected, METH_VARARGS, selected_doc},
    {"renumbered", renumbered, METH_VARARGS, renumbered_doc},
    {NULL, NULL, 0, NULL},
};

static int add_constants(PyObject *module) {
    if (PyModule_AddStringConstant(module, "__version__", VRAMPLAN_VERSION) < 0) return -1;
    return PyModule_AddStringConstant(module, "SOURCE", VRAMPLAN_SOURCE);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_constants},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_passes", "The compiled passes; see vramplan.memory.passes.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__passes(void) { return PyModuleDef_Init(&definition); }
