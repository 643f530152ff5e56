/* Reading XSpace bytes without building messages. scan.py is the public face and says what the results mean;
 * pyscan.py is the same in Python and has the rules for damaged bytes in its first docstring. Change both or neither.
 *
 * Positions are byte offsets in the buffer, integers 64-bit two's complement, times picoseconds. Sums wrap, so they are
 * kept in unsigned arithmetic. Work is done without the GIL on buffers that the caller keeps alive.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_MSC_VER)
#include <intrin.h>
#define INLINE static __forceinline
#define LIKELY(x) (x)
static __forceinline unsigned lowest_bit(uint64_t x) { unsigned long i; _BitScanForward64(&i, x); return i; }
#else
#define INLINE static inline __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
static inline unsigned lowest_bit(uint64_t x) { return (unsigned)__builtin_ctzll(x); }
#endif

#define MAX_GROUPS 100
#define SPAN_LIMIT ((int64_t)1 << 62)

/* ------------------------------------------------------------------------------------------------ wire format */

enum { VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 };

/* CUT: the message ends inside a field. CUT_PAYLOAD: so it does, but what is there of the payload can be walked. */
enum { FINE, CUT, CUT_PAYLOAD, MALFORMED, NO_MEMORY, UNSORTED };

typedef struct {
    const uint8_t *at;
    const uint8_t *end;   /* of the message: nothing behind it is used */
    const uint8_t *limit; /* of the buffer: nothing behind it is loaded */
} Reader;

typedef struct {
    uint32_t tag;
    uint64_t value;           /* of a varint or fixed number */
    const uint8_t *start;     /* of the tag */
    const uint8_t *at, *end;  /* payload of a length-delimited field */
} Field;

