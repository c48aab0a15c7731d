/* PyTorch's caching allocator as allocator.py simulates it, compiled into the library of _passes.c; no Python in here.
 *
 * The rules and their names are those of allocator.py, but the free blocks of a pool are stored for speed. They are in
 * bins, one for each size, ordered by size. A bin has its blocks in a binary heap by address, so the best fit is the
 * top of the first bin that is large enough and not empty. A block knows its place in the heap. Empty bins stay until a
 * search meets them, since the same sizes come again.
 */
#ifndef VRAMPLAN_ALLOCATOR_H
#define VRAMPLAN_ALLOCATOR_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)
#define MIN_BLOCK ((int64_t)512)
#define SMALL_SIZE MIB
#define SMALL_BUFFER (2 * MIB)
#define LARGE_BUFFER (20 * MIB)
#define MIN_LARGE_ALLOC (10 * MIB)
#define ROUND_LARGE (2 * MIB)
#define SPACE (LARGE_BUFFER << 26)
#define UNLIMITED ((int64_t)1 << 62)

#define MAX_SIZE ((int64_t)1 << 60) /* bytes of a storage: UNLIMITED and it, however rounded, are below 2^63 */
#define MAX_STREAMS 1024            /* each has two pools, used or not */
#define NO_STREAM (-1)              /* a storage of this stream has no memory: its allocation empties the cache */
#define MAX_DIVISIONS (MAX_SIZE / MIN_BLOCK) /* from here on, roundup_power2_divisions has no effect */

/* Why a request is not served. */
enum { FINE, NO_HOST_MEMORY, NO_DEVICE_MEMORY, NO_ADDRESSES, TOO_MANY_BYTES, OTHER_PROBLEMS };

static int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

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
    int is_small;
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
    size_t num_pools;
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

/* ---------------------------------------------------------------------------------------------- expandable segments */

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

/* -------------------------------------------------------------------------------------------------- malloc and free */

static int empty_cache(Allocator *a) {
    for (size_t i = 0; i < a->num_pools; i++) {
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
    int64_t segment = pool->is_small           ? SMALL_BUFFER
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
    for (size_t i = 0; a->pools && i < a->num_pools; i++) {
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

static int open_pools(Allocator *a, size_t num_streams) {
    a->num_pools = 2 * num_streams;
    a->pools = calloc(a->num_pools, sizeof(Pool));
    if (!a->pools) return 0;
    for (size_t i = 0; i < a->num_pools; i++) {
        Pool *pool = &a->pools[i];
        pool->is_small = i % 2 == 0;
        pool->page = pool->is_small ? SMALL_BUFFER : LARGE_BUFFER;
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
        return size == power ? size : power + round_up(size - power, power / divisions); /* at least 256 */
    }
    return size ? round_up(size, MIN_BLOCK) : MIN_BLOCK;
}

#endif
