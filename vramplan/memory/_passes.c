/* The passes of vramplan.memory.passes over the events of a timeline, compiled.
 *
 * Every function says what the one in passes_python.py (`replay`: in replay.py) says, number for number, and fails
 * where it fails. Event n allocates storage n, event ~n frees it.
 *
 * Arrays cross as bytes: `ints` are 32-bit, `longs` 64-bit integers in the machine's order. Only the limited API of
 * CPython 3.10 is used, which has no buffers but whose libraries serve all later versions. Whatever the arguments are,
 * a call ends with a result or an exception: every index is checked before it is used, and amounts are bounded so that
 * no sum overflows.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_allocator.h"

#ifndef VRAMPLAN_VERSION /* both by hatch_build.py */
#error "VRAMPLAN_VERSION is to be the version of the package that the library belongs to"
#endif
#ifndef VRAMPLAN_SOURCE
#define VRAMPLAN_SOURCE "" /* a digest of this file and _allocator.h */
#endif

#define MAX_TOTAL UNLIMITED
/* Bytes of all live storages: with one more of MAX_SIZE still below 2^63. */

/* -------------------------------------------------------------------------------------------------------- arguments */

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

/* The nearest value in a range. */
static int64_t clamped(int64_t value, int64_t lowest, int64_t highest) {
    return value < lowest ? lowest : value > highest ? highest : value;
}

/* ---------------------------------------------------------------------------------------------------------- results */

/* Besides those of the allocator. */
enum { UNKNOWN_STORAGE = OTHER_PROBLEMS, NOT_ALLOCATED, TWICE, RANGE };

/* Set the exception of a problem at an event. */
static void complain(int problem, Py_ssize_t event) {
    switch (problem) {
    case NO_HOST_MEMORY:
        PyErr_NoMemory();
        break;
    case NO_ADDRESSES:
        PyErr_Format(PyExc_OverflowError, "event %zd needs more addresses than an expandable segment has", event);
        break;
    case TOO_MANY_BYTES:
        PyErr_Format(PyExc_OverflowError, "event %zd needs more than 2**62 bytes", event);
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
            PyErr_Format(sizes.items[i] < 0 ? PyExc_ValueError : PyExc_OverflowError,
                         "the size of kind %zd is not between 0 and 2**60 bytes", i);
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

/* ----------------------------------------------------------------------------------------------------------- replay */

/* Serve the events until one fails, which a->problem says; how many were served. `blocks` are those of storages in use,
 * `levels` the bytes in use after each event, or NULL. */
static Py_ssize_t serve(Allocator *a, Ints events, Ints kinds, const int64_t *requests, Ints streams, Block **blocks,
                        int64_t *levels) {
    for (Py_ssize_t i = 0; i < events.count; i++) {
        int32_t number = storage_of(events.items[i]);
        if (number >= kinds.count) {
            a->problem = UNKNOWN_STORAGE;
            return i;
        }
        int32_t kind = kinds.items[number];
        if (streams.count && streams.items[kind] == NO_STREAM) {
            if (events.items[i] >= 0 && !empty_cache(a)) return i;
        } else if (events.items[i] >= 0) {
            if (blocks[number]) {
                a->problem = TWICE;
                return i;
            }
            Pool *pool = &a->pools[2 * (streams.count ? streams.items[kind] : 0) + (requests[kind] > SMALL_SIZE)];
            blocks[number] = allocate(a, pool, requests[kind]);
            if (!blocks[number]) return i;
        } else {
            if (!blocks[number]) {
                a->problem = NOT_ALLOCATED;
                return i;
            }
            if (!release(a, blocks[number])) return i;
            blocks[number] = NULL;
        }
        if (levels) levels[i] = a->allocated;
    }
    return events.count;
}

PyDoc_STRVAR(replay_doc,
             "replay(events, kinds, sizes, streams, capacity, expandable_segments, max_split_size,\n"
             "       max_non_split_rounding, roundup_power2_divisions, levels)\n--\n\n"
             "events, kinds, streams: ints; sizes: longs. streams: of each kind, or b'' if all are 0; to allocate on\n"
             "stream -1 is to empty the cache. Returns (longs: bytes in use after each event that was served, b'' unless\n"
             "levels; peak allocated bytes, peak reserved bytes, retries, whether it ran out of memory, refused bytes).");

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
    uint32_t num_streams = 1;
    for (Py_ssize_t i = 0; i < streams.count; i++) {
        int32_t stream = streams.items[i];
        if (streams.count != sizes.count || stream < NO_STREAM || stream >= MAX_STREAMS) {
            PyErr_SetString(PyExc_ValueError, "expected the stream of each kind, between -1 and 1023");
            return NULL;
        }
        if (stream != NO_STREAM && (uint32_t)stream >= num_streams) num_streams = (uint32_t)stream + 1;
    }
    a.expandable = expandable;
    a.capacity = clamped(a.capacity, -UNLIMITED, UNLIMITED);
    a.max_split_size = clamped(a.max_split_size, -UNLIMITED, UNLIMITED);
    a.max_non_split_rounding = clamped(a.max_non_split_rounding, -UNLIMITED, UNLIMITED);
    a.refused = UNLIMITED;
    divisions = clamped(divisions, 0, MAX_DIVISIONS);

    void *levels = NULL;
    PyObject *result = NULL, *bytes = new_items(with_levels ? events.count : 0, sizeof(int64_t), &levels);
    int64_t *requests = new_array(sizes.count, sizeof(int64_t));
    Block **blocks = calloc(kinds.count ? (size_t)kinds.count : 1, sizeof(Block *));
    if (!bytes || !requests || !blocks || !open_pools(&a, num_streams)) {
        PyErr_NoMemory();
        goto end;
    }
    Py_ssize_t served;
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t kind = 0; kind < sizes.count; kind++) requests[kind] = rounded(sizes.items[kind], divisions);
    served = serve(&a, events, kinds, requests, streams, blocks, with_levels ? levels : NULL);
    Py_END_ALLOW_THREADS;
    if (a.problem != FINE && a.problem != NO_DEVICE_MEMORY) {
        complain(a.problem, served);
        goto end;
    }
    if (with_levels && served < events.count) {
        PyObject *whole = bytes;
        bytes = PyBytes_FromStringAndSize(levels, served * (Py_ssize_t)sizeof(int64_t));
        Py_DECREF(whole);
        if (!bytes) goto end;
    }
    result = Py_BuildValue("OLLLOL", bytes, (long long)a.peak_allocated, (long long)a.peak_reserved,
                           (long long)a.retries, a.problem ? Py_True : Py_False, (long long)a.refused);
end:
    close_allocator(&a);
    free(blocks);
    free(requests);
    Py_XDECREF(bytes);
    return result;
}