/* Compilers make one load of this on little-endian machines. */
INLINE uint64_t load64(const uint8_t *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 | (uint64_t)p[4] << 32 |
           (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
}

INLINE uint32_t load32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Byte by byte, for 9 and 10 bytes and the end of the buffer. Bits above the 64th are dropped, as protobuf does. */
static int slow_varint(Reader *r, int most, uint64_t *value)
{
    const uint8_t *p = r->at;
    uint64_t result = 0;
    for (int i = 0; i < most; i++) {
        if (p == r->end)
            return CUT;
        result |= (uint64_t)(*p & 0x7F) << (7 * i);
        if (*p++ < 0x80) {
            r->at = p;
            *value = result;
            return FINE;
        }
    }
    return MALFORMED;
}

/* Up to 8 bytes are gathered without a branch per byte: lengths vary from event to event and would be mispredicted. */
INLINE int read_varint(Reader *r, uint64_t *value)
{
    const uint8_t *p = r->at;
    if (p < r->end && *p < 0x80) {
        *value = *p;
        r->at = p + 1;
        return FINE;
    }
    if (LIKELY(r->limit - p >= 8)) {
        uint64_t word = load64(p), stops = ~word & 0x8080808080808080u;
        if (LIKELY(stops)) {
            unsigned size = (lowest_bit(stops) + 1) / 8;
            if (size > (size_t)(r->end - p))
                return CUT;
            word &= stops ^ (stops - 1);
            word = (word & 0x007F007F007F007Fu) | (word & 0x7F007F007F007F00u) >> 1;
            word = (word & 0x00003FFF00003FFFu) | (word & 0x3FFF00003FFF0000u) >> 2;
            *value = (word & 0x000000000FFFFFFFu) | (word & 0x0FFFFFFF00000000u) >> 4;
            r->at = p + size;
            return FINE;
        }
    }
    return slow_varint(r, 10, value);
}

INLINE int read_tag(Reader *r, uint32_t *tag)
{
    if (LIKELY(r->at < r->end && *r->at < 0x80)) {
        *tag = *r->at++;
    } else {
        uint64_t value;
        int status = slow_varint(r, 5, &value);
        if (status != FINE)
            return status;
        if (value >> 32)
            return MALFORMED;
        *tag = (uint32_t)value;
    }
    return LIKELY((*tag & 7) <= FIXED32) ? FINE : MALFORMED;
}

/* To behind the group that `tag` opened. protobuf lets field number 0 pass in here, so this does too. */
static int skip_group(Reader *r, uint32_t tag)
{
    uint32_t open[MAX_GROUPS];
    int depth = 0, status;
    open[depth++] = tag >> 3;
    while (depth) {
        uint64_t size;
        if ((status = read_tag(r, &tag)) != FINE)
            return status;
        switch (tag & 7) {
        case GROUP:
            if (depth == MAX_GROUPS)
                return MALFORMED;
            open[depth++] = tag >> 3;
            continue;
        case END_GROUP:
            if (open[--depth] != tag >> 3)
                return MALFORMED;
            continue;
        case VARINT:
            if ((status = read_varint(r, &size)) != FINE)
                return status;
            continue;
        case FIXED64:
            size = 8;
            break;
        case FIXED32:
            size = 4;
            break;
        default:
            if ((status = read_varint(r, &size)) != FINE)
                return status;
        }
        if (size > (size_t)(r->end - r->at))
            return CUT;
        r->at += size;
    }
    return FINE;
}

/* The next field of a message that is not at its end. Groups come out as a field of wire type 3 without a value. */
INLINE int next_field(Reader *r, Field *f)
{
    uint64_t size;
    int status;
    *f = (Field){.start = r->at};
    if ((status = read_tag(r, &f->tag)) != FINE)
        return status;
    if (f->tag < 8)
        return MALFORMED;
    switch (f->tag & 7) {
    case VARINT:
        return read_varint(r, &f->value);
    case LENGTH:
        if ((status = read_varint(r, &size)) != FINE)
            return status;
        f->at = r->at;
        if (size > (size_t)(r->end - r->at)) {
            r->at = f->end = r->end;
            return CUT_PAYLOAD;
        }
        r->at = f->end = f->at + size;
        return FINE;
    case FIXED64:
        if (r->end - r->at < 8)
            return CUT;
        f->value = load64(r->at);
        r->at += 8;
        return FINE;
    case FIXED32:
        if (r->end - r->at < 4)
            return CUT;
        f->value = load32(r->at);
        r->at += 4;
        return FINE;
    case GROUP:
        return skip_group(r, f->tag);
    default:
        return MALFORMED;
    }
}

/* ------------------------------------------------------------------------------------------------ index */

typedef struct {
    int64_t *values;
    size_t count, capacity;
} Vector;

/* Rows of a table. A profile has thousands; a hostile file could have one per two bytes, each many times as large. */
#define MAX_ROWS ((size_t)1 << 18)

static int append(Vector *v, const int64_t *values, size_t n)
{
    if (v->count / n == MAX_ROWS)
        return MALFORMED;
    if (v->capacity - v->count < n) {
        size_t capacity = v->capacity ? v->capacity * 2 : 256;
        int64_t *moved = realloc(v->values, capacity * sizeof *moved);
        if (!moved)
            return NO_MEMORY;
        v->values = moved;
        v->capacity = capacity;
    }
    memcpy(v->values + v->count, values, n * sizeof *values);
    v->count += n;
    return FINE;
}

enum { PLANE_WIDTH = 10, LINE_WIDTH = 11, RANGE_WIDTH = 2, TEXT_WIDTH = 3 };

typedef struct {
    const uint8_t *buffer, *limit;
    Vector planes, lines, ranges, texts;
    int64_t damaged;
    int truncated;
} Index;

typedef struct {
    int64_t start, end;
} Range;

static Range payload(const Index *index, const Field *f)
{
    Range range = {f->at - index->buffer, f->end - index->buffer};
    return range;
}

/* Counts how a message ended and says whether it is cut. A cut in a message that is itself cut is the same damage. */
static int ended(Index *index, int status, int cut)
{
    if (status == MALFORMED || ((status == CUT || status == CUT_PAYLOAD) && !cut))
        index->damaged++;
    return cut || status == CUT || status == CUT_PAYLOAD;
}

static int index_line(Index *index, const Field *whole, int cut)
{
    Reader r = {whole->at, whole->end, index->limit};
    Range range = payload(index, whole), name = {0, 0}, display = {0, 0};
    int64_t id = 0, timestamp_ns = 0, duration_ps = 0, events = 0;
    int status = FINE;
    while (r.at < r.end) {
        Field f;
        if ((status = next_field(&r, &f)) != FINE)
            break;
        switch (f.tag) {
        case 0x22:
            events++;
            break;
        case 0x08:
            id = (int64_t)f.value;
            break;
        case 0x12:
            name = payload(index, &f);
            break;
        case 0x18:
            timestamp_ns = (int64_t)f.value;
            break;
        case 0x48:
            duration_ps = (int64_t)f.value;
            break;
        case 0x5A:
            display = payload(index, &f);
            break;
        }
    }
    cut = ended(index, status, cut);
    int64_t row[LINE_WIDTH] = {range.start, range.end,   id,           name.start,  name.end, display.start,
                               display.end, timestamp_ns, duration_ps, events,      cut};
    return append(&index->lines, row, LINE_WIDTH);
}

static int index_plane(Index *index, const Field *whole, int cut)
{
    Reader r = {whole->at, whole->end, index->limit};
    Range range = payload(index, whole), name = {0, 0};
    int64_t id = 0;
    size_t first_line = index->lines.count, first_range = index->ranges.count;
    int status = FINE;
    while (r.at < r.end && status == FINE) {
        Field f;
        status = next_field(&r, &f);
        if (status == CUT_PAYLOAD && f.tag == 0x1A) {
            int line = index_line(index, &f, 1);
            status = line == FINE ? status : line;
        }
        if (status != FINE)
            break; /* half a name or half an entry is worse than none */
        switch (f.tag) {
        case 0x1A:
            status = index_line(index, &f, 0);
            break;
        case 0x08:
            id = (int64_t)f.value;
            break;
        case 0x12:
            name = payload(index, &f);
            break;
        case 0x22:
        case 0x2A:
        case 0x32: {
            Vector *ranges = &index->ranges;
            int64_t entry[RANGE_WIDTH] = {f.start - index->buffer, f.end - index->buffer};
            if (ranges->count > first_range && ranges->values[ranges->count - 1] == entry[0])
                ranges->values[ranges->count - 1] = entry[1];
            else
                status = append(ranges, entry, RANGE_WIDTH);
            break;
        }
        }
    }
    if (status == NO_MEMORY)
        return status;
    cut = ended(index, status, cut);
    int64_t row[PLANE_WIDTH] = {range.start,
                                range.end,
                                id,
                                name.start,
                                name.end,
                                (int64_t)(first_line / LINE_WIDTH),
                                (int64_t)((index->lines.count - first_line) / LINE_WIDTH),
                                (int64_t)(first_range / RANGE_WIDTH),
                                (int64_t)((index->ranges.count - first_range) / RANGE_WIDTH),
                                cut};
    return append(&index->planes, row, PLANE_WIDTH);
}

static int index_space(Index *index)
{
    Reader r = {index->buffer, index->limit, index->limit};
    int status = FINE;
    while (r.at < r.end && status == FINE) {
        Field f;
        status = next_field(&r, &f);
        if (status == CUT_PAYLOAD && f.tag == 0x0A) {
            int plane = index_plane(index, &f, 1);
            status = plane == FINE ? status : plane;
        }
        if (status != FINE)
            break;
        if (f.tag == 0x0A) {
            status = index_plane(index, &f, 0);
        } else if (f.tag == 0x12 || f.tag == 0x1A || f.tag == 0x22) {
            Range range = payload(index, &f);
            int64_t row[TEXT_WIDTH] = {f.tag >> 3, range.start, range.end};
            status = append(&index->texts, row, TEXT_WIDTH);
        }
    }
    if (status == NO_MEMORY)
        return status;
    index->truncated = status == CUT || status == CUT_PAYLOAD;
    index->damaged += status == MALFORMED;
    return FINE;
}

static PyObject *as_bytes(const void *values, size_t size)
{
    return PyBytes_FromStringAndSize(values, (Py_ssize_t)size);
}

static PyObject *scan_index(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "y*:index", &buffer))
        return NULL;
    Index index = {0};
    index.buffer = buffer.buf;
    index.limit = index.buffer + buffer.len;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = index_space(&index);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (status == NO_MEMORY) {
        PyErr_NoMemory();
    } else {
        Vector *vectors[4] = {&index.planes, &index.lines, &index.ranges, &index.texts};
        PyObject *tables[4];
        for (int i = 0; i < 4; i++)
            tables[i] = as_bytes(vectors[i]->values, vectors[i]->count * sizeof(int64_t));
        if (tables[0] && tables[1] && tables[2] && tables[3])
            result = Py_BuildValue("OOOOiL", tables[0], tables[1], tables[2], tables[3], index.truncated,
                                   (long long)index.damaged);
        for (int i = 0; i < 4; i++)
            Py_XDECREF(tables[i]);
    }
    free(index.planes.values);
    free(index.lines.values);
    free(index.ranges.values);
    free(index.texts.values);
    PyBuffer_Release(&buffer);
    return result;
}

