# The numbers of kvfast/_core/hot.py as constants; modules see them under its name.
cdef enum:
    STRIDE = 4
    NUM_OWN = 2
    COMPUTED = 0
    RUNS = 1
    ROW = 2
    SERIAL = 3
