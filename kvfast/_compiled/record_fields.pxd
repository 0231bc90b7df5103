# The numbers of kvfast/_core/record.py as constants; modules see them under the name `record`.
cdef enum:
    INTS = 16
    WORDS = 8
    GROUP = 8
    DUP_NEXT = 9
    DUP_PREV = 10
    NEXT = 11
    PREV = 12
    REFS = 13
    OWNER = 13
    COVERED = 14
    HOME = 15