/* ------------------------------------------------------------------------------------------------ one event */

enum { DEVICE_OFFSET, DEVICE_DURATION, PROGRAM, SYMBOL, ROLES };

/* Wanted stats with ids below NEAR are found by a table, others by a search. */
#define NEAR 1024

typedef struct {
    const uint8_t *buffer, *limit;
    int64_t base_ps;        /* start of the line, added to raw offsets */
    int64_t role_ids[ROLES]; /* -1 where absent */
    const int64_t *wanted;
    size_t wanted_count;
    uint32_t near[NEAR]; /* 1 + position in wanted, 0 for none */
    int opens_stats;     /* somebody asked for a stat; else the stats of an event are skipped unread */
} Query;

typedef struct {
    int64_t metadata_id, offset_ps, duration_ps, occurrences;
    int64_t role_values[ROLES];
    unsigned roles;            /* bit set of the roles that have a value */
    int64_t start_ps, end_ps;  /* the span */
} Event;

typedef struct {
    int64_t id, value, length;
    uint8_t kind;
} Stat;

static void prepare(Query *q)
{
    for (int i = 0; i < ROLES; i++)
        q->opens_stats |= q->role_ids[i] != -1;
    for (size_t i = q->wanted_count; i-- > 0;) {
        q->opens_stats |= q->wanted[i] != -1;
        if ((uint64_t)q->wanted[i] < NEAR)
            q->near[q->wanted[i]] = (uint32_t)i + 1;
    }
}

INLINE size_t place_of(const Query *q, int64_t id)
{
    if (LIKELY((uint64_t)id < NEAR))
        return q->near[id];
    for (size_t i = 0; i < q->wanted_count; i++)
        if (q->wanted[i] == id)
            return i + 1;
    return 0;
}

INLINE int read_stat(const Query *q, const Field *whole, Stat *s)
{
    Reader r = {whole->at, whole->end, q->limit};
    s->id = s->value = s->length = 0;
    s->kind = 0;
    while (r.at < r.end) {
        Field f;
        int status = next_field(&r, &f);
        if (status != FINE)
            return status;
        switch (f.tag) {
        case 0x08:
            s->id = (int64_t)f.value;
            break;
        case 0x11: /* double_value */
        case 0x18: /* uint64_value */
        case 0x20: /* int64_value */
        case 0x38: /* ref_value */
            s->kind = (uint8_t)((f.tag >> 3) - 1);
            s->value = (int64_t)f.value;
            s->length = 0;
            break;
        case 0x2A: /* str_value */
        case 0x32: /* bytes_value */
        case 0x42: /* gzip_value */
            s->kind = (uint8_t)((f.tag >> 3) - 1);
            s->value = f.at - q->buffer;
            s->length = f.end - f.at;
            break;
        }
    }
    return FINE;
}

/* Decodes an event. `cells`: one per wanted stat, or NULL. The first stat with an id and a value wins, as in XProf. */
INLINE int read_event(const Query *q, const Field *whole, int opens_stats, Stat *cells, Event *e)
{
    Reader r = {whole->at, whole->end, q->limit};
    e->metadata_id = e->offset_ps = e->duration_ps = e->occurrences = 0;
    e->roles = 0;
    while (r.at < r.end) {
        Field f;
        int status = next_field(&r, &f);
        if (status != FINE)
            return status;
        switch (f.tag) {
        case 0x08:
            e->metadata_id = (int64_t)f.value;
            break;
        case 0x10: /* oneof with num_occurrences */
            e->offset_ps = (int64_t)f.value;
            e->occurrences = 0;
            break;
        case 0x18:
            e->duration_ps = (int64_t)f.value;
            break;
        case 0x28:
            e->occurrences = (int64_t)f.value;
            e->offset_ps = 0;
            break;
        case 0x22: {
            Stat s;
            if (!opens_stats)
                break;
            if ((status = read_stat(q, &f, &s)) != FINE)
                return status;
            if (!s.kind || s.id == -1)
                break;
            if (s.kind == 2 || s.kind == 3) {
                for (unsigned role = 0; role < ROLES; role++) {
                    if (s.id == q->role_ids[role] && !(e->roles & 1u << role)) {
                        e->role_values[role] = s.value;
                        e->roles |= 1u << role;
                    }
                }
            }
            if (cells) {
                size_t place = place_of(q, s.id);
                if (place && !cells[place - 1].kind)
                    cells[place - 1] = s;
            }
            break;
        }
        }
    }
    if (e->occurrences < 1)
        e->occurrences = 1;
    return FINE;
}

