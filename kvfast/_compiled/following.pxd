# C types of kvfast/_core/following.py.
cimport cython
from kvfast._compiled cimport objects
from kvfast._compiled.entries cimport Entries
from kvfast._compiled.hashing cimport Hasher
from kvfast._compiled.request cimport FastRequest
from kvfast._compiled.turn cimport Turn


@cython.locals(request=FastRequest)
cpdef FastRequest make_followed(given, Hasher hasher, long long hash_block_size_tokens)

@cython.locals(turn=Turn)
cdef int follow_in(FastRequest request, num_tokens, hashes, num_prompt_tokens, Turn taken) except -1

@cython.locals(tokens="long long", prompt="long long", num_missing="long long", size="long long", new=list)
cdef int follow(FastRequest request, num_tokens, hashes, num_prompt_tokens) except -1

@cython.locals(size="long long", hashed="long long", beyond="long long")
cdef long long num_full(FastRequest request, long long num_tokens) noexcept nogil

@cython.locals(size=int, full="long long", number="long long", i=int, data=bytes, made="unsigned char *")
cdef Py_ssize_t follow_to(FastRequest request, long long num_tokens, long long num_prompt_tokens, list hashes, Py_ssize_t at) except -1

@cython.locals(new=list, is_plain=bint, i=Py_ssize_t)
cdef tuple read_follow(Entries entries, config, num_tokens, hashes, num_prompt_tokens)

@cython.locals(size=int, wanted="long long", i=Py_ssize_t, request=FastRequest)
cdef bint may_follow(Entries entries, list new) except -1

@cython.locals(num_right=Py_ssize_t)
cdef bint are_hashes(list given, long long size) except -1

@cython.locals(full="long long")
cdef int make_room(FastRequest request, long long num_tokens) except -1

@cython.locals(i=Py_ssize_t, at=Py_ssize_t, prompt="long long", request=FastRequest)
cdef int follow_all(Entries entries, list hashes, list prompts) except -1
