# What other modules may use of objects.pyx.
cimport cython
from cpython cimport array
from cpython.object cimport PyObject
from libc.string cimport memcpy, memset

@cython.final
cdef class Results:
    cdef object scheduled, hits, latest, older

    cdef int start(self, Py_ssize_t count, Py_ssize_t num_hits) except -1
    cdef object told(self, long long num_slots, long long num_deltas, long long num_left)


cdef Py_ssize_t put_array(values, long long *to, Py_ssize_t at, Py_ssize_t end) noexcept
cdef Py_ssize_t small_of(value) noexcept
cdef Py_ssize_t put_small(list values, long long *to, Py_ssize_t at) noexcept
@cython.final
cdef class Rows:
    cdef Py_ssize_t room
    cdef bint is_open
    cdef Py_buffer buffer

    cdef int open(self, given) except -1
    cdef int close(self) except -1


cdef inline void put_row(
    Rows rows, Py_ssize_t at, Py_ssize_t handle, int group, Py_ssize_t index, int block
) noexcept nogil:
    cdef int *row = <int *>rows.buffer.buf + 4 * at
    row[0] = <int>handle
    row[1] = group
    row[2] = <int>index
    row[3] = block

cdef void put_rows(
    Rows rows, Py_ssize_t at, Py_ssize_t handle, int group, Py_ssize_t index,
    const int *arena, Py_ssize_t start, Py_ssize_t count
) noexcept nogil
cdef object deltas_of(output)
cdef object mappings_of(output)
cdef long long[::1] longs(Py_ssize_t count)
cdef unsigned long long[::1] words(Py_ssize_t count)
cdef array.array word_array(Py_ssize_t count)
cdef list pieces_of(const unsigned char *data, Py_ssize_t size, Py_ssize_t first, Py_ssize_t end)

# A view would be copied, 208 bytes of it, into each call.
cdef inline unsigned char *bytes_in(unsigned long long[::1] words) noexcept nogil:
    return <unsigned char *>&words[0]

cdef inline unsigned char *bytes_of(unsigned char[::1] view) noexcept nogil:
    return &view[0]

cdef inline const unsigned char *read_bytes_of(const unsigned char[::1] view) noexcept nogil:
    return &view[0]

cdef inline void copy_bytes(
    unsigned char *to, Py_ssize_t place, const unsigned char *data, Py_ssize_t at, Py_ssize_t count
) noexcept nogil:
    memcpy(to + place, data + at, count)

cdef inline long long *longs_of(long long[::1] view) noexcept nogil:
    return &view[0]

cdef inline int *ints_of(int[::1] view) noexcept nogil:
    return &view[0]

cdef inline unsigned long long *words_of(array.array memory) noexcept nogil:
    return memory.data.as_ulonglongs

cdef inline unsigned char *bytes_at(unsigned long long *words) noexcept nogil:
    return <unsigned char *>words