/* Rule 2: the device's own clock where both device stats are there. False where the span is out of range. */
INLINE int set_span(const Query *q, Event *e)
{
    const unsigned device = 1u << DEVICE_OFFSET | 1u << DEVICE_DURATION;
    int64_t start, duration;
    if ((e->roles & device) == device) {
        start = e->role_values[DEVICE_OFFSET];
        duration = e->role_values[DEVICE_DURATION];
    } else {
        start = (int64_t)((uint64_t)q->base_ps + (uint64_t)e->offset_ps);
        duration = e->duration_ps;
    }
    if (duration < 0 || start < -SPAN_LIMIT || start > SPAN_LIMIT ||
        (uint64_t)duration > (uint64_t)SPAN_LIMIT - (uint64_t)start)
        return 0;
    e->start_ps = start;
    e->end_ps = start + duration;
    return 1;
}

/* ------------------------------------------------------------------------------------------------ sums per op */

/* Ten 64-bit integers: what Python gets is the bytes of an array of these. */
typedef struct {
    int64_t metadata_id, program, symbol, flags, window;
    int64_t occurrences, total_ps, self_ps, first_start_ps, last_end_ps;
} Row;

typedef struct {
    int64_t start_ps, end_ps;
    uint32_t row;
} Open;

#define RECENT 8192 /* rows by the low bits of the metadata id, in front of the hash table */

typedef struct {
    Row *rows;
    uint32_t row_count, row_capacity;
    uint32_t *slots; /* 1 + row, open addressing */
    uint32_t slot_count;
    uint32_t recent[RECENT]; /* 1 + row */
    Open *stack;
    size_t depth, stack_capacity;
    const int64_t *windows; /* start, end, start, end, ... */
    size_t window_count, window; /* `window`: where the last event was found */
    int64_t events, damaged;
} Sums;

static void forget(Sums *s)
{
    s->row_count = 0;
    memset(s->recent, 0, sizeof s->recent);
    if (s->slots)
        memset(s->slots, 0, s->slot_count * sizeof *s->slots);
    s->depth = 0;
    s->events = s->damaged = 0;
}

static void release(Sums *s)
{
    free(s->rows);
    free(s->slots);
    free(s->stack);
    free(s);
}

static int64_t find_window(Sums *s, int64_t at)
{
    const int64_t *w = s->windows;
    if (!s->window_count)
        return -1;
    if (w[2 * s->window] <= at && at < w[2 * s->window + 1])
        return (int64_t)s->window;
    size_t low = 0, high = s->window_count; /* the last window that starts at or before `at` is below high */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (w[2 * middle] <= at)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low || at >= w[2 * low - 1])
        return -1;
    s->window = low - 1;
    return (int64_t)s->window;
}

INLINE int same_key(const Row *a, const Row *b)
{
    return a->metadata_id == b->metadata_id && a->window == b->window && a->program == b->program &&
           a->symbol == b->symbol && a->flags == b->flags;
}

/* Seeded with an address, so that a file cannot be made whose ids all collide. */
static uint32_t hash_key(const Sums *s, const Row *key)
{
    const int64_t parts[5] = {key->metadata_id, key->program, key->symbol, key->flags, key->window};
    uint64_t hash = (uint64_t)(uintptr_t)s;
    for (int i = 0; i < 5; i++) {
        hash ^= (uint64_t)parts[i];
        hash *= 0xFF51AFD7ED558CCDu;
        hash ^= hash >> 32;
        hash *= 0xC4CEB9FE1A85EC53u;
        hash ^= hash >> 29;
    }
    return (uint32_t)hash;
}

static int grow_slots(Sums *s)
{
    uint32_t count = s->slot_count ? s->slot_count * 2 : 1024;
    uint32_t *slots = count ? calloc(count, sizeof *slots) : NULL;
    if (!slots)
        return NO_MEMORY;
    for (uint32_t row = 0; row < s->row_count; row++) {
        uint32_t slot = hash_key(s, &s->rows[row]) & (count - 1);
        while (slots[slot])
            slot = (slot + 1) & (count - 1);
        slots[slot] = row + 1;
    }
    free(s->slots);
    s->slots = slots;
    s->slot_count = count;
    return FINE;
}

static int add_row(Sums *s, const Row *key, uint32_t slot, uint32_t *found)
{
    if (s->row_count == s->row_capacity) {
        uint32_t capacity = s->row_capacity ? s->row_capacity + s->row_capacity / 2 : 512;
        Row *rows = capacity > s->row_capacity ? realloc(s->rows, capacity * sizeof *rows) : NULL;
        if (!rows)
            return NO_MEMORY;
        s->rows = rows;
        s->row_capacity = capacity;
    }
    *found = s->row_count++;
    s->rows[*found] = *key;
    s->slots[slot] = *found + 1;
    return FINE;
}

static int search_row(Sums *s, const Row *key, uint32_t *found)
{
    if (s->row_count >= s->slot_count / 2 && grow_slots(s) != FINE)
        return NO_MEMORY;
    uint32_t slot = hash_key(s, key) & (s->slot_count - 1);
    for (; s->slots[slot]; slot = (slot + 1) & (s->slot_count - 1)) {
        *found = s->slots[slot] - 1;
        if (same_key(&s->rows[*found], key))
            return FINE;
    }
    return add_row(s, key, slot, found);
}

