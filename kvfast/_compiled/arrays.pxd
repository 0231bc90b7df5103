# C types of kvfast/_core/arrays.py: only its lengths; making an array is not on any hot path.
cpdef zeroed(str code, long long length)
cpdef grown(str code, old, long long length)
