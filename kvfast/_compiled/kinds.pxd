# C types of kvfast/_core/kinds.py.
cdef int FULL, SLIDING, CHUNKED, MAMBA, ALIGNED, CROSS, ENCODER_ONLY, CIRCULAR, RSWA, REPLAYED

cpdef int never(int kind) noexcept nogil
cpdef long long first_visible(int kind, long long reach, long long computed) noexcept nogil