/* Rules 4 and 5. Events come in the order of rule 3. */
INLINE int add_event(Sums *s, const Event *e)
{
    uint32_t row, *recent = &s->recent[(uint64_t)e->metadata_id % RECENT];
    unsigned ids = e->roles >> PROGRAM;
    Row key = {e->metadata_id, ids & 1 ? e->role_values[PROGRAM] : 0, ids & 2 ? e->role_values[SYMBOL] : 0, ids,
               find_window(s, e->start_ps), 0, 0, 0, e->start_ps, e->end_ps};
    if (LIKELY(*recent && same_key(&s->rows[*recent - 1], &key))) {
        row = *recent - 1;
    } else {
        if (search_row(s, &key, &row) != FINE)
            return NO_MEMORY;
        *recent = row + 1;
    }

    uint64_t duration = (uint64_t)e->end_ps - (uint64_t)e->start_ps;
    while (s->depth) {
        Open *top = &s->stack[s->depth - 1];
        if (top->start_ps <= e->start_ps && e->end_ps <= top->end_ps) {
            Row *parent = &s->rows[top->row];
            parent->self_ps = (int64_t)((uint64_t)parent->self_ps - duration);
            /* Nothing can be a direct child of the outer of two equal spans, so the inner takes its place. */
            if (top->start_ps == e->start_ps && top->end_ps == e->end_ps)
                s->depth--;
            break;
        }
        s->depth--;
    }
    if (s->depth == s->stack_capacity) {
        size_t capacity = s->stack_capacity ? s->stack_capacity + s->stack_capacity / 2 : 64;
        Open *stack = realloc(s->stack, capacity * sizeof *stack);
        if (!stack)
            return NO_MEMORY;
        s->stack = stack;
        s->stack_capacity = capacity;
    }
    s->stack[s->depth++] = (Open){e->start_ps, e->end_ps, row};

    Row *sums = &s->rows[row];
    sums->occurrences = (int64_t)((uint64_t)sums->occurrences + (uint64_t)e->occurrences);
    sums->total_ps = (int64_t)((uint64_t)sums->total_ps + duration);
    sums->self_ps = (int64_t)((uint64_t)sums->self_ps + duration);
    if (e->start_ps < sums->first_start_ps)
        sums->first_start_ps = e->start_ps;
    if (e->end_ps > sums->last_end_ps)
        sums->last_end_ps = e->end_ps;
    s->events++;
    return FINE;
}

/* One pass. Gives up with UNSORTED at the first event that is not in the order of rule 3. */
static int sum_in_file_order(const Query *q, Reader r, Sums *s)
{
    int64_t last_offset = INT64_MIN, last_duration = INT64_MAX;
    while (r.at < r.end) {
        Field f;
        Event e;
        if (next_field(&r, &f) != FINE) {
            s->damaged++;
            break;
        }
        if (f.tag != 0x22)
            continue;
        if (read_event(q, &f, q->opens_stats, NULL, &e) != FINE || !set_span(q, &e)) {
            s->damaged++;
            continue;
        }
        if (e.offset_ps < last_offset || (e.offset_ps == last_offset && e.duration_ps > last_duration))
            return UNSORTED;
        last_offset = e.offset_ps;
        last_duration = e.duration_ps;
        if (add_event(s, &e) != FINE)
            return NO_MEMORY;
    }
    return FINE;
}

typedef struct {
    int64_t offset_ps, duration_ps;
    const uint8_t *start; /* of the event's tag */
} Place;

INLINE int belongs_behind(const Place *a, const Place *b)
{
    return a->offset_ps > b->offset_ps || (a->offset_ps == b->offset_ps && a->duration_ps < b->duration_ps);
}

/* Stable merge sort. Lines that need it are nearly sorted, so runs in order are left alone. */
static int sort_places(Place *places, size_t count)
{
    Place *spare = malloc((count ? count : 1) * sizeof *spare);
    if (!spare)
        return NO_MEMORY;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t left = 0; left + width < count; left += 2 * width) {
            size_t middle = left + width, end = count - middle < width ? count : middle + width;
            if (!belongs_behind(&places[middle - 1], &places[middle]))
                continue;
            memcpy(spare, places + left, width * sizeof *spare);
            size_t i = 0, j = middle, out = left;
            while (i < width && j < end)
                places[out++] = belongs_behind(&spare[i], &places[j]) ? places[j++] : spare[i++];
            memcpy(places + out, spare + i, (width - i) * sizeof *spare);
        }
    }
    free(spare);
    return FINE;
}

static int find_places(const Query *q, Reader r, Sums *s, Place **places, size_t *count)
{
    size_t capacity = 0;
    while (r.at < r.end) {
        Field f;
        Event e;
        if (next_field(&r, &f) != FINE) {
            s->damaged++;
            break;
        }
        if (f.tag != 0x22)
            continue;
        if (read_event(q, &f, q->opens_stats, NULL, &e) != FINE || !set_span(q, &e)) {
            s->damaged++;
            continue;
        }
        if (*count == capacity) {
            capacity = capacity ? capacity + capacity / 2 : 1024;
            Place *moved = realloc(*places, capacity * sizeof *moved);
            if (!moved)
                return NO_MEMORY;
            *places = moved;
        }
        (*places)[(*count)++] = (Place){e.offset_ps, e.duration_ps, f.start};
    }
    return FINE;
}

/* Sorts the places of the events and decodes them once more in that order. */
static int sum_sorted(const Query *q, Reader r, Sums *s)
{
    Place *places = NULL;
    size_t count = 0;
    int status = find_places(q, r, s, &places, &count);
    if (status == FINE)
        status = sort_places(places, count);
    for (size_t i = 0; i < count && status == FINE; i++) {
        Field f;
        Event e;
        r.at = places[i].start;
        if (next_field(&r, &f) == FINE && read_event(q, &f, q->opens_stats, NULL, &e) == FINE && set_span(q, &e))
            status = add_event(s, &e);
    }
    free(places);
    return status;
}

