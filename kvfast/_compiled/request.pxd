# C types of kvfast/_core/request.py.
cimport cython
from cpython cimport array
from kvfast._compiled cimport hot_fields as hot
from kvfast._compiled cimport objects, token_copy
from kvfast._compiled.extra_keys cimport has_extra_keys
from kvfast._compiled.hashing cimport Hasher, HashJob, Message
from kvfast._compiled.turn cimport Turn

cdef int COUNT_BITS
cdef long long UNLOCKED_TOKENS, KEPT_MESSAGE_BYTES


@cython.final
cdef class FastRequest:
    # What is read most comes first and lies together; a view takes 208 bytes, its pointer the first.
    # `fetch_item` of objects.pxd knows where.
    cdef readonly long long num_tokens, num_hashes
    cdef long long row
    cdef Py_ssize_t field_at
    cdef long long preemptions, junction, in_flight
    cdef object state, running
    cdef bint is_used, skips_reading
    cdef readonly bint is_followed
    cdef readonly str request_id
    cdef unsigned long long *digest_words
    cdef long long[::1] fields
    cdef object holder
    cdef Turn turn
    cdef readonly object input
    cdef readonly Hasher hasher
    cdef readonly long long hash_block_size_tokens, num_prompt_tokens, priority
    cdef long long room_tokens, room_hashes
    cdef bint has_extra_keys, is_made
    cdef array.array digest_memory
    cdef dict odd
    cdef long long[::1] tokens

    cdef bint is_ready(self) noexcept
    cdef int check_made(self) except -1
    @cython.locals(count="long long")
    cdef Py_ssize_t noted(self, str name, value) except -2
    cdef object told(self, str name, long long count)
    cdef int hold_off(self) except -1
    @cython.locals(is_running=bint)
    cdef int set_status(self, value) except -1
    cdef void look_again(self) noexcept nogil
    cdef bint has_legal_counts(self) noexcept nogil
    cdef long long computed_now(self) noexcept nogil
    cdef void set_computed(self, long long num_tokens) noexcept nogil
    @cython.locals(computed="long long")
    cdef int hold(self, holder, Turn turn, long long[::1] fields, Py_ssize_t at) except -1
    cdef int let_go(self) except -1
    @cython.locals(turn=Turn)
    cdef int append_in(self, token_ids, Turn taken) except -1
    cdef int append_now(self, token_ids) except -1
    @cython.locals(size="long long")
    cdef int reserve(self, Py_ssize_t count) except -1
    @cython.locals(i="long long")
    cdef int append_longs(self, long long[::1] values, Py_ssize_t start, Py_ssize_t count) except -1
    @cython.locals(size="long long", hashed="long long")
    cdef int grow_to(self, long long num_tokens) except -1
    @cython.locals(values=list, count="long long")
    cdef Py_ssize_t copy_tokens(self, token_ids, str field) except -1
    @cython.locals(count="long long", copied="long long")
    cdef Py_ssize_t copy_view(self, view, str field) except -1
    @cython.locals(needed="long long", room="long long", had_some=bint)
    cdef make_room(self, long long count)
    @cython.locals(
        room="long long",
        used="long long",
        memory=array.array,
        words="unsigned long long *",
        made="unsigned char *",
    )
    cdef make_room_for_hashes(self, long long needed)
    @cython.locals(size="long long", done="long long", first="long long", until="long long")
    cdef hash_until(self, long long end)
    @cython.locals(
        size="long long",
        message=Message,
        tokens="long long *",
        digests="unsigned char *",
        keys="const unsigned char *",
        data="unsigned char *",
        job=HashJob,
    )
    cdef hash_run(self, long long first, long long end, const unsigned char[::1] extra)
    @cython.locals(i="long long")
    cpdef list tokens_between(self, long long start, long long stop)
    @cython.locals(digests="unsigned char *")
    cpdef bytes hash_at(self, long long number)


@cython.locals(count="long long")
cdef Py_ssize_t count_of(value) except -2
