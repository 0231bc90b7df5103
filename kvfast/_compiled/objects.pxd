# What other modules may use of objects.pyx.
cimport cython

cdef object result_of(scheduled, hits, long long num_slots, long long num_deltas, long long num_left)
cdef object filled(Py_ssize_t count, long long value)
cdef bint put_array(values, long long[::1] to, Py_ssize_t at, Py_ssize_t count) noexcept
cdef Py_ssize_t put_small(list values, long long[::1] to, Py_ssize_t at) noexcept
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

cdef object deltas_of(output)
cdef object mappings_of(output)
cdef list pieces_of(const unsigned char[::1] data, Py_ssize_t size, Py_ssize_t first, Py_ssize_t end)

# A view would be copied, 208 bytes of it, into each call.
cdef inline unsigned char *bytes_of(unsigned char[::1] view) noexcept nogil:
    return &view[0]

cdef inline long long *longs_of(long long[::1] view) noexcept nogil:
    return &view[0]

cdef inline int *ints_of(int[::1] view) noexcept nogil:
    return &view[0]

cdef inline unsigned long long *words_of(unsigned long long[::1] view) noexcept nogil:
    return &view[0]

cdef extern from *:
    """
    #include <string.h>
    #ifdef __GNUC__
    #define kvfast_fetch(place) __builtin_prefetch(place)
    #else
    #define kvfast_fetch(place) ((void)(place))
    #endif
    static inline void kvfast_fetch_item(PyObject *values, Py_ssize_t at) {
        const char *item = (const char *)PyList_GET_ITEM(values, at);
        /* Of a request: its counts, its status, where its hashes are, where its hot fields are. */
        kvfast_fetch(item + 32);
        kvfast_fetch(item + 88);
        kvfast_fetch(item + 128);
        kvfast_fetch(item + 336);
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
    static inline void kvfast_put_eight(unsigned char *to, unsigned long long value) {
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        value = __builtin_bswap64(value);  /* one store: of eight, gcc makes one seldom */
        memcpy(to, &value, 8);
    #else
        for (int i = 0; i < 8; i++) to[i] = (unsigned char)(value >> (56 - 8 * i));
    #endif
    }
    """
    void kvfast_fetch(const void *place) noexcept nogil
    void kvfast_fetch_item(list values, Py_ssize_t at) noexcept
    void kvfast_copy_words(unsigned long long *to, const unsigned long long *words, long long count) noexcept nogil
    void kvfast_put_eight(unsigned char *to, unsigned long long value) noexcept nogil

cdef inline void copy_words(
    unsigned long long[::1] to, Py_ssize_t place, unsigned long long[::1] words, Py_ssize_t at, Py_ssize_t count
) noexcept nogil:
    kvfast_copy_words(&to[place], &words[at], count)

cdef inline void put_eight(unsigned char *data, Py_ssize_t at, unsigned long long value) noexcept nogil:
    kvfast_put_eight(data + at, value)

cdef inline void fetch_int(int[::1] view, Py_ssize_t at) noexcept nogil:
    kvfast_fetch(&view[at])

cdef inline void fetch_long(long long[::1] view, Py_ssize_t at) noexcept nogil:
    kvfast_fetch(&view[at])

cdef inline void fetch_word(unsigned long long[::1] view, Py_ssize_t at) noexcept nogil:
    kvfast_fetch(&view[at])

cdef inline void fetch_item(list values, Py_ssize_t at) noexcept:
    kvfast_fetch_item(values, at)