/* False, with an exception set, where the line is not inside the buffer. */
static int aim(Query *q, Reader *r, const Py_buffer *buffer, Py_ssize_t start, Py_ssize_t end)
{
    if (start < 0 || end < start || end > buffer->len) {
        PyErr_SetString(PyExc_ValueError, "line outside of the buffer");
        return 0;
    }
    q->buffer = buffer->buf;
    q->limit = q->buffer + buffer->len;
    r->at = q->buffer + start;
    r->end = q->buffer + end;
    r->limit = q->limit;
    return 1;
}

static PyObject *scan_op_sums(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer buffer, windows;
    Py_ssize_t start, end;
    long long base, ids[ROLES];
    if (!PyArg_ParseTuple(args, "y*nnL(LLLL)y*:op_sums", &buffer, &start, &end, &base, &ids[0], &ids[1], &ids[2],
                          &ids[3], &windows))
        return NULL;
    PyObject *result = NULL;
    Reader line;
    Query q = {0};
    q.base_ps = base;
    for (int i = 0; i < ROLES; i++)
        q.role_ids[i] = ids[i];
    prepare(&q);
    Sums *s = calloc(1, sizeof *s);
    if (!s) {
        PyErr_NoMemory();
    } else if (aim(&q, &line, &buffer, start, end)) {
        int status, resorted = 0;
        s->windows = windows.buf;
        s->window_count = (size_t)windows.len / (2 * sizeof(int64_t));
        Py_BEGIN_ALLOW_THREADS
        status = sum_in_file_order(&q, line, s);
        if (status == UNSORTED) {
            resorted = 1;
            forget(s);
            status = sum_sorted(&q, line, s);
        }
        Py_END_ALLOW_THREADS
        PyObject *rows = NULL;
        if (status == NO_MEMORY)
            PyErr_NoMemory();
        else
            rows = as_bytes(s->rows, s->row_count * sizeof(Row));
        if (rows)
            result = Py_BuildValue("NLLi", rows, (long long)s->events, (long long)s->damaged, resorted);
    }
    if (s)
        release(s);
    PyBuffer_Release(&windows);
    PyBuffer_Release(&buffer);
    return result;
}

/* ------------------------------------------------------------------------------------------------ event columns */

#define BLOCK 16384 /* events that are collected before the GIL is taken to append them */

typedef struct {
    PyObject *array; /* bytearray */
    char *block;
    size_t width;
} Column;

enum { METADATA_ID, START, DURATION, OCCURRENCES, FIRST_STAT };

typedef struct {
    Column *columns; /* FIRST_STAT, then kind, value, length per wanted stat */
    size_t count;
    Stat *cells; /* one per wanted stat */
    const int64_t *only; /* sorted, or NULL */
    size_t only_count;
    Py_ssize_t require; /* position in wanted, or -1 */
    int64_t damaged;
} Collector;

static int make_columns(Collector *c, size_t wanted)
{
    c->cells = calloc(wanted + 1, sizeof *c->cells);
    c->columns = calloc(FIRST_STAT + 3 * wanted, sizeof *c->columns);
    if (!c->cells || !c->columns)
        return 0;
    c->count = FIRST_STAT + 3 * wanted;
    for (size_t i = 0; i < c->count; i++) {
        Column *column = &c->columns[i];
        column->width = i >= FIRST_STAT && (i - FIRST_STAT) % 3 == 0 ? 1 : sizeof(int64_t);
        column->block = malloc(BLOCK * column->width);
        column->array = PyByteArray_FromStringAndSize(NULL, 0);
        if (!column->block || !column->array)
            return 0;
    }
    return 1;
}

static void drop_columns(Collector *c)
{
    for (size_t i = 0; i < c->count; i++) {
        free(c->columns[i].block);
        Py_XDECREF(c->columns[i].array);
    }
    free(c->columns);
    free(c->cells);
}

static int append_block(Collector *c, size_t events)
{
    for (size_t i = 0; i < c->count; i++) {
        Column *column = &c->columns[i];
        Py_ssize_t size = PyByteArray_Size(column->array);
        if (PyByteArray_Resize(column->array, size + (Py_ssize_t)(events * column->width)) < 0)
            return 0;
        memcpy(PyByteArray_AsString(column->array) + size, column->block, events * column->width);
    }
    return 1;
}

INLINE void put(Column *column, size_t at, int64_t value) { ((int64_t *)(void *)column->block)[at] = value; }

static int is_kept(const Collector *c, int64_t metadata_id)
{
    size_t low = 0, high = c->only_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c->only[middle] < metadata_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < c->only_count && c->only[low] == metadata_id;
}

/* Fills a block from where the reader stands. Returns the events in it; fewer than BLOCK at the end of the line. */
static size_t collect(const Query *q, Reader *r, Collector *c)
{
    size_t count = 0;
    while (count < BLOCK && r->at < r->end) {
        Field f;
        Event e;
        if (next_field(r, &f) != FINE) {
            c->damaged++;
            r->at = r->end;
            break;
        }
        if (f.tag != 0x22)
            continue;
        if (c->only && read_event(q, &f, 0, NULL, &e) == FINE && !is_kept(c, e.metadata_id))
            continue;
        for (size_t i = 0; i < q->wanted_count; i++)
            c->cells[i] = (Stat){0};
        if (read_event(q, &f, q->opens_stats, c->cells, &e) != FINE || !set_span(q, &e)) {
            c->damaged++;
            continue;
        }
        if (c->require >= 0 && !c->cells[c->require].kind)
            continue;
        put(&c->columns[METADATA_ID], count, e.metadata_id);
        put(&c->columns[START], count, e.start_ps);
        put(&c->columns[DURATION], count, e.end_ps - e.start_ps);
        put(&c->columns[OCCURRENCES], count, e.occurrences);
        for (size_t i = 0; i < q->wanted_count; i++) {
            Column *stat = &c->columns[FIRST_STAT + 3 * i];
            stat[0].block[count] = (char)c->cells[i].kind;
            put(&stat[1], count, c->cells[i].value);
            put(&stat[2], count, c->cells[i].length);
        }
        count++;
    }
    return count;
}