cdef extern from *:
    """
    #include <string.h>
    #ifdef __GNUC__
    #define kvfast_fetch(place) __builtin_prefetch(place)
    #else
    #define kvfast_fetch(place) ((void)(place))
    #endif
    /* As who will write it: of `__builtin_prefetch(place, 1)` gcc makes the same as for readers. */
    #if defined(__GNUC__) && defined(__x86_64__)
    #define kvfast_fetch_own(place) \
        __asm__ volatile("prefetchw %0" : : "m"(*(const char *)(place)))
    #else
    #define kvfast_fetch_own(place) kvfast_fetch(place)
    #endif
    static inline void kvfast_fetch_item(PyObject *values, Py_ssize_t at) {
        const char *item = (const char *)PyList_GET_ITEM(values, at);
        /* Of a request: its counts, its status, where its hashes are, where its hot fields are. */
        kvfast_fetch(item + 32);
        kvfast_fetch(item + 88);
        kvfast_fetch(item + 136);
    }
    static inline void kvfast_copy_words(
        unsigned long long *to, const unsigned long long *words, long long count
    ) {
        if (count == 4) {  /* a copy of known length is some moves */
            memcpy(to, words, 32);
            return;
        }
        for (long long k = 0; k < count; k++) to[k] = words[k];
    }
    /* One store each: of eight, gcc makes one seldom. */
    static inline void kvfast_put_eight(unsigned char *to, unsigned long long value) {
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        value = __builtin_bswap64(value);
        memcpy(to, &value, 8);
    #else
        for (int i = 0; i < 8; i++) to[i] = (unsigned char)(value >> (56 - 8 * i));
    #endif
    }
    static inline void kvfast_put_low_eight(unsigned char *to, unsigned long long value) {
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        memcpy(to, &value, 8);
    #else
        for (int i = 0; i < 8; i++) to[i] = (unsigned char)(value >> 8 * i);
    #endif
    }
    /* Per length in bytes: the first byte of the head, and what moves a value to behind it. */
    static const unsigned long long kvfast_heads[6] = {
        0, 0, 24ULL << 56, 25ULL << 56, 0, 26ULL << 56
    };
    static const unsigned long long kvfast_shifts[6] = {
        0, 1ULL << 56, 1ULL << 48, 1ULL << 40, 0, 1ULL << 24
    };
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    typedef int kvfast_ints __attribute__((vector_size(16)));
    typedef unsigned long long kvfast_pair __attribute__((vector_size(16)));
    #ifdef __clang__
    #define kvfast_low_halves(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6)
    #else
    #define kvfast_low_halves(a, b) __builtin_shuffle(a, b, (kvfast_ints){0, 2, 4, 6})
    #endif
    /* The lengths of four at once: what is counted one by one takes as long as half a hash where
       another thread of the processor's core is busy. */
    static inline Py_ssize_t kvfast_put_four_uints(unsigned char *to, const long long *values) {
        if ((values[0] | values[1] | values[2] | values[3]) >> 31) return 0;
        kvfast_ints two, more;
        memcpy(&two, values, 16);
        memcpy(&more, values + 2, 16);
        kvfast_ints small = kvfast_low_halves(two, more);
        kvfast_pair found = (kvfast_pair)(1 - (small > 23) - (small > 255) - ((small > 65535) << 1));
        int lengths[4] = {(int)found[0], (int)(found[0] >> 32), (int)found[1], (int)(found[1] >> 32)};
        unsigned char *at = to;
        for (int i = 0; i < 4; i++) {
            unsigned long long value = (unsigned long long)values[i];
            kvfast_put_eight(at, kvfast_heads[lengths[i]] | value * kvfast_shifts[lengths[i]]);
            at += lengths[i];
        }
        return at - to;
    }
    #else
    #define kvfast_put_four_uints(to, values) 0
    #endif
    """
    void kvfast_fetch(const void *place) noexcept nogil
    void kvfast_fetch_own(const void *place) noexcept nogil
    void kvfast_fetch_item(list values, Py_ssize_t at) noexcept
    void kvfast_copy_words(unsigned long long *to, const unsigned long long *words, long long count) noexcept nogil
    void kvfast_put_eight(unsigned char *to, unsigned long long value) noexcept nogil
    void kvfast_put_low_eight(unsigned char *to, unsigned long long value) noexcept nogil
    Py_ssize_t kvfast_put_four_uints(unsigned char *to, const long long *values) noexcept nogil

cdef inline void copy_words(
    unsigned long long[::1] to, Py_ssize_t place, unsigned long long[::1] words, Py_ssize_t at, Py_ssize_t count
) noexcept nogil:
    kvfast_copy_words(&to[place], &words[at], count)

cdef inline void take_words(
    unsigned long long[::1] to, Py_ssize_t place, unsigned long long *words, Py_ssize_t at, Py_ssize_t count
) noexcept nogil:
    kvfast_copy_words(&to[place], words + at, count)

cdef inline void put_eight(unsigned char *data, Py_ssize_t at, unsigned long long value) noexcept nogil:
    kvfast_put_eight(data + at, value)

cdef inline void put_low_eight(unsigned char *data, Py_ssize_t at, unsigned long long value) noexcept nogil:
    kvfast_put_low_eight(data + at, value)

cdef inline void put_padding(unsigned char *message, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    memset(message + end, 0, 72)  # PADDING_BYTES; some stores: of unknown length it would be a call
    message[end] = 0x80
    put_eight(message, start + ((end - start + 72) & ~63) - 8, 8 * <unsigned long long>(end - start))

cdef inline Py_ssize_t put_four_uints(
    unsigned char *message, Py_ssize_t at, long long *values, Py_ssize_t first
) noexcept nogil:
    return kvfast_put_four_uints(message + at, values + first)

cdef inline void fetch_int(int[::1] view, Py_ssize_t at) noexcept nogil:
    kvfast_fetch_own(&view[at])

cdef inline void fetch_long(long long[::1] view, Py_ssize_t at) noexcept nogil:
    kvfast_fetch_own(&view[at])

cdef inline void fetch_at(unsigned long long *words, Py_ssize_t at) noexcept nogil:
    kvfast_fetch(words + at)

cdef inline void fetch_object(object value) noexcept:
    kvfast_fetch(<PyObject *>value)

cdef inline void fetch_item(list values, Py_ssize_t at) noexcept:
    kvfast_fetch_item(values, at)