/* ---------------------------------------------------------------------------------------- passes over live storages */

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

PyDoc_STRVAR(peak_bytes_doc,
             "peak_bytes(events, kinds, sizes)\n--\n\nThe most bytes alive after any event; 0 if there is none.");

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
             "groups: ints, the group of each kind; at: longs, indices of events in ascending order. Returns longs,\n"
             "len(at) for each group: its bytes that are alive after these events.");

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

PyDoc_STRVAR(index_of_highest_doc,
             "index_of_highest(levels)\n--\n\nIndex of the highest of these longs, the first if there are several.");

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

/* --------------------------------------------------------------------------------------------- passes that renumber */

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

PyDoc_STRVAR(shifted_doc,
             "shifted(events, offset)\n--\n\nInts: the events with `offset` added to the storages' numbers.");

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
             "slots: ints, one for each event; bases: longs. Ints: the events with bases[slot] added to the storages'\n"
             "numbers.");

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
             "selected(events, flags)\n--\n\n"
             "flags: one byte for each storage. Ints: the events of storages whose flag is not 0.");

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
             "numbers: ints, the number of each storage so far, negative if it has none. Returns (ints: events, ints:\n"
             "storages that were allocated, ints: numbers afterwards).");

static PyObject *renumbered(PyObject *self, PyObject *args) {
    Ints events, numbers;
    int64_t next;
    (void)self;
    if (!PyArg_ParseTuple(args, "O&O&O&:renumbered", as_ints, &events, as_ints, &numbers, as_amount, &next))
        return NULL;
    if (next < 0) {
        PyErr_SetString(PyExc_ValueError, "expected a next number of 0 or more");
        return NULL;
    }
    if (events.count > PY_SSIZE_T_MAX / 16) return PyErr_NoMemory();
    int32_t *result = new_array(2 * events.count, sizeof(int32_t));
    int32_t *storages = new_array(events.count, sizeof(int32_t));
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

/* ------------------------------------------------------------------------------------------------------- the module */

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
    PyModuleDef_HEAD_INIT, "_passes", "The compiled passes; see vramplan.memory.passes.", 0, methods, slots, NULL, NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__passes(void) { return PyModuleDef_Init(&definition); }