/* (metadata id, start, duration, occurrences), [(kind, value, length), ...], damaged */
static PyObject *event_columns(const Collector *c, size_t wanted)
{
    const Column *first = c->columns;
    PyObject *stats = PyList_New((Py_ssize_t)wanted);
    for (size_t i = 0; stats && i < wanted; i++) {
        const Column *stat = &first[FIRST_STAT + 3 * i];
        PyObject *columns = PyTuple_Pack(3, stat[0].array, stat[1].array, stat[2].array);
        if (!columns || PyList_SetItem(stats, (Py_ssize_t)i, columns) < 0)
            Py_CLEAR(stats);
    }
    if (!stats)
        return NULL;
    return Py_BuildValue("(OOOO)NL", first[0].array, first[1].array, first[2].array, first[3].array, stats,
                         (long long)c->damaged);
}

static PyObject *scan_events(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer buffer, wanted, only = {0};
    PyObject *only_object;
    Py_ssize_t start, end, require;
    long long base, ids[ROLES];
    if (!PyArg_ParseTuple(args, "y*nnL(LLLL)y*On:events", &buffer, &start, &end, &base, &ids[0], &ids[1], &ids[2],
                          &ids[3], &wanted, &only_object, &require))
        return NULL;
    PyObject *result = NULL;
    Reader line;
    Collector c = {0};
    Query q = {0};
    q.base_ps = base;
    for (int i = 0; i < ROLES; i++)
        q.role_ids[i] = ids[i];
    q.wanted = wanted.buf;
    q.wanted_count = (size_t)wanted.len / sizeof(int64_t);
    prepare(&q);
    c.require = require;
    if (only_object != Py_None) {
        if (PyObject_GetBuffer(only_object, &only, PyBUF_SIMPLE) < 0)
            goto done;
        static const int64_t nothing[1];
        c.only = only.len ? only.buf : nothing;
        c.only_count = (size_t)only.len / sizeof(int64_t);
    }
    if (require < -1 || require >= (Py_ssize_t)q.wanted_count) {
        PyErr_SetString(PyExc_ValueError, "require is not a position in wanted");
        goto done;
    }
    if (!aim(&q, &line, &buffer, start, end))
        goto done;
    if (!make_columns(&c, q.wanted_count)) {
        if (!PyErr_Occurred())
            PyErr_NoMemory();
        goto done;
    }
    while (line.at < line.end) {
        size_t count;
        Py_BEGIN_ALLOW_THREADS
        count = collect(&q, &line, &c);
        Py_END_ALLOW_THREADS
        if (!append_block(&c, count))
            goto done;
    }
    result = event_columns(&c, q.wanted_count);
done:
    drop_columns(&c);
    if (only.obj)
        PyBuffer_Release(&only);
    PyBuffer_Release(&wanted);
    PyBuffer_Release(&buffer);
    return result;
}

/* ------------------------------------------------------------------------------------------------ sweep */

enum { RANKS = 5 };
#define NONE (-1)

typedef struct {
    int64_t count;      /* candidates with this rank and key */
    int32_t next, prev; /* keys of this rank that have candidates; NONE ends the list */
} Cell;

typedef struct {
    const int64_t *start, *end; /* sorted by start ascending, then end descending */
    const int32_t *by_end, *key, *lane;
    const uint8_t *rank;
    size_t count;
    Cell *cells; /* [RANKS][n_keys] */
    int64_t n_keys;
    int32_t first[RANKS]; /* head of each rank's list */
    int64_t totals[RANKS];
    int32_t *top;   /* per lane: its innermost open event */
    int32_t *below; /* per event: what it lies on in its lane */
    uint8_t *closed;
} Sweep;

static void enter(Sweep *s, int32_t event)
{
    unsigned rank = s->rank[event];
    int32_t key = s->key[event];
    Cell *cells = s->cells + rank * s->n_keys, *cell = &cells[key];
    s->totals[rank]++;
    if (cell->count++)
        return;
    cell->prev = NONE;
    cell->next = s->first[rank];
    if (cell->next != NONE)
        cells[cell->next].prev = key;
    s->first[rank] = key;
}

static void leave(Sweep *s, int32_t event)
{
    unsigned rank = s->rank[event];
    Cell *cells = s->cells + rank * s->n_keys, *cell = &cells[s->key[event]];
    s->totals[rank]--;
    if (--cell->count)
        return;
    if (cell->prev != NONE)
        cells[cell->prev].next = cell->next;
    else
        s->first[rank] = cell->next;
    if (cell->next != NONE)
        cells[cell->next].prev = cell->prev;
}

/* Events come by start, then by end descending, so the newest is the innermost of its lane. */
static void open_event(Sweep *s, int32_t event)
{
    int32_t lane = s->lane[event];
    if (lane >= 0) {
        s->below[event] = s->top[lane];
        if (s->top[lane] != NONE)
            leave(s, s->top[lane]);
        s->top[lane] = event;
    }
    enter(s, event);
}

static void close_event(Sweep *s, int32_t event)
{
    int32_t lane = s->lane[event];
    if (lane < 0) {
        leave(s, event);
        return;
    }
    s->closed[event] = 1;
    if (s->top[lane] != event)
        return;
    leave(s, event);
    while (event != NONE && s->closed[event])
        event = s->below[event];
    s->top[lane] = event;
    if (event != NONE)
        enter(s, event);
}

static void share(const Sweep *s, double duration, double *row)
{
    for (int rank = 0; rank < RANKS; rank++) {
        if (!s->totals[rank])
            continue;
        const Cell *cells = s->cells + rank * s->n_keys;
        for (int32_t key = s->first[rank]; key != NONE; key = cells[key].next)
            row[key] += duration * (double)cells[key].count / (double)s->totals[rank];
        return;
    }
    row[s->n_keys] += duration;
}

