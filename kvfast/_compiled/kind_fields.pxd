# The numbers of kvfast/_core/kinds.py as constants; modules see them under its name.
cdef enum:
    FULL = 0
    SLIDING = 1
    CHUNKED = 2
    MAMBA = 3
    ALIGNED = 4
    CROSS = 5
    ENCODER_ONLY = 6
    CIRCULAR = 7
    RSWA = 8
    REPLAYED = 9