static void sweep_windows(Sweep *s, const int64_t *windows, const int32_t *window_row, size_t window_count, double *out)
{
    size_t opened = 0, closed = 0;
    for (size_t w = 0; w < window_count; w++) {
        int64_t at = windows[2 * w], stop = windows[2 * w + 1];
        double *row = out + window_row[w] * (s->n_keys + 1);
        for (;;) {
            int64_t next_start, next_end;
            for (;;) { /* every open and close up to this instant */
                next_start = opened < s->count ? s->start[opened] : INT64_MAX;
                next_end = closed < s->count ? s->end[s->by_end[closed]] : INT64_MAX;
                if (next_end <= next_start && next_end <= at && closed < s->count)
                    close_event(s, s->by_end[closed++]);
                else if (next_start <= at && opened < s->count)
                    open_event(s, (int32_t)opened++);
                else
                    break;
            }
            if (at >= stop)
                break;
            int64_t until = next_start < next_end ? next_start : next_end;
            if (until > stop || until <= at)
                until = stop;
            share(s, (double)((uint64_t)until - (uint64_t)at), row);
            at = until;
        }
    }
}

/* Python sees to order and ranges; this is for memory safety alone. */
static int is_sound(const Sweep *s, const int32_t *window_row, size_t window_count, int64_t n_rows)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->by_end[i] < 0 || (size_t)s->by_end[i] >= s->count || s->key[i] < 0 || s->key[i] >= s->n_keys ||
            s->rank[i] >= RANKS || s->lane[i] < -1)
            return 0;
    for (size_t w = 0; w < window_count; w++)
        if (window_row[w] < 0 || window_row[w] >= n_rows)
            return 0;
    return 1;
}

static PyObject *run_sweep(Sweep *s, const Py_buffer *windows, const int32_t *window_row, int64_t n_rows)
{
    size_t window_count = (size_t)windows->len / (2 * sizeof(int64_t));
    if (!is_sound(s, window_row, window_count, n_rows)) {
        PyErr_SetString(PyExc_ValueError, "sweep: a value is out of range");
        return NULL;
    }
    size_t lanes = 0;
    for (size_t i = 0; i < s->count; i++)
        if (s->lane[i] >= 0 && (size_t)s->lane[i] >= lanes)
            lanes = (size_t)s->lane[i] + 1;
    size_t size = (size_t)n_rows * (size_t)(s->n_keys + 1) * sizeof(double);
    PyObject *out = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
    s->cells = calloc(RANKS * (size_t)s->n_keys + 1, sizeof *s->cells);
    s->top = malloc((lanes + 1) * sizeof *s->top);
    s->below = malloc((s->count + 1) * sizeof *s->below);
    s->closed = calloc(s->count + 1, 1);
    if (!out || !s->cells || !s->top || !s->below || !s->closed) {
        Py_XDECREF(out);
        return PyErr_NoMemory();
    }
    double *table = (double *)(void *)PyByteArray_AsString(out);
    Py_BEGIN_ALLOW_THREADS
    memset(table, 0, size);
    for (int rank = 0; rank < RANKS; rank++)
        s->first[rank] = NONE;
    for (size_t lane = 0; lane < lanes; lane++)
        s->top[lane] = NONE;
    sweep_windows(s, windows->buf, window_row, window_count, table);
    Py_END_ALLOW_THREADS
    return out;
}

static PyObject *scan_sweep(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer b[8];
    long long n_rows, n_keys;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*LL:sweep", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6], &b[7],
                          &n_rows, &n_keys))
        return NULL;
    Sweep s = {0};
    s.start = b[0].buf;
    s.end = b[1].buf;
    s.by_end = b[2].buf;
    s.key = b[3].buf;
    s.rank = b[4].buf;
    s.lane = b[5].buf;
    s.n_keys = n_keys;
    s.count = (size_t)b[4].len;
    Py_ssize_t n = b[4].len, windows = b[6].len / 16;
    PyObject *result = NULL;
    if (b[0].len != 8 * n || b[1].len != 8 * n || b[2].len != 4 * n || b[3].len != 4 * n || b[5].len != 4 * n ||
        b[6].len != 16 * windows || b[7].len != 4 * windows || n > INT32_MAX)
        PyErr_SetString(PyExc_ValueError, "sweep: columns differ in length");
    else if (n_rows < 0 || n_keys < 0 || n_keys >= INT32_MAX || n_rows > INT32_MAX ||
             n_rows * (n_keys + 1) > PY_SSIZE_T_MAX / 8)
        PyErr_SetString(PyExc_ValueError, "sweep: a table of that size is not possible");
    else
        result = run_sweep(&s, &b[6], b[7].buf, n_rows);
    free(s.cells);
    free(s.top);
    free(s.below);
    free(s.closed);
    for (int i = 0; i < 8; i++)
        PyBuffer_Release(&b[i]);
    return result;
}

/* ------------------------------------------------------------------------------------------------ module */

static PyMethodDef methods[] = {
    {"index", scan_index, METH_VARARGS, "index(buffer): planes, lines, ranges, texts, truncated, damaged"},
    {"op_sums", scan_op_sums, METH_VARARGS,
     "op_sums(buffer, start, end, base_ps, roles, windows): rows, events, damaged, resorted"},
    {"events", scan_events, METH_VARARGS,
     "events(buffer, start, end, base_ps, roles, wanted, only, require): columns, stats, damaged"},
    {"sweep", scan_sweep, METH_VARARGS,
     "sweep(start, end, by_end, key, rank, lane, windows, window_row, n_rows, n_keys): table"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "profiler.xplane._scan",
    .m_doc = "The compiled scanner; see profiler.xplane.scan.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__scan(void) { return PyModuleDef_Init(&definition); }
